"""A shop on the loopback: many pages, a few faults, and the expected products to compare a scrape with."""

from shoal.demo.shop.catalogue import Fault
from shoal.demo.shop.serving import RunningShop, Shop
from shoal.demo.shop.site import ExpectedProduct, ShopFacts
from shoal.demo.stand_in import Visit

__all__ = ["ExpectedProduct", "Fault", "RunningShop", "Shop", "ShopFacts", "Visit"]
