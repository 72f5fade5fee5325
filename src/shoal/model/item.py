"""Items, the unit of work: new, prepared and claimed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from shoal.errors import InvalidItem
from shoal.model.json_text import PAYLOAD_BYTES, json_text
from shoal.model.request import ItemRequest, request_text
from shoal.model.url_key import MAX_KEY_BYTES, check_text, key_hash, url_key

MAX_NAME_BYTES = 255
MAX_DELAY_SECONDS = 366 * 86_400.0
PRIORITY_RANGE = (-1_000_000, 1_000_000)
MAX_DEPTH = 32_767


class ItemState(StrEnum):
    READY = "ready"
    WAITING = "waiting"
    DELAYED = "delayed"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


OPEN_STATES = (ItemState.READY, ItemState.WAITING, ItemState.DELAYED, ItemState.LEASED)
FINAL_STATES = (ItemState.DONE, ItemState.DEAD, ItemState.SKIPPED, ItemState.CANCELLED)
RETRYABLE_STATES = (ItemState.DEAD, ItemState.SKIPPED, ItemState.CANCELLED)


class NewItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item to enqueue, with a `url`, a `key`, or both.

    `key` identifies duplicates within run and stage; the default is the URL's key. `priority`: smaller is first, 0 is
    normal. Items of a `lane` share a limit and a delay. `partition` is an affinity: workers prefer theirs. `delay`: not
    before so many seconds from now. `request`: what is sent besides a plain GET. `depth`: how many items led to it;
    None for one more than the item that yields it.
    """

    url: str | None = None
    key: str | None = None
    payload: Mapping[str, Any] | None = None
    stage: str | None = None
    partition: str = ""
    lane: str | None = None
    priority: int = 0
    delay: float = 0.0
    max_attempts: int | None = None
    request: ItemRequest | None = None
    depth: int | None = None


class PreparedItem(msgspec.Struct, frozen=True, gc=False):
    """A checked NewItem in the form that both ledgers store."""

    stage: str
    key_hash: bytes
    key: str | None
    url: str | None
    payload: str | None
    partition: str
    lane: str | None
    priority: int
    delay: float
    max_attempts: int | None
    request: str | None
    depth: int


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A worker's right to an item: commits succeed only with the current epoch."""

    item: int
    epoch: int
    run_no: int


class ClaimedItem(msgspec.Struct, frozen=True, gc=False):
    """An item that a worker has claimed, with its lease.

    `paced`: its lane has a delay, so its start must be reserved (`Lanes.reserve`). `waited`: seconds from the time it
    became claimable until its claim; None when unknown, because the answer to the claim was lost.
    """

    item: int
    epoch: int
    run_no: int
    run_id: str
    stage: str
    partition: str
    priority: int
    url: str | None
    key: str | None
    payload_json: str | None
    lane: str | None
    tries: int
    rescues: int
    max_attempts: int
    paced: bool = False
    request_json: str | None = None
    depth: int = 0
    waited: float | None = None

    @property
    def lease(self) -> Lease:
        return Lease(self.item, self.epoch, self.run_no)

    @property
    def payload(self) -> dict[str, Any]:
        return msgspec.json.decode(self.payload_json) if self.payload_json else {}

    @property
    def name(self) -> str:
        """The item's key, or its URL."""
        return self.key or self.url or str(self.item)


def priority_from_higher_first(priority: int) -> int:
    """Convert a priority of a system where larger is more urgent (S1) to Shoal's, where smaller is first."""
    return -priority


def prepare(new: NewItem, default_stage: str) -> PreparedItem:
    """Check one item and compute its key. Raises InvalidItem; has no other effect."""
    own_key = new.key
    if own_key is not None:
        check_text("key", own_key, MAX_KEY_BYTES)
        if new.url is not None:
            url_key(new.url)
        key = own_key
    elif new.url is not None:
        key = url_key(new.url)
        if new.request is not None and (own_key := new.request.key(key)) is not None:
            key = own_key
    else:
        raise InvalidItem("The item has neither a url nor a key.")
    if new.payload is not None and not isinstance(new.payload, Mapping):
        raise InvalidItem(f"The payload must be a dict, not {type(new.payload).__name__}.")
    if new.partition:
        check_text("partition", new.partition, MAX_NAME_BYTES)
    if new.lane is not None:
        check_text("lane", new.lane, MAX_NAME_BYTES)
    return PreparedItem(
        new.stage or default_stage,
        key_hash(key),
        own_key,
        new.url,
        json_text(new.payload, "payload", PAYLOAD_BYTES, InvalidItem) if new.payload is not None else None,
        new.partition,
        new.lane,
        _check_int("priority", new.priority, *PRIORITY_RANGE),
        _check_delay(new.delay),
        None if new.max_attempts is None else _check_int("max_attempts", new.max_attempts, 1, 1000),
        None if new.request is None else request_text(new.request),
        0 if new.depth is None else _check_int("depth", new.depth, 0, MAX_DEPTH),
    )


def _check_int(what: str, value: int, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise InvalidItem(f"{what} is {value!r}; it must be a whole number from {low} to {high}.")
    return value


def _check_delay(value: float) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MAX_DELAY_SECONDS:  # NaN fails this too
        raise InvalidItem(f"delay is {value!r}; it must be a number of seconds from 0 to {MAX_DELAY_SECONDS:.0f}.")
    return float(value)
