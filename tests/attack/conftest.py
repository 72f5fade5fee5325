"""A server and a fetcher for each test."""

from tests.fetch.conftest import fetcher, site

__all__ = ["fetcher", "site"]
