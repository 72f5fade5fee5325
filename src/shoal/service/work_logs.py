"""Reads back what the workers and pools of this machine have logged: the newest lines of their files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from shoal.model.log import LogNames
from shoal.worker.failure_log import ATTEMPT_FAILED, MORE_ATTEMPTS_FAILED

# So much of the end of a file is read, and so many files, the newest first.
MAX_READ_BYTES = 1 << 20
MAX_FILES = 50
MAX_MESSAGE_CHARS = 4_000
_LEVELS = {"debug": "INFO", "info": "INFO", "warning": "WARN", "error": "ERROR"}
# The ledger has every failed attempt, the log only the first of a kind.
_FROM_LEDGER = (ATTEMPT_FAILED, MORE_ATTEMPTS_FAILED)


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log. `level`: INFO, WARN or ERROR. `message`: at most 4,000 characters."""

    at: dt.datetime
    level: str
    message: str
    item: str | None = None
    worker: str | None = None


def read_logs(
    folder: Path, names: LogNames, *, limit: int, level: str | None = None, items: Collection[str | None] | None = None
) -> list[LogLine]:
    """The newest lines of the JSON logs of a scraper's pools and workers, of `level` and above."""
    levels = tuple(_LEVELS.values())
    least = 0 if level is None else levels.index(level)
    found: list[LogLine] = []
    for file in _files(folder, names):
        lines = (line for line in _lines(file) if levels.index(line.level) >= least)
        found += [line for line in lines if items is None or line.item in items][-limit:]
    return sorted(found, key=lambda line: line.at, reverse=True)[:limit]


def is_log_of(file: Path, names: LogNames) -> bool:
    """Whether a pool of the scraper, or a worker of one, wrote this file."""
    return names.is_worker_or_pool(file.name) or file.name == pool_output(names.scraper)


def pool_output(scraper: str) -> str:
    """The name of the file with what a pool that the server started has printed."""
    return f"{scraper}_pool.out"


def _files(folder: Path, names: LogNames) -> list[Path]:
    try:
        files = [file for file in folder.iterdir() if names.is_worker_or_pool(file.name)]
        return sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:MAX_FILES]
    except OSError:
        return []


def _lines(file: Path) -> Iterator[LogLine]:
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - MAX_READ_BYTES))
            text = opened.read(MAX_READ_BYTES).decode(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        with suppress(msgspec.DecodeError, ValueError, KeyError, TypeError):
            fields: dict[str, Any] = msgspec.json.decode(line, type=dict)
            if fields["event"] not in _FROM_LEDGER:
                yield _log_line(fields, file)


def _log_line(fields: dict[str, Any], file: Path) -> LogLine:
    at = dt.datetime.fromisoformat(fields.pop("time"))
    level = _LEVELS[fields.pop("level")]
    message, item = str(fields.pop("event")), fields.pop("item", None)
    worker = fields.pop("worker", None) or file.stem
    others = " ".join(f"{name}={value}" for name, value in fields.items() if name != "exception")
    text = " ".join(filter(None, (message, others, str(fields.get("exception", "")))))
    return LogLine(
        at=at,
        level=level,
        message=text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 3] + "...",
        item=None if item is None else str(item),
        worker=str(worker),
    )
