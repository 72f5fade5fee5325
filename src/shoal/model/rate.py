"""Rates as people write them: `2/s`, `30/min`, `1/10s`."""

from __future__ import annotations

import re

from shoal.errors import InvalidSetting
from shoal.model.lane import MAX_LANE_DELAY

_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_RATE = re.compile(rf"(?P<starts>{_NUMBER})\s*/\s*(?P<count>{_NUMBER})?\s*(?P<unit>[a-z]+)", re.ASCII)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
_EXAMPLES = "Write starts per time, such as 2/s, 30/min, 1/10s or 500/day."


def parse_rate(text: str) -> float:
    """Seconds between two starts: `2/s` is 0.5. Raises InvalidSetting for what is not a rate."""
    # str() because an author may write a bare number, which is refused like any other text that is no rate.
    match = _RATE.fullmatch(str(text).strip().lower())
    if match is None:
        raise InvalidSetting(f"{text!r} is not a rate.", remedy=_EXAMPLES)
    unit = _SECONDS.get(match["unit"])
    if unit is None:
        raise InvalidSetting(
            f"The rate {text!r} has the unit {match['unit']!r}; Shoal knows s, min, h and d.", remedy=_EXAMPLES
        )
    starts = float(match["starts"])
    if starts == 0:
        raise InvalidSetting(f"The rate {text!r} would never start anything.", remedy=_EXAMPLES)
    pause = float(match["count"] or 1) * unit / starts
    if not 0 < pause <= MAX_LANE_DELAY:
        raise InvalidSetting(
            f"The rate {text!r} means {pause:g} seconds between two starts; more than 0 and at most "
            f"{MAX_LANE_DELAY:.0f} are possible.",
            remedy=_EXAMPLES,
        )
    return pause
