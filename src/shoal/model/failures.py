"""Failures that look alike: the shape of an error message, and the groups of dead items that the ledger keeps."""

from __future__ import annotations

import datetime as dt
import re
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from shoal.model.outcome import EXCEEDED_RETRIES

MAX_MESSAGE_LENGTH = 200
MAX_HOST_LENGTH = 253
TREND_MINUTES = 60
# A run has so many groups; what fails in yet another way is in one group per stage and outcome.
MAX_GROUPS = 1_000
OTHER_SHAPE = "(other messages)"
_URL = re.compile(r"\w+://\S+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
# Numbers, hex ids and decimals differ between items. A status code does not: three digits at the start, after a word
# that announces one, or before a reason phrase.
_BEFORE_STATUS = (
    r"(?:HTTP(?:/\d(?:\.\d)?)?(?: error)?|status|(?:HTTP|status|response|error) code|answered|CONNECT with"
    rf"|{EXCEEDED_RETRIES.rstrip(': ')})[\s:=]{{1,3}}"
)
_REASON_PHRASES = "|".join(re.escape(status.phrase) for status in HTTPStatus)
_STATUS = rf"(?:^|\b{_BEFORE_STATUS})[1-5]\d\d(?!\w|\.\d)|(?<!\w)[1-5]\d\d(?= (?:{_REASON_PHRASES})\b)"
_NUMBER = re.compile(rf"(?P<status>{_STATUS})|(?<!\w)(?:0x[\da-f]+|\d[\da-f]*(?:\.\d+)?)(?!\w)", re.IGNORECASE)


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
    """The first line of a message; URLs, quoted text and numbers but status codes are replaced by placeholders."""
    line = _QUOTED.sub("'...'", _URL.sub("URL", message.strip().partition("\n")[0]))
    return _NUMBER.sub(lambda number: number["status"] or "N", line)[:MAX_MESSAGE_LENGTH]


def first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:MAX_MESSAGE_LENGTH]


def failed_host(url: str | None) -> str:
    """The host of an item's URL; empty for an item without one."""
    try:
        return (urlsplit(url or "").hostname or "")[:MAX_HOST_LENGTH]
    except ValueError:
        return ""
