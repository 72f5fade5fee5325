"""The policy of a stage: rate, concurrency, timeout and retries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypedDict, TypeGuard, get_args

import msgspec

from shoal.errors import InvalidScraper, InvalidSetting
from shoal.model.lane import LanePolicy, parse_rate
from shoal.model.outcome import RetryPolicy
from shoal.model.run import check_count

# When no stage sets a pace: one request at a time and one second between two starts, except on this machine.
GENTLE_DELAY = 1.0
GENTLE_LIMIT = 1
DEFAULT_PER_HOST = 8
DEFAULT_TIMEOUT = 60.0
MAX_TIMEOUT_SECONDS = 86_400.0
# A member of a collection runs in one attempt, which needs time left to end it.
MAX_MEMBER_SECONDS = MAX_TIMEOUT_SECONDS - 3_600
DEFAULT_RETRIES = 3
MAX_RECORDS = 1_000_000_000_000
Delay = float | tuple[float, float]
Client = Literal["http", "chrome", "browser"]
Pace = Literal["host", "identity", "worker"]
MaxRecordsOf = Literal["run", "scraper"]


class RetryOptions(TypedDict, total=False):
    """Retry options, given for a stage, for a scraper, in its table, or as a setting."""

    retries: int | None
    backoff_factor: float | None
    backoff_cap: float | None
    backoff_jitter: float | None


RETRY_OPTIONS = tuple(RetryOptions.__annotations__)


class StagePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage is run. None means that nothing was set.

    `delay`: seconds between two starts in a lane, from..to. `concurrency`: items of a lane that run at once. `timeout`:
    seconds one attempt may take. `retries`: further attempts after the first. `backoff_*`: their delays, see
    `RetryPolicy`. `set_in_code`: which of `RETRY_OPTIONS` the code gave. `retries_overridden`: retries were given for
    this call, which outranks what items were stored with. `egress`: the pool that requests go out through; None or
    empty: directly. `client`: what sends them. `pace`: whether the delay is between two starts at a host, between two
    of one identity at a host, or between two of one worker at a host. `max_records`: with so many records stored, a run
    ends the stage; None or 0: never. `max_records_of`: whether those of the run count, or of all runs of the scraper.
    """

    delay: tuple[float, float] | None = None
    concurrency: int | None = None
    timeout: float = DEFAULT_TIMEOUT
    retries: int = DEFAULT_RETRIES
    backoff_factor: float = RetryPolicy().factor
    backoff_cap: float = RetryPolicy().cap
    backoff_jitter: float = RetryPolicy().jitter
    ordered: bool = False
    set_in_code: frozenset[str] = frozenset()
    retries_overridden: bool = False
    egress: str | None = None
    client: Client = "http"
    pace: Pace = "host"
    max_records: int | None = None
    max_records_of: MaxRecordsOf = "run"

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(factor=self.backoff_factor, cap=self.backoff_cap, jitter=self.backoff_jitter)

    def max_attempts(self, stored: int) -> int:
        """The maximum of attempts of an item; `stored` is what the ledger has for it."""
        return self.retries + 1 if self.retries_overridden else stored

    @property
    def has_rate(self) -> bool:
        """Whether the author set a delay or a concurrency."""
        return self.delay is not None or self.concurrency is not None

    def lane(self, *, shared: bool = True) -> LanePolicy:
        low, high = (self.delay or (0.0, 0.0)) if self.pace == "host" else (0.0, 0.0)
        if self.ordered:
            return LanePolicy(limit=1, delay_min=low, delay_max=high, ordered=True, shared=False)
        limit = DEFAULT_PER_HOST if self.concurrency is None else self.concurrency
        return LanePolicy(limit=limit, delay_min=low, delay_max=high, shared=shared)

    def replace(  # noqa: PLR0913 - the options of a stage
        self,
        *,
        rate: str | None = None,
        delay: Delay | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff_factor: float | None = None,
        backoff_cap: float | None = None,
        backoff_jitter: float | None = None,
        egress: str | None = None,
        client: str | None = None,
        pace: str | None = None,
        max_records: int | None = None,
        max_records_of: str | None = None,
    ) -> StagePolicy:
        """A copy with these values. Raises InvalidSetting for values that are out of range."""
        given = {
            "delay": _delay(rate, delay),
            "concurrency": concurrency,
            "timeout": timeout,
            "retries": retries,
            "backoff_factor": backoff_factor,
            "backoff_cap": backoff_cap,
            "backoff_jitter": backoff_jitter,
            "egress": egress,
            "client": client,
            "pace": pace,
            "max_records": max_records,
            "max_records_of": max_records_of,
        }
        new = msgspec.structs.replace(self, **{name: value for name, value in given.items() if value is not None})
        new._check()
        return new

    def with_config(
        self,
        *,
        defaults: Mapping[str, Any],
        table: Mapping[str, Any],
        stage: Mapping[str, Any],
        overrides: Mapping[str, Any],
    ) -> StagePolicy:
        """A copy with the values of the configuration, from the weakest source to the strongest.

        `defaults` hold for all scrapers and only for what the code leaves out; `table` is the scraper's and `stage` the
        stage's, which outrank the code; `overrides` were given for this one call and outrank everything.
        """
        left_out = {name: value for name, value in defaults.items() if name not in self.set_in_code}
        new = self.replace(**left_out).replace(**table).replace(**stage).replace(**overrides)
        return msgspec.structs.replace(new, retries_overridden="retries" in overrides)

    def _check(self) -> None:
        check_count("retries", self.retries, 0, 999)
        if self.max_records is not None:
            check_count("max_records", self.max_records, 0, MAX_RECORDS)
        for name in ("backoff_factor", "backoff_cap", "backoff_jitter"):
            if not is_number(getattr(self, name)):
                raise InvalidSetting(f"{name} is {getattr(self, name)!r}; it must be a number.")
        self.retry.checked()
        if not (is_number(self.timeout) and 0 < self.timeout <= MAX_TIMEOUT_SECONDS):
            raise InvalidSetting(f"timeout is {self.timeout!r}; it must be a number of seconds from 0 to 86400.")
        choices = {"client": get_args(Client), "pace": get_args(Pace), "max_records_of": get_args(MaxRecordsOf)}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidSetting(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}.",
                    remedy="Choose one of them.",
                )
        if self.ordered and self.concurrency not in (None, 1):
            raise InvalidSetting("An ordered stage runs one item of a lane at a time: omit concurrency.")
        self.lane().checked()


def strictest(policies: list[StagePolicy]) -> LanePolicy:
    """The policy of a host's lane, which several stages share: the lowest limit and the longest delay of them.

    The default pace is gentle: an author who knows what a site can take sets a rate.
    """
    if not any(policy.has_rate for policy in policies):
        return LanePolicy(
            limit=GENTLE_LIMIT, delay_min=GENTLE_DELAY, delay_max=GENTLE_DELAY, loopback_limit=DEFAULT_PER_HOST
        )
    lanes = [policy.lane() for policy in policies]
    limits = [policy.concurrency for policy in policies if policy.concurrency is not None]
    return LanePolicy(
        limit=min(limits, default=DEFAULT_PER_HOST),
        delay_min=max(lane.delay_min for lane in lanes),
        delay_max=max(lane.delay_max for lane in lanes),
    )


def _delay(rate: str | None, delay: Delay | None) -> tuple[float, float] | None:
    if rate is not None and delay is not None:
        raise InvalidScraper("Give rate or delay, not both: rate='2/s' is the same as delay=0.5.")
    if rate is not None:
        seconds = parse_rate(rate)
        return (seconds, seconds)
    if delay is None:
        return None
    low, high = delay if isinstance(delay, tuple | list) and len(delay) == 2 else (delay, delay)
    if not (is_number(low) and is_number(high)):
        raise InvalidSetting(f"delay is {delay!r}; it must be seconds, or (from, to).")
    return (float(low), float(high))


def is_number(value: object) -> TypeGuard[float]:
    """Whether an author gave a finite number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
