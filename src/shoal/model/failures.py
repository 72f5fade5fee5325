"""Failures that look alike: the shape of an error message, and the groups of dead items that the ledger keeps."""

from __future__ import annotations

import datetime as dt
import re
from urllib.parse import urlsplit

import msgspec

MAX_MESSAGE_LENGTH = 200
MAX_HOST_LENGTH = 253
TREND_MINUTES = 60
# A run has so many groups; what fails in yet another way is in one group per stage and outcome.
MAX_GROUPS = 1_000
OTHER_SHAPE = "(other messages)"
_URL = re.compile(r"\w+://\S+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
# Three digits may be a status code and are kept; other numbers, hex ids and decimals differ between items.
_NUMBER = re.compile(r"(?<!\w)(?!\d{3}(?![\w.]))(?:0x)?\d[\da-fA-F]*(?:\.\d+)?(?!\w)")


class FailureKey(msgspec.Struct, frozen=True):
    """What the items of a group have in common. `stage` is the number of the stage in the ledger."""

    stage: int
    outcome: str
    host: str
    shape: str


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """A group of dead items of a run: the same stage, outcome, host and shape of the message.

    `items`: how many there are now. `first_at`, `last_at`: when the first and the last of them died. `error`, `item`,
    `name`: the full message, number and URL (or key) of the one that died last. `trend`: how many died in each of the
    last 60 minutes, the current one last.
    """

    id: int
    stage: str
    outcome: str
    host: str
    shape: str
    items: int
    first_at: dt.datetime
    last_at: dt.datetime
    error: str
    item: int
    name: str
    muted_by: str | None = None
    muted_at: dt.datetime | None = None
    trend: tuple[int, ...] = ()


class FailurePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of groups. `ungrouped`: dead items of the run that are in no group yet, counted up to a limit."""

    rows: tuple[FailureView, ...]
    cursor: str | None
    ungrouped: int = 0
    ungrouped_is_at_least: bool = False


def message_shape(message: str) -> str:
    """The first line of a message, with URLs, quoted text and numbers replaced by placeholders."""
    return _NUMBER.sub("N", _QUOTED.sub("'...'", _URL.sub("URL", message.strip().partition("\n")[0])))[
        :MAX_MESSAGE_LENGTH
    ]


def first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:MAX_MESSAGE_LENGTH]


def failed_host(url: str | None) -> str:
    """The host of an item's URL; empty for an item without one."""
    try:
        return (urlsplit(url or "").hostname or "")[:MAX_HOST_LENGTH]
    except ValueError:
        return ""
