"""What a complete scrape of the shop must find."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.demo.shop.catalogue import DEAD, Catalogue, Category, Fault, FaultPlan, Product
from shoal.demo.shop.site import PRIVATE


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
