"""A shop on the loopback to try a scraper on: many pages, a few faults, and the truth to compare with."""

from shoal.demo.shop.catalogue import Fault
from shoal.demo.shop.facts import Facts, Truth
from shoal.demo.shop.serving import OpenShop, Shop, Visit

__all__ = ["Facts", "Fault", "OpenShop", "Shop", "Truth", "Visit"]
