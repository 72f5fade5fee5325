"""Dates and numbers as sites write them. What cannot be read, or is out of every range, counts as absent."""

from __future__ import annotations

import datetime as dt
import math
import re
from email.utils import parsedate_to_datetime

# No date or number is longer; Python takes quadratic time to read very long ones.
_LONGEST = 100
_MONTH = re.compile(r"\d{4}(-\d\d)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]*)?", re.ASCII)


def read_date(text: str | None) -> dt.datetime | None:
    """A date of HTTP, mail or RSS (RFC 5322) or of a sitemap (W3C), in UTC; without a zone it is taken for UTC."""
    text = (text or "").strip()
    if not text or len(text) > _LONGEST:
        return None
    if _MONTH.fullmatch(text):
        text = f"{text}-01" if len(text) == 7 else f"{text}-01-01"
    for read in (dt.datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            # A zone may move a date at the end of the calendar beyond it.
            return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
        except (ValueError, OverflowError, TypeError, IndexError):
            continue
    return None


def read_decimal(text: str | None) -> float | None:
    """A plain decimal number of at most eighteen digits before its point."""
    text = (text or "").strip()
    return float(text) if len(text) <= _LONGEST and _DECIMAL.fullmatch(text) else None


def ratio(numerator: int, denominator: int) -> float:
    """The quotient of two numbers of any size; infinite where it is too large for a float."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf
