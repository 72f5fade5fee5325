"""Checks what a handler yields, records and items, and converts it to what the ledger stores."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.define.record_keys import RecordKeyRule
from shoal.errors import InvalidItem, InvalidRecord
from shoal.model.item import NewItem, PreparedItem, prepare
from shoal.model.json_text import RECORD_BYTES, check_numbers, record_text
from shoal.model.record_key import RecordKey

if TYPE_CHECKING:
    from shoal.define.stage import AnyStage

# The output of an attempt is committed in one transaction, so it must fit into memory.
MAX_OUTPUT_BYTES = 64 << 20
MAX_OUTPUT_VALUES = 200_000
_SCALARS = frozenset({str, int, float, bool, type(None)})


class DroppedRecords(msgspec.Struct):
    """How many records a hook dropped, and why the first."""

    first: str
    count: int = 0


class Output:
    """What one attempt has yielded so far. `dropped`: why items were refused.

    `depth` is that of the attempt's item; `too_deep` counts items that the depth of their stage forbids.
    `in_lanes=False` takes items out of their lanes, for a run that visits no site. `record_keys`: the key of each
    record; empty for a stage without a rule for `keys`. `hold` keeps records as they were yielded, until `take_held`,
    for the hooks that may change or drop them. `dropped_records`: how many each hook has dropped, and why the first.
    """

    __slots__ = (
        "_depth",
        "_held",
        "_in_lanes",
        "_keys",
        "_record_type",
        "_stage",
        "_stages",
        "dropped",
        "dropped_records",
        "follow_ups",
        "record_keys",
        "records",
        "size",
        "too_deep",
    )

    def __init__(
        self,
        stage: str,
        stages: Mapping[str, AnyStage],
        record_type: Any = None,
        *,
        keys: RecordKeyRule | None = None,
        depth: int = 0,
        in_lanes: bool = True,
        hold: bool = False,
    ) -> None:
        self._depth = depth
        self._held: list[Any] | None = [] if hold else None
        self._in_lanes = in_lanes
        self._keys = keys
        self._stage = stage
        self._stages = stages
        self._record_type = record_type
        self.records: list[str] = []
        self.record_keys: list[RecordKey] = []
        self.follow_ups: list[PreparedItem] = []
        self.dropped: list[str] = []
        self.dropped_records: dict[str, DroppedRecords] = {}
        self.size = 0
        self.too_deep = 0

    def add(self, value: Any) -> None:
        """Add one yielded value. Raises InvalidRecord for what is neither a record nor an item."""
        if isinstance(value, NewItem):
            self._add_item(value)
        elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            for each in value:
                self.add(each)
        elif value is not None:
            if self._held is None:
                self.store(value)
            else:
                self._held.append(self._held_copy(value))
                self._add_size(0)

    def store(self, record: Any) -> None:
        """Add a record, checked. Raises InvalidRecord."""
        if self._record_type is not None and not isinstance(record, self._record_type):
            record = _convert(record, self._record_type)
        text = record_json(record)
        if self._keys is not None:
            self.record_keys.append(self._keys.key_of(record, text))
        self.records.append(text)
        self._add_size(len(text))

    def take_held(self) -> list[Any]:
        """The records that were held; `store` those that are to be kept."""
        held, self._held = self._held or [], None
        return held

    def drop(self, hook: str, reason: str) -> None:
        """Count a record that a hook dropped."""
        dropped = self.dropped_records.setdefault(hook, DroppedRecords(reason))
        dropped.count += 1

    def _held_copy(self, value: Any) -> Any:
        """A copy of a record for hooks, of the stage's record type: a handler may change and yield the same object."""
        if self._record_type is not None and not isinstance(value, self._record_type):
            return _convert(value, self._record_type)
        if not is_record(value):
            record_json(value)  # refuses it and says why
        if type(value) is dict and all(type(each) in _SCALARS for each in value.values()):
            return value.copy()  # ten times faster, and most records are like that
        return copy.deepcopy(value)

    def _add_item(self, new: NewItem) -> None:
        depth = self._depth + 1 if new.depth is None else new.depth
        lane = new.lane if self._in_lanes else None
        try:
            item = prepare(msgspec.structs.replace(new, lane=lane, depth=depth), self._stage)
            stage = self._stages.get(item.stage)
            if stage is None:
                raise InvalidItem(f"There is no stage {item.stage!r}; the run has {', '.join(self._stages)}.")
        except InvalidItem as error:
            # One bad link must not fail its page.
            self.dropped.append(error.message)
            return
        if stage.depth is not None and depth > stage.depth:
            self.too_deep += 1
            return
        self.follow_ups.append(item)
        self._add_size(len(item.payload or "") + 200)

    def _add_size(self, size: int) -> None:
        self.size += size
        values = len(self.records) + len(self.follow_ups) + len(self._held or ())
        if self.size > MAX_OUTPUT_BYTES or values > MAX_OUTPUT_VALUES:
            raise InvalidRecord(
                f"One item yielded more than {MAX_OUTPUT_BYTES >> 20} MB or {MAX_OUTPUT_VALUES:,} values.",
                remedy="Split the work: yield further items instead of everything at once.",
            )


def is_record(value: Any) -> bool:
    """Whether a value has the form of a record: a mapping, or an object with fields."""
    return (
        isinstance(value, Mapping | msgspec.Struct)
        or (dataclasses.is_dataclass(value) and not isinstance(value, type))
        or hasattr(value, "model_dump_json")
        or (isinstance(value, tuple) and hasattr(value, "_asdict"))
    )


def record_json(value: Any) -> str:
    """A record as JSON text. Dataclasses and pydantic models are checked against their annotations."""
    if type(value) is dict:
        return record_text(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _convert(value, type(value))
        return record_text(value)
    if (dump := getattr(value, "model_dump_json", None)) is not None:
        return _model_text(value, dump)
    if hasattr(value, "__aiter__") or hasattr(value, "__await__"):
        raise InvalidRecord(
            f"A {type(value).__name__} is not a record.", remedy="To add an item to a stage, yield stage.item(url)."
        )
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    return record_text(dict(value) if isinstance(value, Mapping) else value)


def _model_text(value: Any, dump: Any) -> str:
    try:
        # Fields assigned after validation may have any type; this reports them.
        text = str(dump(warnings="error"))
    except ValueError as problem:  # pydantic's own errors are ValueErrors
        raise InvalidRecord(f"The record cannot be stored as JSON: {problem}.") from None
    if not text.startswith("{"):
        raise InvalidRecord(f"A record must be an object with fields, not {type(value).__name__}.")
    if "null" in text:
        check_numbers(value.model_dump(), "record", InvalidRecord)
    if len(text) > RECORD_BYTES:
        raise InvalidRecord(
            f"The record is {len(text):,} bytes of JSON; {RECORD_BYTES:,} are allowed.",
            remedy="Split it, or store the large part elsewhere and keep a reference.",
        )
    return text


def _convert(value: Any, record_type: Any) -> Any:
    """Convert a value to its record type. Raises InvalidRecord with the name of the wrong field."""
    name = getattr(record_type, "__name__", str(record_type))
    try:
        if (validate := getattr(record_type, "model_validate", None)) is not None:
            return validate(value)
        return msgspec.convert(msgspec.to_builtins(value), record_type)
    except (ValueError, TypeError) as problem:  # msgspec.ValidationError is a ValueError
        raise InvalidRecord(
            f"The record is not a valid {name}: {' '.join(str(problem).split())}.",
            remedy="Convert the value before you yield it, or change the type.",
        ) from None
