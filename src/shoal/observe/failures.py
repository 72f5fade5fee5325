"""Why items died, grouped: by the class of the outcome and by the shape of the message."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.views import FailedItem
from shoal.observe.formatting import printable

MAX_FAILURES_READ = 10_000
PAGE = 2_000
WIDTH = 200
_URL = re.compile(r"\w+://\S+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
# A status code is part of the message; longer numbers, hex ids and decimals are what differs between two of a kind.
_NUMBER = re.compile(r"(?<!\w)(?!\d{3}(?![\w.]))(?:0x)?\d[\da-fA-F]*(?:\.\d+)?(?!\w)")


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Items that died alike. `message` is the shape of their errors; `sample` is the error of the item `example`."""

    outcome: str
    message: str
    sample: str
    items: int
    example: int

    @property
    def display_text(self) -> str:
        """The error as it was for one of them, for people: it names what the shape leaves out."""
        text = printable(self.sample)
        return text if self.items == 1 or self.sample == self.message else f"for example: {text}"


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """The groups, largest first. `complete` is False when only the first of very many were looked at."""

    groups: tuple[FailureGroup, ...]
    looked_at: int
    complete: bool


async def read_failures(ledger: Ledger, run_id: str, *, limit: int = MAX_FAILURES_READ) -> Failures:
    """The dead of a run by kind. Reads at most `limit` of them."""
    found: list[FailedItem] = []
    cursor: str | None = None
    while len(found) < limit:
        page = await ledger.reads.failed(run_id, cursor=cursor, limit=min(PAGE, limit - len(found)))
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            break
    return Failures(groups=group_failures(found), looked_at=len(found), complete=cursor is None)


def group_failures(failed: Iterable[FailedItem]) -> tuple[FailureGroup, ...]:
    counts: dict[tuple[str, str], int] = {}
    examples: dict[tuple[str, str], FailedItem] = {}
    for one in failed:
        kind = (one.outcome, normalize_message(one.error_message or ""))
        counts[kind] = counts.get(kind, 0) + 1
        examples.setdefault(kind, one)
    largest_first = sorted(counts, key=lambda kind: (-counts[kind], kind))
    return tuple(
        FailureGroup(
            outcome=kind[0],
            message=kind[1],
            sample=_first_line(examples[kind].error_message or ""),
            items=counts[kind],
            example=examples[kind].item,
        )
        for kind in largest_first
    )


def normalize_message(message: str) -> str:
    """The message without what differs from one item to the next."""
    return _NUMBER.sub("N", _QUOTED.sub("'...'", _URL.sub("URL", message.strip().partition("\n")[0])))[:WIDTH]


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:WIDTH]
