"""Outcomes of attempts, and what the ledger does with the item.

A fetcher or an author names an outcome class; `decide_attempt` turns it into a decision, which the ledger executes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from shoal.errors import InvalidSetting
from shoal.model.item import Lease, NewItem, PreparedItem
from shoal.model.record_key import RecordKey
from shoal.model.redaction import redacted

# Before the error of an item that has used up its tries.
EXCEEDED_RETRIES = "Exceeded retries: "


class OutcomeClass(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    PERMANENT = "permanent"
    TRANSIENT = "transient"
    THROTTLED = "throttled"
    BLOCKED = "blocked"
    SKIPPED = "skipped"
    # The rest is set by the ledger, never by a worker. DUPLICATE: a redirect leads to the page of another item.
    DUPLICATE = "duplicate"
    CRASHED = "crashed"
    POISON = "poison"
    RELEASED = "released"


class DecisionKind(StrEnum):
    """What the ledger does with the item. THROTTLED blocks its lane; PUT_OFF does not, because another host asked.

    EGRESS is like PUT_OFF: no exit could be used.
    """

    DONE = "done"
    DEAD = "dead"
    SKIPPED = "skipped"
    RETRY = "retry"
    THROTTLED = "throttled"
    PUT_OFF = "put_off"
    EGRESS = "egress"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The delay of a retry: `factor ** tries` seconds, at most `cap`, plus `jitter` (0.2 = up to 20 % more)."""

    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.2

    def checked(self) -> RetryPolicy:
        if not (math.isfinite(self.factor) and 1 <= self.factor <= 10):
            raise InvalidSetting(f"The backoff factor is {self.factor!r}; it must be from 1 to 10.")
        if not (math.isfinite(self.cap) and 0 < self.cap <= 86_400):
            raise InvalidSetting(f"The backoff cap is {self.cap!r}; it must be above 0 and at most 86400 seconds.")
        if not 0 <= self.jitter <= 1:
            raise InvalidSetting(f"The jitter is {self.jitter!r}; it must be from 0 to 1.")
        return self

    def base_delay(self, tries: int) -> float:
        """Seconds to wait after so many tries, before jitter. Never overflows."""
        if tries * math.log(self.factor) >= math.log(self.cap):
            return self.cap
        return min(self.cap, self.factor**tries)

    def delay(self, tries: int, rng: random.Random) -> float:
        """Seconds to wait, jitter included; never above the cap."""
        return min(self.cap, self.base_delay(tries) * (1 + self.jitter * rng.random()))


class AttemptDecision(msgspec.Struct, frozen=True):
    kind: DecisionKind
    outcome: OutcomeClass
    delay: float = 0.0
    error: str | None = None


class FinishedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A finished attempt, as a worker commits it.

    `records` are JSON texts (see `record_text`); `record_keys` is empty or has the key of each of them. Follow-ups that
    are prepared are not checked again. Records and follow-ups are stored when the item is done or dead. `seconds`: how
    long the attempt took; `waited`: from the time the item became claimable until it began, None when unknown.
    """

    lease: Lease
    decision: AttemptDecision
    records: tuple[str, ...] = ()
    record_keys: tuple[RecordKey, ...] = ()
    follow_ups: tuple[NewItem | PreparedItem, ...] = ()
    seconds: float = 0.0
    detail: Mapping[str, Any] | None = None
    waited: float | None = None


class RedirectVisit(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is about to request the target of a redirect.

    `via`: the key hash of the target before, when that redirected in turn. `shown`: the target's URL for messages.
    """

    lease: Lease
    target: PreparedItem
    via: bytes | None = None
    shown: str = ""
    seconds: float = 0.0


class VisitDecision(StrEnum):
    """What the attempt does with the target of a redirect.

    VISIT: request it. DUPLICATE: it is the page of another item; the ledger has ended this item as skipped. WAIT: an
    item that runs now has the same target, so try again later. LOST: the lease is no longer valid.
    """

    VISIT = "visit"
    DUPLICATE = "duplicate"
    WAIT = "wait"
    LOST = "lost"


class RedirectReply(msgspec.Struct, frozen=True):
    """`same_as`: the item whose page the target is, if it is another one."""

    decision: VisitDecision
    same_as: int | None = None


DONE = AttemptDecision(DecisionKind.DONE, OutcomeClass.DONE)
MAX_ERROR_CHARS = 4_000


def decide_attempt(
    outcome: OutcomeClass,
    *,
    tries: int,
    max_attempts: int,
    error: str | None = None,
    retry_after: float | None = None,
    own_lane: bool = True,
    policy: RetryPolicy,
    rng: random.Random,
) -> AttemptDecision:
    """The decision on an attempt. `tries` is how many were charged before this one.

    A throttled attempt is not charged. `own_lane`: the item's own lane must wait. `max_attempts` counts all tries: 4
    means one try and three retries.
    """
    error = clean_error(error)
    match outcome:
        case OutcomeClass.DONE:
            return DONE
        case OutcomeClass.PERMANENT:
            return AttemptDecision(DecisionKind.DEAD, outcome, 0.0, error)
        case OutcomeClass.SKIPPED:
            return AttemptDecision(DecisionKind.SKIPPED, outcome, 0.0, error)
        case OutcomeClass.THROTTLED:
            wait = policy.delay(tries + 1, rng) if retry_after is None else max(0.0, retry_after)
            kind = DecisionKind.THROTTLED if own_lane else DecisionKind.PUT_OFF
            return AttemptDecision(kind, outcome, min(wait, 86_400.0), error)
        case OutcomeClass.TRANSIENT | OutcomeClass.BLOCKED:
            if tries + 1 >= max_attempts:
                prefix = EXCEEDED_RETRIES if tries else ""  # of an item that was tried once nothing was exceeded
                return AttemptDecision(DecisionKind.DEAD, outcome, 0.0, f"{prefix}{error or outcome.value}")
            wait = policy.delay(tries + 1, rng)
            return AttemptDecision(DecisionKind.RETRY, outcome, max(wait, retry_after or 0.0), error)
        case _:
            raise InvalidSetting(f"{outcome.value} is set by the ledger only, not by a worker.")


def clean_error(error: str | None) -> str | None:
    """An error text that can be stored and shown: no NUL, no lone surrogates, no secrets, bounded length."""
    if error is None:
        return None
    text = redacted(error[: 2 * MAX_ERROR_CHARS]).replace("\0", "\\0").encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 3] + "..."
