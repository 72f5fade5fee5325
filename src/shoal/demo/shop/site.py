"""Every address of the shop and of its outlet, with the answer it gives: built once, then only looked up."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import msgspec

from shoal.demo.shop.catalogue import DEAD, RETRY_AFTER_SECONDS, Catalogue, Category, Fault, Product, Trouble
from shoal.demo.shop.pages import (
    captcha_page,
    home_page,
    listing_page,
    outlet_aside,
    outlet_home_page,
    picture,
    product_page,
    text_page,
)
from shoal.demo.shop.words import Shelf

CRAWL_DELAY = 0.2
PRIVATE = {"/private/account": "Account", "/private/basket": "Basket"}
OUTLET_CATEGORY = "garden"
SITEMAPS = 2
_HTML = "text/html; charset=utf-8"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent for a path. `packed` is the body once more, gzipped, for those who accept it."""

    body: bytes = b""
    status: int = 200
    content_type: str = _HTML
    packed: bytes | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A path: its lasting answer, what the first visit gets instead, and how long it takes beyond the usual."""

    answer: Answer
    first: Answer | None = None
    extra_seconds: float = 0.0


Places = Mapping[str, Place]


def not_found() -> Answer:
    return _page(text_page("Not found", "There is no such page in this shop."), status=404)


def shop_places(catalogue: Catalogue, trouble: Trouble, url: str, outlet_url: str) -> Places:
    places = dict(_fixed_places(catalogue, url, outlet_url))
    for category in catalogue.categories:
        places.update(_listings(category, trouble, catalogue.outlet, outlet_url))
        for product in category.products:
            places[product.path] = _product_place(product, category, trouble)
            if trouble.faults.get(product.sku) is Fault.MOVED:
                places[trouble.link(product)] = _redirect(301, product.path)
    places.update(_sitemaps(catalogue, trouble, url))
    return places


def outlet_places(outlet: Category, url: str, shop_url: str) -> Places:
    robots = f"User-agent: *\nDisallow: /private/\nCrawl-delay: {CRAWL_DELAY}\n\nSitemap: {url}/sitemap.xml\n"
    places = {
        "/": Place(answer=_page(outlet_home_page(outlet, f"{shop_url}/"))),
        "/about": Place(answer=_page(text_page("About", "Last pieces of a made-up shop."))),
        "/robots.txt": Place(answer=_text(robots)),
        "/sitemap.xml": Place(answer=_xml(_urlset([url + product.path for product in outlet.products]))),
        **_private_places(),
        **_pictures([outlet.shelf]),
    }
    for product in outlet.products:
        page = product_page(product, outlet, lambda other: other.path)
        places[product.path] = Place(answer=_page(page, product.path))
    return places


def _fixed_places(catalogue: Catalogue, url: str, outlet_url: str) -> Iterator[tuple[str, Place]]:
    robots = f"User-agent: *\nDisallow: /private/\n\nSitemap: {url}/sitemap.xml\n"
    about = "We sell what does not exist, to those who want to try a scraper without bothering anybody."
    yield "/", Place(answer=_page(home_page(catalogue.categories)))
    yield "/robots.txt", Place(answer=_text(robots))
    yield "/about", Place(answer=_page(text_page("About", about)))
    yield "/outlet/", _redirect(302, f"{outlet_url}/")
    yield from _private_places().items()
    yield from _pictures([category.shelf for category in catalogue.categories]).items()


def _private_places() -> dict[str, Place]:
    text = "For customers only. A polite crawler never sees this."
    return {path: Place(answer=_page(text_page(title, text))) for path, title in PRIVATE.items()}


def _pictures(shelves: Sequence[Shelf]) -> dict[str, Place]:
    colours = {shelf.slug: shelf.colour for shelf in shelves} | {"shop": "#1f5f6b"}
    return {
        f"/images/{name}.svg": Place(answer=Answer(body=picture(colour).encode(), content_type="image/svg+xml"))
        for name, colour in colours.items()
    }


def _listings(category: Category, trouble: Trouble, outlet: Category, outlet_url: str) -> dict[str, Place]:
    places = {}
    for number in range(1, category.page_count + 1):
        shows_outlet = category.shelf.slug == OUTLET_CATEGORY and number == 1
        aside = outlet_aside(outlet, outlet_url) if shows_outlet else ""
        path = category.page_path(number)
        text = listing_page(category, number, trouble.link, aside=aside)
        places[path] = Place(answer=_page(text, path, shelf=category.shelf))
    return places


def _product_place(product: Product, category: Category, trouble: Trouble) -> Place:
    fault = trouble.faults.get(product.sku)
    if fault in DEAD:
        return Place(answer=_page(text_page("No longer here", "We do not sell this any more."), status=DEAD[fault]))
    page = _page(product_page(product, category, trouble.link), product.path, shelf=category.shelf)
    return Place(answer=page, first=_first_answer(fault), extra_seconds=trouble.slow_seconds.get(product.sku, 0.0))


def _first_answer(fault: Fault | None) -> Answer | None:
    if fault is Fault.ERROR_ONCE:
        return _page(text_page("Something broke", "The shop has a small problem. Please try again."), status=500)
    if fault is Fault.THROTTLED_ONCE:
        busy = text_page("Too many requests", "Please wait a moment.")
        return Answer(body=busy.encode(), status=429, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
    if fault is Fault.CAPTCHA_ONCE:
        return _page(captcha_page())
    if fault is Fault.EMPTY_ONCE:
        return Answer()
    return None


def _sitemaps(catalogue: Catalogue, trouble: Trouble, url: str) -> dict[str, Place]:
    """An index and its gzipped parts. They list what the listings link to, dead and moved products too."""
    links = [url + trouble.link(product) for category in catalogue.categories for product in category.products]
    names = [f"/sitemap-{number}.xml.gz" for number in range(1, SITEMAPS + 1)]
    entries = "".join(f"<sitemap><loc>{escape(url + name)}</loc></sitemap>\n" for name in names)
    places = {"/sitemap.xml": Place(answer=_xml(_sitemap_element("sitemapindex", entries)))}
    share = -(-len(links) // SITEMAPS)
    for number, name in enumerate(names):
        part = _urlset(links[number * share : (number + 1) * share]).encode()
        places[name] = Place(answer=Answer(body=gzip.compress(part, mtime=0), content_type="application/gzip"))
    return places


def _urlset(links: Sequence[str]) -> str:
    return _sitemap_element("urlset", "".join(f"<url><loc>{escape(link)}</loc></url>\n" for link in links))


def _sitemap_element(name: str, inside: str) -> str:
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{space}">\n{inside}</{name}>\n'


def _redirect(status: int, location: str) -> Place:
    return Place(answer=Answer(status=status, headers={"Location": location}))


def _text(text: str) -> Answer:
    return Answer(body=text.encode(), content_type="text/plain; charset=utf-8")


def _xml(text: str) -> Answer:
    return Answer(body=text.encode(), content_type="application/xml")


def _page(text: str, path: str | None = None, *, shelf: Shelf | None = None, status: int = 200) -> Answer:
    """A page in the charset of its shelf. Every third path also has it gzipped."""
    charset = shelf.charset if shelf else "utf-8"
    body = text.encode(charset)
    packed = gzip.compress(body, compresslevel=6, mtime=0) if path and zlib.crc32(path.encode()) % 3 == 0 else None
    content_type = "text/html" if shelf and not shelf.charset_in_header else f"text/html; charset={charset}"
    return Answer(body=body, status=status, content_type=content_type, packed=packed)
