"""Which fields a run's records have, how often, and what is in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from shoal.export.records import decode_record, result_pages
from shoal.export.tables import MAX_COLUMNS, cell_text
from shoal.ledger.protocols import Ledger
from shoal.model.views import ResultRow

EXAMPLE_CHARACTERS = 60
SAMPLE = 20_000
SAMPLE_POINTS = 50
_NAMES = {str: "text", bool: "bool", int: "int", float: "float", type(None): "null", list: "list", dict: "object"}
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class FieldCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """`present`: records that have the field; `filled`: those where it is not null, "", [] or {}; of `records`."""

    field: str
    present: int
    filled: int
    filled_share: float
    types: tuple[str, ...]
    example: str
    records: int


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """`records` were read, of as many as `of`: all of them, or, when `sampled`, some spread evenly over the run.

    `of` counts the records of all stages then. `complete` is False when there were more different fields than are
    looked at.
    """

    records: int
    of: int
    fields: tuple[FieldCoverage, ...]
    complete: bool
    sampled: bool


class _Field:
    __slots__ = ("example", "filled", "present", "types")

    def __init__(self) -> None:
        self.present = self.filled = 0
        self.types: dict[str, None] = {}
        self.example = ""

    def add(self, value: Any) -> None:
        self.present += 1
        self.types[_NAMES[type(value)]] = None
        if value not in _EMPTY:
            self.filled += 1
            if not self.example:
                text = cell_text(value)
                self.example = text if len(text) <= EXAMPLE_CHARACTERS else text[: EXAMPLE_CHARACTERS - 1] + "…"


async def measure_coverage(
    ledger: Ledger, run_id: str, *, stage: str | None = None, sample: int | None = SAMPLE
) -> Coverage:
    """What the records of a run have in them, in constant memory. Fields come in the order of first appearance.

    Of a run that has more than `sample` records about so many are read, spread evenly over it; with None all are.
    """
    stored = (await ledger.reads.stats(run_id)).results
    reads_all = sample is None or stored <= sample
    pages = (
        result_pages(ledger, run_id, stage=stage) if reads_all else _sample_pages(ledger, run_id, stage, sample or 1)
    )
    fields: dict[str, _Field] = {}
    records, complete = 0, True
    async for rows in pages:
        records += len(rows)
        for row in rows:
            for name, value in decode_record(row).items():
                field = fields.get(name)
                if field is None:
                    if len(fields) == MAX_COLUMNS:
                        complete = False
                        continue
                    field = fields[name] = _Field()
                field.add(value)
    found = tuple(
        FieldCoverage(
            field=name,
            present=field.present,
            filled=field.filled,
            filled_share=round(field.filled / records, 4),
            types=tuple(field.types),
            example=field.example,
            records=records,
        )
        for name, field in fields.items()
    )
    return Coverage(
        records=records, of=records if reads_all else stored, fields=found, complete=complete, sampled=not reads_all
    )


async def _sample_pages(
    ledger: Ledger, run_id: str, stage: str | None, sample: int
) -> AsyncIterator[tuple[ResultRow, ...]]:
    """Pages of results from evenly spaced places of the run, none twice."""
    span = await ledger.reads.result_span(run_id)
    if span is None:
        return
    first, last = span
    last_item = -1
    for n in range(SAMPLE_POINTS):
        item = first + (last - first) * n // SAMPLE_POINTS
        if item <= last_item:
            continue
        page = await ledger.reads.results(
            run_id, stage=stage, cursor=f"{item}.0" if n else None, limit=max(1, sample // SAMPLE_POINTS)
        )
        if page.rows:
            yield page.rows
            last_item = page.rows[-1].item
