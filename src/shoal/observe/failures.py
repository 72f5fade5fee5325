"""Failures of a run, grouped by outcome and normalized error message."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.failures import FailureView, first_line, message_shape
from shoal.model.views import FailedItem
from shoal.observe.formatting import printable

MAX_FAILURES_READ = 10_000
PAGE_SIZE = 2_000


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

    `last`: the URL or key of the one that died last. `failure_ids`: the groups of the ledger that it consists of, by
    stage and host, the largest first; items that are in no group yet have none.
    """

    outcome: str
    message: str
    sample: str
    items: int
    example: int
    last: str
    failure_ids: tuple[int, ...] = ()

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
    """The dead items of a run, from the groups of the ledger, and of those in no group yet at most `limit`."""
    parts: list[_Part] = []
    cursor: str | None = None
    while True:
        groups = await ledger.failures.list(run_id, cursor=cursor, limit=PAGE_SIZE)
        parts += [_part_of_group(view) for view in groups.rows]
        cursor = groups.cursor
        if cursor is None:
            break
    read = 0
    while groups.ungrouped and read < limit:
        page = await ledger.failures.ungrouped(run_id, cursor=cursor, limit=min(PAGE_SIZE, limit - read))
        parts += [_part_of_item(item) for item in page.rows]
        read += len(page.rows)
        cursor = page.cursor
        if cursor is None:
            break
    return Failures(groups=_merged(parts), items_read=sum(part.items for part in parts), complete=cursor is None)


def group_failures(failed: Iterable[FailedItem]) -> tuple[FailureGroup, ...]:
    return _merged(map(_part_of_item, failed))


class _Part(msgspec.Struct, frozen=True):
    """A group of the ledger, or one item."""

    outcome: str
    shape: str
    items: int
    error: str
    item: int
    name: str
    last_at: dt.datetime
    failure: int | None = None


def _part_of_group(view: FailureView) -> _Part:
    return _Part(view.outcome, view.shape, view.items, view.error, view.item, view.name, view.last_at, view.id)


def _part_of_item(item: FailedItem) -> _Part:
    error = item.error_message or ""
    return _Part(item.outcome, message_shape(error), 1, error, item.item, item.url, item.failed_at)


def _merged(parts: Iterable[_Part]) -> tuple[FailureGroup, ...]:
    kinds: dict[tuple[str, str], list[_Part]] = {}
    for part in parts:
        kinds.setdefault((part.outcome, part.shape), []).append(part)
    groups = []
    for (outcome, shape), same in kinds.items():
        newest = max(same, key=lambda part: part.last_at)
        by_size = sorted(same, key=lambda part: -part.items)
        groups.append(
            FailureGroup(
                outcome=outcome,
                message=shape,
                sample=first_line(same[0].error),
                items=sum(part.items for part in same),
                example=same[0].item,
                last=newest.name,
                failure_ids=tuple(part.failure for part in by_size if part.failure is not None),
            )
        )
    return tuple(sorted(groups, key=lambda group: (-group.items, group.outcome, group.message)))
