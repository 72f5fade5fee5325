"""A server and a fetcher for each test."""

from tests.fetch.conftest import client, fetcher, site

__all__ = ["client", "fetcher", "site"]
