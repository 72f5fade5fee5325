"""Runs and their stages."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec

from shoal.errors import InvalidSetting
from shoal.model.lane import LanePolicy
from shoal.model.redaction import without_secret_settings
from shoal.model.url_key import KEY_VERSION, check_text

DEFAULT_MAX_ATTEMPTS = 4
DEFAULT_MAX_RESCUES = 3
MAX_IDEMPOTENCY_KEY_BYTES = 500
# A collection runs as the scraper `collection.NAME`; the idempotency key of a member's run is `collection RUN MEMBER`.
COLLECTION_SCRAPER_PREFIX = "collection."
COLLECTION_KEY_PREFIX = "collection "
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LIMIT = re.compile(r"(\d{1,15})|(\d{1,3}(?:\.\d{1,9})?)\s*%", re.ASCII)


class RunState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    REMOVED = "removed"


class StageSpec(msgspec.Struct, frozen=True):
    """A step of a scraper. `lane` is the policy of lanes first seen through this stage."""

    name: str
    max_attempts: int | None = None
    lane: LanePolicy = LanePolicy()


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is created from. `code_version` identifies the code that created it.

    `settings` are stored as a snapshot without secrets; workers use their own. `idempotency_key`: what the run is for,
    such as one slot of a schedule; there is one run per key.
    """

    scraper: str
    stages: tuple[StageSpec, ...]
    settings: Mapping[str, Any] = {}
    code_version: str | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    max_rescues: int = DEFAULT_MAX_RESCUES
    idempotency_key: str | None = None

    @property
    def stored_settings(self) -> dict[str, Any]:
        """The settings as a ledger stores them."""
        return without_secret_settings(self.settings)

    def checked(self) -> RunSpec:
        check_name("scraper", self.scraper)
        if not self.stages:
            raise InvalidSetting("A run needs at least one stage.")
        for stage in self.stages:
            check_name("stage", stage.name)
            stage.lane.checked()
            if stage.max_attempts is not None:
                check_count("max_attempts", stage.max_attempts, 1, 1000)
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise InvalidSetting(f"Two stages have the same name: {', '.join(names)}.")
        if self.idempotency_key is not None:
            check_text("idempotency_key", self.idempotency_key, MAX_IDEMPOTENCY_KEY_BYTES)
        check_count("max_attempts", self.max_attempts, 1, 1000)
        check_count("max_rescues", self.max_rescues, 0, 1000)
        return self


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the ledger. `sealed`: no more items will be enqueued from outside, so it may finish."""

    no: int
    id: str
    scraper: str
    state: RunState
    sealed: bool
    settings: Mapping[str, Any]
    code_version: str | None
    key_version: int
    max_attempts: int
    max_rescues: int
    created_at: dt.datetime
    finished_at: dt.datetime | None
    idempotency_key: str | None
    stages: tuple[str, ...]


def run_id_at(moment: dt.datetime, taken: int = 0) -> str:
    """`YYYYMMDD_HHMMSS`, with `_2`, `_3` ... when that id exists."""
    plain = moment.strftime("%Y%m%d_%H%M%S")
    return plain if taken == 0 else f"{plain}_{taken + 1}"


def check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{name!r} is not a valid {what} name: use letters, digits, '_', '-' and '.', at most 100 of them."
        )


def check_count(what: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise InvalidSetting(f"{what} is {value!r}; it must be a whole number from {low} to {high}.")


def check_key_version(version: int) -> None:
    if version != KEY_VERSION:
        raise InvalidSetting(
            f"The run uses version {version} of the URL key rules; this code supports version {KEY_VERSION}.",
            remedy="Continue the run with the Shoal version that created it, or start it fresh.",
        )


class DeadLimit(msgspec.Struct, frozen=True):
    """A count of items such as `25`, or a share of the run such as `0.5%`."""

    amount: Decimal
    is_share: bool

    @classmethod
    def parse(cls, text: str) -> DeadLimit | None:
        """The limit in a text; None if it is not one."""
        match = _LIMIT.fullmatch(text.strip())
        if match is None:
            return None
        count, share = match.groups()
        limit = cls(Decimal(count or share), count is None)
        return limit if not limit.is_share or limit.amount <= 100 else None

    def exceeded(self, dead: int, total: int) -> bool:
        """Whether this number of dead items exceeds the limit."""
        # Decimal and int multiply exactly, so 1% of 300 is exactly 3.
        return dead * 100 > self.amount * total if self.is_share else dead > self.amount

    def __str__(self) -> str:
        return f"{self.amount}%" if self.is_share else str(self.amount)
