"""Failures of a run, grouped by outcome and normalized error message."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.views import FailedItem
from shoal.observe.formatting import printable

MAX_FAILURES_READ = 10_000
PAGE_SIZE = 2_000
MAX_MESSAGE_LENGTH = 200
_URL = re.compile(r"\w+://\S+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
# Three digits may be a status code and are kept; other numbers, hex ids and decimals differ between items.
_NUMBER = re.compile(r"(?<!\w)(?!\d{3}(?![\w.]))(?:0x)?\d[\da-fA-F]*(?:\.\d+)?(?!\w)")


class FailureCount(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that failed alike: how many, how many of their items died of it, the last error and the last item.

    `complete`: False when only the first of very many dead items were counted.
    """

    outcome: str
    error: str
    attempts: int
    dead: int
    last: str
    complete: bool = True

    @property
    def count_text(self) -> str:
        """`x 25`, or `x 25, 3 dead`, or `x 3 dead` when all of them died; `x 2,000+` when there are more."""
        number = f"x {self.attempts:,}{'' if self.complete else '+'}"
        if self.dead in (0, self.attempts):
            return f"{number} dead" if self.dead else number
        return f"{number}, {self.dead:,} dead"

    @property
    def text(self) -> str:
        """`404 Not Found x 12 dead, last: https://...`"""
        return f"{printable(self.error) or self.outcome} {self.count_text}, last: {printable(self.last)}"

    @property
    def last_text(self) -> str:
        """The path of a URL, as its host is most often that of the others; or the item's key."""
        parts = urlsplit(self.last)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        return printable(path if parts.netloc and path not in ("", "/") else self.last)


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead items with the same outcome and normalized `message`; `sample` is the full error of the item `example`.

    `last`: the URL or key of the one that died last.
    """

    outcome: str
    message: str
    sample: str
    items: int
    example: int
    last: str

    @property
    def display_text(self) -> str:
        """The full error of one item, marked as an example where the errors of the group differ."""
        text = printable(self.sample)
        return text if self.items == 1 or self.sample == self.message else f"for example: {text}"


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """The groups, largest first. `complete` is False when only the first `items_read` dead items were read."""

    groups: tuple[FailureGroup, ...]
    items_read: int
    complete: bool

    def counts(self) -> tuple[FailureCount, ...]:
        """The groups as counts of attempts, of which the dead items had at least one each."""
        return tuple(
            FailureCount(
                outcome=group.outcome,
                error=group.sample,
                attempts=group.items,
                dead=group.items,
                last=group.last,
                complete=self.complete,
            )
            for group in self.groups
        )


async def read_failures(ledger: Ledger, run_id: str, *, limit: int = MAX_FAILURES_READ) -> Failures:
    """Read at most `limit` dead items of a run and group them."""
    found: list[FailedItem] = []
    cursor: str | None = None
    while len(found) < limit:
        page = await ledger.reads.failed(run_id, cursor=cursor, limit=min(PAGE_SIZE, limit - len(found)))
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            break
    return Failures(groups=group_failures(found), items_read=len(found), complete=cursor is None)


def group_failures(failed: Iterable[FailedItem]) -> tuple[FailureGroup, ...]:
    counts: dict[tuple[str, str], int] = {}
    examples: dict[tuple[str, str], FailedItem] = {}
    last: dict[tuple[str, str], FailedItem] = {}
    for item in failed:
        group = (item.outcome, normalize_message(item.error_message or ""))
        counts[group] = counts.get(group, 0) + 1
        examples.setdefault(group, item)
        if group not in last or item.failed_at >= last[group].failed_at:
            last[group] = item
    largest_first = sorted(counts, key=lambda group: (-counts[group], group))
    return tuple(
        FailureGroup(
            outcome=group[0],
            message=group[1],
            sample=first_line(examples[group].error_message or ""),
            items=counts[group],
            example=examples[group].item,
            last=last[group].url,
        )
        for group in largest_first
    )


def normalize_message(message: str) -> str:
    """The first line of a message, with URLs, quoted text and numbers replaced by placeholders."""
    return _NUMBER.sub("N", _QUOTED.sub("'...'", _URL.sub("URL", message.strip().partition("\n")[0])))[
        :MAX_MESSAGE_LENGTH
    ]


def first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:MAX_MESSAGE_LENGTH]
