"""The products of the shop and the faults of some of their pages: the same for the same seed, on every machine."""

from __future__ import annotations

import itertools
import random
import re
import unicodedata
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from shoal.demo.shop.words import ADJECTIVES, CARE, CATEGORIES, DETAILS, OUTLET, CategorySpec
from shoal.errors import InvalidSetting

PER_PAGE = 20
OUTLET_SIZE = 15
RELATED = 4
# Each fault needs products of its own.
MIN_PER_CATEGORY = 10
MAX_PER_CATEGORY = 1_000


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One product as its page shows it. `path` is the path of the page."""

    sku: str
    title: str
    price: float
    currency: str
    rating: float
    stock: int
    description: str
    path: str


class Category(msgspec.Struct, frozen=True, kw_only=True):
    """A category, the path of its listing, and its products in the order of the listing."""

    spec: CategorySpec
    path: str
    products: tuple[Product, ...]

    @property
    def page_count(self) -> int:
        return -(-len(self.products) // PER_PAGE)

    def page_path(self, number: int) -> str:
        """The path of listing page `number`, counted from 1."""
        return self.path if number == 1 else f"{self.path}?page={number}"

    def on_page(self, number: int) -> tuple[Product, ...]:
        return self.products[(number - 1) * PER_PAGE : number * PER_PAGE]

    def related_to(self, product: Product) -> tuple[Product, ...]:
        """The next few of the category; the last is followed by the first."""
        index = self.products.index(product)
        around = self.products[index + 1 :] + self.products[:index]
        return around[:RELATED]


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on sale: twelve categories in the shop, and one more in the outlet."""

    categories: tuple[Category, ...]
    outlet: Category


def make_catalogue(seed: int, per_category: int) -> Catalogue:
    if not MIN_PER_CATEGORY <= per_category <= MAX_PER_CATEGORY:
        raise InvalidSetting(
            f"A category cannot hold {per_category} products.",
            remedy=f"Choose between {MIN_PER_CATEGORY} and {MAX_PER_CATEGORY}.",
        )
    return Catalogue(
        categories=tuple(
            _make_category(spec, f"/category/{spec.slug}", "EUR", seed, per_category) for spec in CATEGORIES
        ),
        outlet=_make_category(OUTLET, "/", "GBP", seed, OUTLET_SIZE),
    )


def _make_category(spec: CategorySpec, path: str, currency: str, seed: int, size: int) -> Category:
    rng = random.Random(f"{seed} {spec.slug}")
    names = list(itertools.product(ADJECTIVES, spec.materials, spec.nouns))
    chosen = rng.sample(names, size)
    made = (_make_product(spec, rng, number, name, currency) for number, name in enumerate(chosen, start=1))
    return Category(spec=spec, path=path, products=tuple(made))


def _make_product(
    spec: CategorySpec, rng: random.Random, number: int, name: tuple[str, str, str], currency: str
) -> Product:
    adjective, material, noun = name
    sku = f"{spec.code}-{number:04d}"
    title = " ".join(name)
    opening = f"{adjective} {noun.lower()} in {material.lower()}, made for {rng.choice(spec.uses)}."
    return Product(
        sku=sku,
        title=title,
        price=rng.randrange(290, 14_990, 10) / 100,
        currency=currency,
        rating=rng.randrange(21, 51) / 10,
        stock=0 if rng.random() < 0.08 else rng.randrange(1, 120),
        description=" ".join([opening, *rng.sample(DETAILS, 2), rng.choice(CARE)]),
        path=f"/product/{_slug(title)}-{sku.lower()}",
    )


def _slug(title: str) -> str:
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


class Fault(Enum):
    """How a product's page may fail. "Once" means on the first visit only."""

    ERROR_ONCE = "500 once"
    MISSING = "404"
    GONE = "410"
    THROTTLED_ONCE = "429 once"
    SLOW = "slow"
    CAPTCHA_ONCE = "captcha once"
    EMPTY_ONCE = "empty once"
    MOVED = "moved"


DEAD = {Fault.MISSING: 404, Fault.GONE: 410}
RETRY_AFTER_SECONDS = 1
_ERROR_SHARE = 0.02
_COUNTS = {
    Fault.MISSING: 3,
    Fault.GONE: 1,
    Fault.THROTTLED_ONCE: 5,
    Fault.SLOW: 8,
    Fault.CAPTCHA_ONCE: 5,
    Fault.EMPTY_ONCE: 1,
    Fault.MOVED: 10,
}


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The fault of each affected product by its SKU, and the seconds of the slow ones."""

    faults: Mapping[str, Fault]
    slow_seconds: Mapping[str, float]

    def link(self, product: Product) -> str:
        """The path that pages and sitemaps link to: the old one for a product that has moved."""
        if self.faults.get(product.sku) is Fault.MOVED:
            return f"/item/{product.sku.lower()}"
        return product.path


def assign_faults(seed: int, products: Sequence[Product]) -> FaultPlan:
    """Give each fault products of its own."""
    rng = random.Random(f"{seed} faults")
    counts = {Fault.ERROR_ONCE: round(len(products) * _ERROR_SHARE), **_COUNTS}
    affected = iter(rng.sample(products, sum(counts.values())))
    faults = {next(affected).sku: fault for fault, count in counts.items() for _ in range(count)}
    slow = {sku: rng.randrange(300, 801) / 1000 for sku, fault in faults.items() if fault is Fault.SLOW}
    return FaultPlan(faults=faults, slow_seconds=slow)
