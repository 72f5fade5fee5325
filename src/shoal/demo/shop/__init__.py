"""A shop on the loopback: many pages, a few faults, and the expected products to compare a scrape with."""

from shoal.demo.shop.catalogue import Fault
from shoal.demo.shop.serving import RunningShop, Shop, Visit
from shoal.demo.shop.site import ExpectedProduct, ShopFacts

__all__ = ["ExpectedProduct", "Fault", "RunningShop", "Shop", "ShopFacts", "Visit"]
