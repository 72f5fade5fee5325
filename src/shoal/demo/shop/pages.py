"""The HTML pages of the shop. Everything but the products' own texts is ASCII, so that it fits every charset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from shoal.demo.shop.catalogue import Category, Product
from shoal.demo.shop.words import CategorySpec

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
Link = Callable[[Product], str]
_HOME = ("Home", "/")


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


def home_page(categories: Sequence[Category]) -> str:
    entries = "\n".join(
        f'<li class="category"><h2><a href="{category.path}">{escape(category.spec.name)}</a></h2>\n'
        f'<p class="count">{len(category.products)} products</p></li>'
        for category in categories
    )
    return frame(
        "Good plain things",
        f"<h1>Good plain things</h1>\n<p>Choose a shelf and have a look around.</p>\n"
        f'<ul class="categories">\n{entries}\n</ul>\n'
        '<aside class="outlet"><p>Last pieces at half the price: <a href="/outlet/">visit our outlet</a>.</p></aside>',
    )


def listing_page(category: Category, number: int, link: Link, *, aside: str = "") -> str:
    """One page of a category; `aside` is shown below the products."""
    cards = "\n".join(_card(product, category.spec, link(product)) for product in category.on_page(number))
    spec = category.spec
    return frame(
        spec.name if number == 1 else f"{spec.name}, page {number}",
        f"<h1>{escape(spec.name)}</h1>\n"
        f'<p class="count">{len(category.products)} products, page {number} of {category.page_count}</p>\n'
        f'<ul class="products">\n{cards}\n</ul>\n{_pagination(category, number)}{aside}',
        crumbs=[_HOME],
        charset=spec.charset,
    )


def outlet_home_page(outlet: Category, shop_url: str) -> str:
    cards = "\n".join(_card(product, outlet.spec, product.path) for product in outlet.products)
    return frame(
        outlet.spec.name,
        f"<h1>The outlet</h1>\n<p>Last pieces. Please take your time: we are a small server.</p>\n"
        f'<ul class="products">\n{cards}\n</ul>\n<p><a href="{escape(shop_url)}">Back to the shop</a></p>',
    )


def outlet_aside(outlet: Category, outlet_url: str) -> str:
    """The outlet's products as another site's page links to them."""
    entries = "\n".join(
        f'<li><a href="{escape(outlet_url + product.path)}">{escape(product.title)}</a></li>'
        for product in outlet.products
    )
    return (
        f'<aside class="outlet"><h2>From the outlet</h2>\n<ul>\n{entries}\n</ul>\n'
        '<p><a href="/outlet/">See all of it</a></p></aside>'
    )


def product_page(product: Product, category: Category, link: Link) -> str:
    spec = category.spec
    related = "\n".join(_card(other, spec, link(other)) for other in category.related_to(product))
    full = round(product.rating)
    stars = f'<span aria-hidden="true">{"&#9733;" * full}{"&#9734;" * (5 - full)}</span>'
    return frame(
        product.title,
        f"""<article class="product" data-sku="{product.sku}">
<figure class="picture">{_picture(spec, product.title)}</figure>
<div class="summary">
<h1>{escape(product.title)}</h1>
{_price(product)}
<p class="rating" data-rating="{product.rating:.1f}">{stars} {product.rating:.1f} of 5</p>
{_stock(product)}
<div class="description"><p>{escape(product.description)}</p></div>
<table class="details"><tbody>
<tr><th scope="row">SKU</th><td class="sku">{product.sku}</td></tr>
<tr><th scope="row">Category</th><td class="category">{escape(spec.name)}</td></tr>
<tr><th scope="row">Delivery</th><td>2 to 4 days</td></tr>
</tbody></table>
</div>
</article>
<aside class="related"><h2>You may also like</h2>
<ul class="products">
{related}
</ul></aside>""",
        crumbs=[_HOME, (spec.name, category.path)],
        charset=spec.charset,
        extra_head=f'<link rel="canonical" href="{product.path}">\n',
    )


def text_page(title: str, text: str) -> str:
    return frame(title, f"<h1>{escape(title)}</h1>\n<p>{escape(text)}</p>", crumbs=[_HOME])


def captcha_page() -> str:
    return """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Are you a robot?</title></head>
<body>
<h1>Are you a robot?</h1>
<p>We have seen unusual traffic from your network. Please solve the captcha to verify that you are human.</p>
<form method="post" action="/captcha">
<div id="captcha" class="captcha"></div>
<button type="submit">Continue</button>
</form>
</body>
</html>
"""


def picture(colour: str) -> str:
    """A placeholder for a photograph."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 320 240" width="320" height="240">'
        f'<rect width="320" height="240" fill="{colour}"/>'
        '<circle cx="160" cy="108" r="46" fill="#fff" fill-opacity=".35"/>'
        '<path d="M70 190 L140 120 L190 165 L220 140 L260 190 Z" fill="#fff" fill-opacity=".55"/></svg>'
    )


def _card(product: Product, spec: CategorySpec, href: str) -> str:
    title = escape(product.title)
    return (
        f'<li><article class="product-card">{_picture(spec, product.title)}\n'
        f'<h3><a href="{escape(href)}" title="{title}">{title}</a></h3>\n'
        f"{_price(product)}\n{_stock(product)}</article></li>"
    )


def _picture(spec: CategorySpec, title: str) -> str:
    return f'<img src="/images/{spec.slug}.svg" width="320" height="240" alt="{escape(title)}">'


def _price(product: Product) -> str:
    return (
        f'<p class="price"><span class="amount">{product.price:.2f}</span> '
        f'<span class="currency">{product.currency}</span></p>'
    )


def _stock(product: Product) -> str:
    if product.stock:
        return f'<p class="stock in-stock">In stock (<span class="count">{product.stock}</span> available)</p>'
    return '<p class="stock sold-out">Sold out (<span class="count">0</span> available)</p>'


def _pagination(category: Category, number: int) -> str:
    if category.page_count == 1:
        return ""
    parts = []
    if number > 1:
        parts.append(f'<li class="previous"><a rel="prev" href="{category.page_path(number - 1)}">Previous</a></li>')
    parts.append(f'<li class="current">Page {number} of {category.page_count}</li>')
    if number < category.page_count:
        parts.append(f'<li class="next"><a rel="next" href="{category.page_path(number + 1)}">Next</a></li>')
    return '<ul class="pagination">\n' + "\n".join(parts) + "\n</ul>\n"
