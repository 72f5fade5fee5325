"""The logger of authors: an event and its fields, `log.info("found", links=3)`; the names of a pool's log files."""

from __future__ import annotations

import re
from typing import Any, Protocol

import msgspec


class Log(Protocol):
    """Structured logging. `bind` returns a logger that adds these fields to every event."""

    def debug(self, event: str, **fields: Any) -> Any: ...
    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...
    def bind(self, **fields: Any) -> Log: ...


class LogNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the log files of a scraper's pool: of its workers, of itself, of what happens to its exits.

    `{scraper}` stands for the scraper's name, `{worker}` for the number of a worker.
    """

    scraper: str
    worker: str
    pool: str
    egress: str

    def of_worker(self, number: int) -> str:
        return self.worker.replace("{scraper}", self.scraper).replace("{worker}", str(number))

    def of_pool(self) -> str:
        return self.pool.replace("{scraper}", self.scraper)

    def of_egress(self) -> str:
        return self.egress.replace("{scraper}", self.scraper)

    def is_worker_or_pool(self, name: str) -> bool:
        """Whether a file of this name is the log of the pool, or of one of its workers; `shop` is not `shop_two`."""
        worker = re.escape(self.worker.replace("{scraper}", self.scraper)).replace(re.escape("{worker}"), r"[0-9]+")
        return name == self.of_pool() or re.fullmatch(worker, name) is not None
