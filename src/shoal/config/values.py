"""The kinds of values a setting can have: each turns what somebody wrote into a checked value, or refuses it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from shoal.config.alerts import Addresses
from shoal.config.sources import RawValue
from shoal.errors import InvalidSetting
from shoal.model.lane import parse_rate
from shoal.model.redaction import redacted
from shoal.model.run import DeadLimit

_BOOL_WORDS = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
MAX_AGENT = 500


class SettingType(Protocol):
    """A kind of value. `str()` of it completes the sentence "it must be"."""

    def read(self, name: str, given: RawValue) -> Any:
        """The checked value. Raises InvalidSetting."""


class NumberSetting(NamedTuple):
    kind: type[int] | type[float]
    low: float
    high: float
    unit: str = ""

    def read(self, name: str, given: RawValue) -> int | float:
        value = given.value
        try:
            # True is an int to Python, but nobody means a number by it.
            number = self.kind(value) if type(value) in (str, int, self.kind) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not self.low <= number <= self.high:
            raise given.invalid(name, str(self))
        return number

    def __str__(self) -> str:
        what = "a whole number" if self.kind is int else "a number"
        return f"{what}{f' of {self.unit}' if self.unit else ''} from {self.low:.10g} to {self.high:.10g}"


class ChoiceSetting(NamedTuple):
    options: tuple[str, ...]

    def read(self, name: str, given: RawValue) -> str:
        text = given.value.strip().lower() if isinstance(given.value, str) else None
        if text not in self.options:
            raise given.invalid(name, str(self))
        return text

    def __str__(self) -> str:
        return f"{', '.join(self.options[:-1])} or {self.options[-1]}"


class BoolSetting(NamedTuple):
    def read(self, name: str, given: RawValue) -> bool:
        answer = _BOOL_WORDS.get(str(given.value).strip().lower())
        if answer is None or not isinstance(given.value, str | bool | int):
            raise given.invalid(name, str(self))
        return answer

    def __str__(self) -> str:
        return "true or false"


class TextSetting(NamedTuple):
    """A line of text."""

    meaning: str

    def read(self, name: str, given: RawValue) -> str:
        return given.text(name, self.meaning)

    def __str__(self) -> str:
        return self.meaning


class FolderSetting(NamedTuple):
    """The path of a folder, or empty for none. An address would become a folder of that name."""

    empty: str

    def read(self, name: str, given: RawValue) -> str:
        if isinstance(given.value, str) and not given.value.strip():
            return ""
        text = given.text(name, str(self))
        if "://" in text:
            raise given.invalid(name, f"{self}, on this machine")
        return text

    def __str__(self) -> str:
        return f"the path of a folder, or empty for {self.empty}"


class UserAgentSetting(NamedTuple):
    """What is sent in a header must fit into one: anything else could forge further headers."""

    def read(self, name: str, given: RawValue) -> str:
        text = given.value.strip() if isinstance(given.value, str) else None
        if text is None or len(text) > MAX_AGENT or not text.isascii() or not text.isprintable():
            raise given.invalid(name, str(self))
        return text

    def __str__(self) -> str:
        return f"a line of at most {MAX_AGENT} ASCII characters"


class DeadLimitSetting(NamedTuple):
    def read(self, name: str, given: RawValue) -> DeadLimit:
        value = str(given.value) if type(given.value) is int else given.value
        limit = DeadLimit.parse(value) if isinstance(value, str) else None
        if limit is None:
            raise given.invalid(name, str(self))
        return limit

    def __str__(self) -> str:
        return "a share from 0% to 100%, or a count of items"


class TargetSetting(NamedTuple):
    def read(self, name: str, given: RawValue) -> str:
        text = given.text(name, str(self))
        if not (text.endswith((".py", ".yaml", ".yml", "/")) or ":" in text.strip(":")):
            raise given.invalid(name, str(self))
        return text

    def __str__(self) -> str:
        return "a file such as books.py or fijitimes.yaml, module:scraper, or a folder such as configs/"


class RateSetting(NamedTuple):
    def read(self, name: str, given: RawValue) -> str:
        text = given.text(name, str(self))
        try:
            parse_rate(text)
        except InvalidSetting as error:
            raise InvalidSetting(f"{name} (from {given.origin}): {error.message}", remedy=error.remedy) from None
        return text

    def __str__(self) -> str:
        return "starts per time, such as 2/s, 30/min or 1/10s"


class DelaySetting(NamedTuple):
    """Seconds, or two of them between which each pause is drawn."""

    limits: NumberSetting

    def read(self, name: str, given: RawValue) -> tuple[float, float]:
        ends = given.value if isinstance(given.value, list) else [given.value, given.value]
        if len(ends) != 2:
            raise given.invalid(name, str(self))
        try:
            low, high = (self.limits.read(name, RawValue(end, given.origin)) for end in ends)
        except InvalidSetting:
            raise given.invalid(name, str(self)) from None
        if low > high:
            raise given.invalid(name, f"{self}, the smaller first")
        return low, high

    def __str__(self) -> str:
        return f"{self.limits}, or [least, most]"


def shown_value(value: Any) -> Any:
    """A checked value, fit for printing."""
    if isinstance(value, DeadLimit | Addresses):
        return str(value)
    return redacted(value) if isinstance(value, str) else value
