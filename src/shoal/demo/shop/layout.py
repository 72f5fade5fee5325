"""The frame around every page of the shop: head, header, breadcrumbs, footer.

Plain ASCII, so that every charset of the shop can hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { --ink: #23272b; --soft: #6a7178; --line: #e3e0d8; --paper: #fbfaf7; --accent: #1f5f6b; }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 Georgia, serif; color: var(--ink); background: var(--paper); }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
header.site, main, footer.site { max-width: 62rem; margin: 0 auto; padding: 1rem 1.25rem; }
header.site { display: flex; justify-content: space-between; align-items: baseline; }
header.site { border-bottom: 1px solid var(--line); }
header.site .name { font-size: 1.5rem; letter-spacing: .04em; color: var(--ink); }
header.site li, footer.site li { display: inline; margin-left: 1rem; }
ul, ol { list-style: none; margin: 0; padding: 0; }
nav.breadcrumbs { font-size: .85rem; color: var(--soft); margin-bottom: 1rem; }
nav.breadcrumbs li { display: inline; }
nav.breadcrumbs li + li::before { content: "/"; margin: 0 .5rem; }
ul.products, ul.categories { display: grid; gap: 1.25rem; }
ul.products, ul.categories { grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); }
article.product-card, ul.categories li { background: #fff; border: 1px solid var(--line); border-radius: 6px; }
article.product-card, ul.categories li { padding: .9rem; height: 100%; }
article.product-card img { width: 100%; height: auto; border-radius: 4px; }
article.product-card h3 { font-size: 1rem; margin: .5rem 0 .25rem; font-weight: normal; }
article.product { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 2rem; }
article.product figure { margin: 0; }
article.product img { width: 100%; height: auto; border-radius: 6px; }
h1 { font-weight: normal; margin: 0 0 .5rem; }
p.price { font-size: 1.25rem; margin: .25rem 0; }
article.product-card p.price { font-size: 1rem; }
p.rating { color: #a87b17; margin: .25rem 0; }
p.stock { font-size: .9rem; margin: .25rem 0; color: #2c7a4b; }
p.stock.sold-out { color: #a33a2c; }
table.details { border-collapse: collapse; margin-top: 1rem; font-size: .9rem; }
table.details th { text-align: left; font-weight: normal; color: var(--soft); padding-right: 1.5rem; }
ul.pagination { display: flex; justify-content: center; gap: 2rem; margin: 2rem 0; }
aside { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
footer.site { margin-top: 3rem; border-top: 1px solid var(--line); font-size: .85rem; color: var(--soft); }
@media (max-width: 40rem) { article.product { grid-template-columns: 1fr; } }
"""

Crumb = tuple[str, str]


def frame(title: str, main: str, *, crumbs: Sequence[Crumb] = (), charset: str = "utf-8", extra_head: str = "") -> str:
    """A whole page. `crumbs` are (name, path) from the home page down to, but without, this page."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="{charset}">
<title>{escape(title)} | Driftwood Supply</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="/images/shop.svg">
{extra_head}<style>{STYLE}</style>
</head>
<body>
<header class="site">
<a class="name" href="/">Driftwood Supply</a>
<nav aria-label="Shop"><ul>
<li><a href="/about">About</a></li>
<li><a rel="nofollow" href="/private/account">Account</a></li>
<li><a rel="nofollow" href="/private/basket">Basket</a></li>
</ul></nav>
</header>
<main>
{_breadcrumbs(crumbs, title)}{main}
</main>
<footer class="site"><p>A made-up shop that comes with Shoal. Nothing here is for sale.</p></footer>
</body>
</html>
"""


def _breadcrumbs(crumbs: Sequence[Crumb], here: str) -> str:
    if not crumbs:
        return ""
    above = "".join(f'<li><a href="{escape(path)}">{escape(name)}</a></li>\n' for name, path in crumbs)
    return (
        f'<nav class="breadcrumbs" aria-label="Breadcrumbs"><ol>\n{above}'
        f'<li aria-current="page">{escape(here)}</li>\n</ol></nav>\n'
    )
