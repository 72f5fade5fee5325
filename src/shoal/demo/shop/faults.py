"""Which products misbehave, and how: decided by the seed, so that every run meets the same trouble."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from shoal.demo.shop.catalogue import Product


class Fault(Enum):
    """What may be wrong with a product's page. "Once" means the first visit only."""

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


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """The fault of each troubled product by its SKU, and what some of them need to know."""

    faults: Mapping[str, Fault]
    slow_seconds: Mapping[str, float]

    def link(self, product: Product) -> str:
        """The path every page and sitemap of the shop links to: the old one, where the product has moved."""
        if self.faults.get(product.sku) is Fault.MOVED:
            return f"/item/{product.sku.lower()}"
        return product.path


def spread_trouble(seed: int, products: Sequence[Product]) -> Trouble:
    """Give each fault products of its own."""
    chance = random.Random(f"{seed} faults")
    counts = {Fault.ERROR_ONCE: round(len(products) * _ERROR_SHARE), **_COUNTS}
    troubled = iter(chance.sample(products, sum(counts.values())))
    faults = {next(troubled).sku: fault for fault, count in counts.items() for _ in range(count)}
    slow = {sku: chance.randrange(300, 801) / 1000 for sku, fault in faults.items() if fault is Fault.SLOW}
    return Trouble(faults=faults, slow_seconds=slow)
