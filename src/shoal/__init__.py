"""Shoal runs scrapers in parallel and across machines on a ledger that loses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.define.context import EarlierRuns, Failure, Http, Item, Notes
    from shoal.define.counters import Counters
    from shoal.define.extraction import (
        absolute_url,
        css,
        decimal_comma,
        extract,
        extract_all,
        jmes,
        number,
        page_url,
        xpath,
    )
    from shoal.define.files import Files
    from shoal.define.follow import Follow
    from shoal.define.scraper import Scraper, Secret
    from shoal.define.stage import Stage
    from shoal.egress.tokens import Token
    from shoal.errors import Blocked, CheckFailed, Dropped, LoggedOut, Permanent, Skipped, Throttled, Transient
    from shoal.fetch.article import Article
    from shoal.fetch.download import Download
    from shoal.fetch.form import Form
    from shoal.fetch.metadata import Metadata
    from shoal.fetch.page import Page, Request
    from shoal.fetch.tab import Tab
    from shoal.model.log import Log
    from shoal.model.request import secret
    from shoal.model.run import Run
    from shoal.model.url_key import url_hash
    from shoal.model.views import Counts, ItemFilter
    from shoal.service.client import Fleet, connect
    from shoal.service.run import RunReport

    __version__: str

__all__ = [
    "Article",
    "Blocked",
    "CheckFailed",
    "Counters",
    "Counts",
    "Download",
    "Dropped",
    "EarlierRuns",
    "Failure",
    "Files",
    "Fleet",
    "Follow",
    "Form",
    "Http",
    "Item",
    "ItemFilter",
    "Log",
    "LoggedOut",
    "Metadata",
    "Notes",
    "Page",
    "Permanent",
    "Request",
    "Run",
    "RunReport",
    "Scraper",
    "Secret",
    "Skipped",
    "Stage",
    "Tab",
    "Throttled",
    "Token",
    "Transient",
    "absolute_url",
    "connect",
    "css",
    "decimal_comma",
    "extract",
    "extract_all",
    "jmes",
    "number",
    "page_url",
    "secret",
    "url_hash",
    "xpath",
]
# Loaded when they are asked for: `import shoal` alone, as the command line does, stays fast.
_HOMES = {
    "Article": "fetch.article",
    "Blocked": "errors",
    "CheckFailed": "errors",
    "Counters": "define.counters",
    "Counts": "model.views",
    "Download": "fetch.download",
    "Dropped": "errors",
    "EarlierRuns": "define.context",
    "Failure": "define.context",
    "Files": "define.files",
    "Fleet": "service.client",
    "Follow": "define.follow",
    "Form": "fetch.form",
    "Http": "define.context",
    "Item": "define.context",
    "ItemFilter": "model.views",
    "Log": "model.log",
    "LoggedOut": "errors",
    "Metadata": "fetch.metadata",
    "Notes": "define.context",
    "Page": "fetch.page",
    "Permanent": "errors",
    "Request": "fetch.page",
    "Run": "model.run",
    "RunReport": "service.run",
    "Scraper": "define.scraper",
    "Secret": "define.scraper",
    "Skipped": "errors",
    "Stage": "define.stage",
    "Tab": "fetch.tab",
    "Throttled": "errors",
    "Token": "egress.tokens",
    "Transient": "errors",
    "absolute_url": "define.extraction",
    "connect": "service.client",
    "css": "define.extraction",
    "decimal_comma": "define.extraction",
    "extract": "define.extraction",
    "extract_all": "define.extraction",
    "jmes": "define.extraction",
    "number": "define.extraction",
    "page_url": "define.extraction",
    "secret": "model.request",
    "url_hash": "model.url_key",
    "xpath": "define.extraction",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"shoal.{_HOMES[name]}"), name)
    if name == "__version__":
        # Asked for rarely, and slow to find out: not at import.
        from importlib.metadata import version

        return version("shoal")
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
