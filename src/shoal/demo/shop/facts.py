"""The truth about the shop, for whoever wants to know whether a scrape found all of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.demo.shop.catalogue import DEAD, Catalogue, Category, Fault, Product, Trouble
from shoal.demo.shop.site import PRIVATE


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """A product that a complete scrape must find, once.

    `link` is the address that pages and sitemaps give for it, `url` the one where its page is in the end: they
    differ where the product has moved.
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


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to find, what is dead, and what is forbidden.

    `products` by SKU, the outlet's among them; `dead` gives the status of each link that never leads to a product;
    `listings` are the category pages in order; `troubled` are the links with each kind of fault.
    """

    products: Mapping[str, Truth]
    dead: Mapping[str, int]
    private: tuple[str, ...]
    listings: tuple[str, ...]
    troubled: Mapping[Fault, tuple[str, ...]]

    @property
    def fault_counts(self) -> Mapping[Fault, int]:
        return {fault: len(links) for fault, links in self.troubled.items()}


def gather_facts(catalogue: Catalogue, trouble: Trouble, url: str, outlet_url: str) -> Facts:
    products: dict[str, Truth] = {}
    dead: dict[str, int] = {}
    troubled: dict[Fault, list[str]] = {fault: [] for fault in Fault}
    for category in catalogue.categories:
        for product in category.products:
            link = url + trouble.link(product)
            fault = trouble.faults.get(product.sku)
            if fault is not None:
                troubled[fault].append(link)
            if fault in DEAD:
                dead[link] = DEAD[fault]
            else:
                products[product.sku] = _truth(product, category, link, url + product.path)
    for product in catalogue.outlet.products:
        address = outlet_url + product.path
        products[product.sku] = _truth(product, catalogue.outlet, address, address)
    return Facts(
        products=products,
        dead=dead,
        private=tuple(host + path for host in (url, outlet_url) for path in PRIVATE),
        listings=tuple(
            url + category.page_path(number)
            for category in catalogue.categories
            for number in range(1, category.page_count + 1)
        ),
        troubled={fault: tuple(links) for fault, links in troubled.items()},
    )


def _truth(product: Product, category: Category, link: str, url: str) -> Truth:
    return Truth(
        sku=product.sku,
        title=product.title,
        price=product.price,
        currency=product.currency,
        rating=product.rating,
        stock=product.stock,
        description=product.description,
        category=category.shelf.name,
        link=link,
        url=url,
    )
