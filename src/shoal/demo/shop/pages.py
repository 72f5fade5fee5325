"""The pages of the shop as text: home, listings, products, and what is shown when something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from shoal.demo.shop.catalogue import Category, Product
from shoal.demo.shop.layout import frame
from shoal.demo.shop.words import Shelf

Link = Callable[[Product], str]
_HOME = ("Home", "/")


def home_page(categories: Sequence[Category]) -> str:
    entries = "\n".join(
        f'<li class="category"><h2><a href="{category.path}">{escape(category.shelf.name)}</a></h2>\n'
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
    cards = "\n".join(_card(product, category.shelf, link(product)) for product in category.on_page(number))
    shelf = category.shelf
    return frame(
        shelf.name if number == 1 else f"{shelf.name}, page {number}",
        f"<h1>{escape(shelf.name)}</h1>\n"
        f'<p class="count">{len(category.products)} products, page {number} of {category.page_count}</p>\n'
        f'<ul class="products">\n{cards}\n</ul>\n{_pagination(category, number)}{aside}',
        crumbs=[_HOME],
        charset=shelf.charset,
    )


def outlet_home_page(outlet: Category, shop_url: str) -> str:
    cards = "\n".join(_card(product, outlet.shelf, product.path) for product in outlet.products)
    return frame(
        outlet.shelf.name,
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
    shelf = category.shelf
    related = "\n".join(_card(other, shelf, link(other)) for other in category.related_to(product))
    full = round(product.rating)
    stars = f'<span aria-hidden="true">{"&#9733;" * full}{"&#9734;" * (5 - full)}</span>'
    return frame(
        product.title,
        f"""<article class="product" data-sku="{product.sku}">
<figure class="picture">{_picture(shelf, product.title)}</figure>
<div class="summary">
<h1>{escape(product.title)}</h1>
{_price(product)}
<p class="rating" data-rating="{product.rating:.1f}">{stars} {product.rating:.1f} of 5</p>
{_stock(product)}
<div class="description"><p>{escape(product.description)}</p></div>
<table class="details"><tbody>
<tr><th scope="row">SKU</th><td class="sku">{product.sku}</td></tr>
<tr><th scope="row">Category</th><td class="category">{escape(shelf.name)}</td></tr>
<tr><th scope="row">Delivery</th><td>2 to 4 days</td></tr>
</tbody></table>
</div>
</article>
<aside class="related"><h2>You may also like</h2>
<ul class="products">
{related}
</ul></aside>""",
        crumbs=[_HOME, (shelf.name, category.path)],
        charset=shelf.charset,
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


def _card(product: Product, shelf: Shelf, href: str) -> str:
    title = escape(product.title)
    return (
        f'<li><article class="product-card">{_picture(shelf, product.title)}\n'
        f'<h3><a href="{escape(href)}" title="{title}">{title}</a></h3>\n'
        f"{_price(product)}\n{_stock(product)}</article></li>"
    )


def _picture(shelf: Shelf, title: str) -> str:
    return f'<img src="/images/{shelf.slug}.svg" width="320" height="240" alt="{escape(title)}">'


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
