"""A shop on the loopback to try a scraper on: many pages, a few faults, and the truth to compare with."""

from shoal.demo.shop.catalogue import Fault
from shoal.demo.shop.facts import ExpectedProduct, ShopFacts
from shoal.demo.shop.serving import RunningShop, Shop, Visit

__all__ = ["ExpectedProduct", "Fault", "RunningShop", "Shop", "ShopFacts", "Visit"]
