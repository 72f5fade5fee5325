"""The routes of the shop and of its outlet, every path with its response; and what a complete scrape must find."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import msgspec

from shoal.demo.shop.catalogue import DEAD, RETRY_AFTER_SECONDS, Catalogue, Category, Fault, FaultPlan, Product
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
from shoal.demo.shop.words import CategorySpec

CRAWL_DELAY = 0.2
PRIVATE = {"/private/account": "Account", "/private/basket": "Basket"}
OUTLET_CATEGORY = "garden"
SITEMAPS = 2
_HTML = "text/html; charset=utf-8"


class ShopResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a path. `gzipped` is the compressed body, for clients that accept it."""

    body: bytes = b""
    status: int = 200
    content_type: str = _HTML
    gzipped: bytes | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a path, another one for the first visit, and additional seconds of latency."""

    answer: ShopResponse
    first: ShopResponse | None = None
    extra_seconds: float = 0.0


Routes = Mapping[str, Route]


def not_found() -> ShopResponse:
    return _page(text_page("Not found", "There is no such page in this shop."), status=404)


def shop_routes(catalogue: Catalogue, fault_plan: FaultPlan, url: str, outlet_url: str) -> Routes:
    routes = dict(_fixed_routes(catalogue, url, outlet_url))
    for category in catalogue.categories:
        routes.update(_listings(category, fault_plan, catalogue.outlet, outlet_url))
        for product in category.products:
            routes[product.path] = _product_route(product, category, fault_plan)
            if fault_plan.faults.get(product.sku) is Fault.MOVED:
                routes[fault_plan.link(product)] = _redirect(301, product.path)
    routes.update(_sitemaps(catalogue, fault_plan, url))
    return routes


def outlet_routes(outlet: Category, url: str, shop_url: str) -> Routes:
    robots = f"User-agent: *\nDisallow: /private/\nCrawl-delay: {CRAWL_DELAY}\n\nSitemap: {url}/sitemap.xml\n"
    routes = {
        "/": Route(answer=_page(outlet_home_page(outlet, f"{shop_url}/"))),
        "/about": Route(answer=_page(text_page("About", "Last pieces of a made-up shop."))),
        "/robots.txt": Route(answer=_text(robots)),
        "/sitemap.xml": Route(answer=_xml(_urlset([url + product.path for product in outlet.products]))),
        **_private_routes(),
        **_pictures([outlet.spec]),
    }
    for product in outlet.products:
        page = product_page(product, outlet, lambda other: other.path)
        routes[product.path] = Route(answer=_page(page, product.path))
    return routes


def _fixed_routes(catalogue: Catalogue, url: str, outlet_url: str) -> Iterator[tuple[str, Route]]:
    robots = f"User-agent: *\nDisallow: /private/\n\nSitemap: {url}/sitemap.xml\n"
    about = "We sell what does not exist, to those who want to try a scraper without bothering anybody."
    yield "/", Route(answer=_page(home_page(catalogue.categories)))
    yield "/robots.txt", Route(answer=_text(robots))
    yield "/about", Route(answer=_page(text_page("About", about)))
    yield "/outlet/", _redirect(302, f"{outlet_url}/")
    yield from _private_routes().items()
    yield from _pictures([category.spec for category in catalogue.categories]).items()


def _private_routes() -> dict[str, Route]:
    text = "For customers only. A polite crawler never sees this."
    return {path: Route(answer=_page(text_page(title, text))) for path, title in PRIVATE.items()}


def _pictures(specs: Sequence[CategorySpec]) -> dict[str, Route]:
    colours = {spec.slug: spec.colour for spec in specs} | {"shop": "#1f5f6b"}
    return {
        f"/images/{name}.svg": Route(answer=ShopResponse(body=picture(colour).encode(), content_type="image/svg+xml"))
        for name, colour in colours.items()
    }


def _listings(category: Category, fault_plan: FaultPlan, outlet: Category, outlet_url: str) -> dict[str, Route]:
    routes = {}
    for number in range(1, category.page_count + 1):
        shows_outlet = category.spec.slug == OUTLET_CATEGORY and number == 1
        aside = outlet_aside(outlet, outlet_url) if shows_outlet else ""
        path = category.page_path(number)
        text = listing_page(category, number, fault_plan.link, aside=aside)
        routes[path] = Route(answer=_page(text, path, spec=category.spec))
    return routes


def _product_route(product: Product, category: Category, fault_plan: FaultPlan) -> Route:
    fault = fault_plan.faults.get(product.sku)
    if fault in DEAD:
        return Route(answer=_page(text_page("No longer here", "We do not sell this any more."), status=DEAD[fault]))
    page = _page(product_page(product, category, fault_plan.link), product.path, spec=category.spec)
    return Route(answer=page, first=_first_answer(fault), extra_seconds=fault_plan.slow_seconds.get(product.sku, 0.0))


def _first_answer(fault: Fault | None) -> ShopResponse | None:
    if fault is Fault.ERROR_ONCE:
        return _page(text_page("Something broke", "The shop has a small problem. Please try again."), status=500)
    if fault is Fault.THROTTLED_ONCE:
        busy = text_page("Too many requests", "Please wait a moment.")
        return ShopResponse(body=busy.encode(), status=429, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
    if fault is Fault.CAPTCHA_ONCE:
        return _page(captcha_page())
    if fault is Fault.EMPTY_ONCE:
        return ShopResponse()
    return None


def _sitemaps(catalogue: Catalogue, fault_plan: FaultPlan, url: str) -> dict[str, Route]:
    """An index and its gzipped parts. They have the links of the listings, to dead and moved products too."""
    links = [url + fault_plan.link(product) for category in catalogue.categories for product in category.products]
    names = [f"/sitemap-{number}.xml.gz" for number in range(1, SITEMAPS + 1)]
    entries = "".join(f"<sitemap><loc>{escape(url + name)}</loc></sitemap>\n" for name in names)
    routes = {"/sitemap.xml": Route(answer=_xml(_sitemap_element("sitemapindex", entries)))}
    share = -(-len(links) // SITEMAPS)
    for number, name in enumerate(names):
        part = _urlset(links[number * share : (number + 1) * share]).encode()
        routes[name] = Route(answer=ShopResponse(body=gzip.compress(part, mtime=0), content_type="application/gzip"))
    return routes


def _urlset(links: Sequence[str]) -> str:
    return _sitemap_element("urlset", "".join(f"<url><loc>{escape(link)}</loc></url>\n" for link in links))


def _sitemap_element(name: str, inside: str) -> str:
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{space}">\n{inside}</{name}>\n'


def _redirect(status: int, location: str) -> Route:
    return Route(answer=ShopResponse(status=status, headers={"Location": location}))


def _text(text: str) -> ShopResponse:
    return ShopResponse(body=text.encode(), content_type="text/plain; charset=utf-8")


def _xml(text: str) -> ShopResponse:
    return ShopResponse(body=text.encode(), content_type="application/xml")


def _page(text: str, path: str | None = None, *, spec: CategorySpec | None = None, status: int = 200) -> ShopResponse:
    """A page in the charset of its category. Every third path also has it gzipped."""
    charset = spec.charset if spec else "utf-8"
    body = text.encode(charset)
    gzipped = gzip.compress(body, compresslevel=6, mtime=0) if path and zlib.crc32(path.encode()) % 3 == 0 else None
    content_type = "text/html" if spec and not spec.charset_in_header else f"text/html; charset={charset}"
    return ShopResponse(body=body, status=status, content_type=content_type, gzipped=gzipped)


class ExpectedProduct(msgspec.Struct, frozen=True, kw_only=True):
    """A product that a complete scrape must find, once.

    `link` is the URL in pages and sitemaps, `url` the one after redirects: they differ for a product that has moved.
    """

    sku: str
    title: str
    price: float
    currency: str
    rating: float
    stock: int
    description: str
    category: str
    link: str
    url: str


class ShopFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The products to find, the dead links, and the forbidden pages.

    `products` by SKU, the outlet's among them; `dead` gives the status of each link that never leads to a product;
    `listings` are the category pages in order; `links_by_fault` are the links with each kind of fault.
    """

    products: Mapping[str, ExpectedProduct]
    dead: Mapping[str, int]
    private: tuple[str, ...]
    listings: tuple[str, ...]
    links_by_fault: Mapping[Fault, tuple[str, ...]]

    @property
    def fault_counts(self) -> Mapping[Fault, int]:
        return {fault: len(links) for fault, links in self.links_by_fault.items()}


def gather_facts(catalogue: Catalogue, fault_plan: FaultPlan, url: str, outlet_url: str) -> ShopFacts:
    products: dict[str, ExpectedProduct] = {}
    dead: dict[str, int] = {}
    links_by_fault: dict[Fault, list[str]] = {fault: [] for fault in Fault}
    for category in catalogue.categories:
        for product in category.products:
            link = url + fault_plan.link(product)
            fault = fault_plan.faults.get(product.sku)
            if fault is not None:
                links_by_fault[fault].append(link)
            if fault in DEAD:
                dead[link] = DEAD[fault]
            else:
                products[product.sku] = _expected(product, category, link, url + product.path)
    for product in catalogue.outlet.products:
        address = outlet_url + product.path
        products[product.sku] = _expected(product, catalogue.outlet, address, address)
    return ShopFacts(
        products=products,
        dead=dead,
        private=tuple(host + path for host in (url, outlet_url) for path in PRIVATE),
        listings=tuple(
            url + category.page_path(number)
            for category in catalogue.categories
            for number in range(1, category.page_count + 1)
        ),
        links_by_fault={fault: tuple(links) for fault, links in links_by_fault.items()},
    )


def _expected(product: Product, category: Category, link: str, url: str) -> ExpectedProduct:
    return ExpectedProduct(
        sku=product.sku,
        title=product.title,
        price=product.price,
        currency=product.currency,
        rating=product.rating,
        stock=product.stock,
        description=product.description,
        category=category.spec.name,
        link=link,
        url=url,
    )
