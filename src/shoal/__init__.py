"""Shoal runs scrapers in parallel and across machines on a ledger that loses nothing."""

from importlib.metadata import version

__version__ = version("shoal")
