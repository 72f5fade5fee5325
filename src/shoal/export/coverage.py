"""Which fields a run's records have, how often, and what is in them."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.export.lines import record_of, result_pages
from shoal.export.shape import MOST_COLUMNS, cell_text
from shoal.ledger.protocols import Ledger

EXAMPLE_CHARACTERS = 60
_NAMES = {str: "text", bool: "bool", int: "int", float: "float", type(None): "null", list: "list", dict: "object"}
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class FieldCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """`present`: records that have the field; `filled`: those where it is not null, "", [] or {}."""

    field: str
    present: int
    filled: int
    filled_share: float
    types: tuple[str, ...]
    example: str


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """`complete` is False when there were more different fields than are looked at."""

    records: int
    fields: tuple[FieldCoverage, ...]
    complete: bool


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


async def coverage_of(ledger: Ledger, run_id: str, *, stage: str | None = None) -> Coverage:
    """Read all records of a run, in constant memory. Fields come in the order of first appearance."""
    fields: dict[str, _Field] = {}
    records, complete = 0, True
    async for rows in result_pages(ledger, run_id, stage=stage):
        records += len(rows)
        for row in rows:
            for name, value in record_of(row).items():
                field = fields.get(name)
                if field is None:
                    if len(fields) == MOST_COLUMNS:
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
        )
        for name, field in fields.items()
    )
    return Coverage(records=records, fields=found, complete=complete)
