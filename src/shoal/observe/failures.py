"""Why items died, grouped: by the class of the outcome and by the shape of the message."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.views import FailedItem

LOOKED_AT = 10_000
PAGE = 2_000
_URL = re.compile(r"\w+://\S+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
# A status code is part of the message; longer numbers, hex ids and decimals are what differs between two of a kind.
_NUMBER = re.compile(r"(?<!\w)(?!\d{3}(?![\w.]))(?:0x)?\d[\da-fA-F]*(?:\.\d+)?(?!\w)")


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    outcome: str
    message: str
    items: int
    example: int


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """The groups, largest first. `complete` is False when only the first of very many were looked at."""

    groups: tuple[FailureGroup, ...]
    looked_at: int
    complete: bool


async def failures(ledger: Ledger, run_id: str, *, limit: int = LOOKED_AT) -> Failures:
    """The dead of a run by kind. Reads at most `limit` of them."""
    found: list[FailedItem] = []
    cursor: str | None = None
    while len(found) < limit:
        page = await ledger.reads.failed(run_id, cursor=cursor, limit=min(PAGE, limit - len(found)))
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            break
    return Failures(groups=grouped(found), looked_at=len(found), complete=cursor is None)


def grouped(failed: Iterable[FailedItem]) -> tuple[FailureGroup, ...]:
    counts: dict[tuple[str, str], int] = {}
    examples: dict[tuple[str, str], int] = {}
    for one in failed:
        kind = (one.outcome, shape(one.error_message or ""))
        counts[kind] = counts.get(kind, 0) + 1
        examples.setdefault(kind, one.item)
    largest_first = sorted(counts, key=lambda kind: (-counts[kind], kind))
    return tuple(
        FailureGroup(outcome=kind[0], message=kind[1], items=counts[kind], example=examples[kind])
        for kind in largest_first
    )


def shape(message: str) -> str:
    """The message without what differs from one item to the next."""
    first_line = message.strip().partition("\n")[0]
    return _NUMBER.sub("N", _QUOTED.sub("'...'", _URL.sub("URL", first_line)))[:200]
