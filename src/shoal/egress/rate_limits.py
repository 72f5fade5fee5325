"""What sites say about their limits in the headers of a response, and which budget a URL belongs to. Pure rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import urlsplit

from shoal.fetch.classify import read_date, read_decimal, retry_after
from shoal.model.egress import BudgetPolicy, SiteBudget

DEFAULT_RESOURCE = "core"
# A site whose pause ends never is not believed.
MAX_RESET_SECONDS = 86_400.0
# Times of whole seconds may be rounded up or down.
_ROUNDING = 1.0
# How far the clocks of a site without a Date header and of this machine may be apart.
_CLOCKS_APART = 5.0
# Numbers above are times since 1970, in seconds or in milliseconds.
_EPOCH = 1e9
_EPOCH_MILLIS = 1e11
_MAX_VALUE = 2**31 - 1
_PREFIXES = ("x-ratelimit-", "ratelimit-", "x-rate-limit-")
_NAME = re.compile(r"[\w./-]{1,100}", re.ASCII)
_NUMBER = re.compile(r"\s*\"?([0-9]{1,18}(?:\.[0-9]{1,9})?)", re.ASCII)
_PARAMETER = re.compile(r"([a-z][a-z0-9_-]*)\s*=\s*\"?([0-9]{1,18}(?:\.[0-9]{1,9})?)", re.ASCII)
# Segments in front of the one that tells the kind of call: /api/v3/search.
_VERSION = re.compile(r"api|rest|v[0-9]+(\.[0-9]+)?", re.ASCII)
# What GitHub has besides its core budget.
_KNOWN = {
    "api.github.com": {
        "/search/code": ("code_search", BudgetPolicy(10, 60.0)),
        "/search": ("search", BudgetPolicy(30, 60.0)),
        "/graphql": ("graphql", None),
    }
}
MAX_RESOURCES = 50
_MAX_LEARNED = 1_000


def site_budget(headers: Mapping[str, str], now: datetime | None = None) -> SiteBudget | None:
    """What the headers of a response say; None for nothing. `now`: the time at the site if it has no Date header."""
    names = " ".join(headers).lower()
    if "ratelimit" not in names and "rate-limit" not in names and "retry-after" not in names:
        return None
    lower = {name.lower(): value for name, value in headers.items()}
    waits = lower.get("retry-after")
    date = _read_header_date(lower.get("date"))
    site_now = date or now or datetime.now(UTC)
    apart = _ROUNDING if date is not None else _CLOCKS_APART
    values = _structured(lower) or _separate(lower)
    remaining, limit, used = (_whole(values.get(name)) for name in ("remaining", "limit", "used"))
    if remaining is None and limit is not None and used is not None:
        remaining = max(0, limit - used)
    reset, slack = _reset(values.get("reset"), site_now, apart)
    resource = values.get("resource", "").strip()
    said = SiteBudget(
        remaining=remaining,
        limit=limit,
        reset_seconds=reset,
        reset_slack=slack,
        retry_after=None if waits is None else retry_after(waits, site_now),
        resource=resource if _NAME.fullmatch(resource) else None,
    )
    return None if said == SiteBudget() else said


@lru_cache(64)
def _read_header_date(text: str | None) -> datetime | None:
    """Many answers are of the same second."""
    return read_date(text)


def _separate(lower: Mapping[str, str]) -> dict[str, str]:
    """`x-ratelimit-remaining: 12` and its kin, by the last word of the name."""
    for prefix in _PREFIXES:
        found = {name.removeprefix(prefix): value for name, value in lower.items() if name.startswith(prefix)}
        if "remaining" in found or "limit" in found or "used" in found:
            return found
    return {}


def _structured(lower: Mapping[str, str]) -> dict[str, str]:
    """The RateLimit field: `"default";r=50;t=30` with its RateLimit-Policy, or `limit=100, remaining=50, reset=30`.

    Of several budgets the one counts that has the fewest calls left.
    """
    field = lower.get("ratelimit")
    if field is None or len(field) > 1_000:
        return {}
    named = dict(_PARAMETER.findall(field))
    if "remaining" in named:
        return named
    quotas = {
        part.split(";")[0].strip(): dict(_PARAMETER.findall(part))
        for part in lower.get("ratelimit-policy", "")[:1_000].split(",")
    }
    found: list[dict[str, str]] = []
    for part in field.split(","):
        told = dict(_PARAMETER.findall(part))
        if "r" in told:
            quota = quotas.get(part.split(";")[0].strip(), {}).get("q")
            renamed = {"remaining": told["r"], "reset": told.get("t"), "limit": quota}
            found.append({name: value for name, value in renamed.items() if value is not None})
    return min(found, key=lambda told: float(told["remaining"]), default={})


def _whole(text: str | None) -> int | None:
    """The first number of a value such as `100, 100;w=60`."""
    found = None if text is None else _NUMBER.match(text)
    return None if found is None else int(min(float(found[1]), _MAX_VALUE))


def _reset(text: str | None, site_now: datetime, apart: float) -> tuple[float | None, float]:
    """Seconds until the reset, at most, and how much earlier it may be."""
    if text is None:
        return None, 0.0
    number = read_decimal(text)
    if number is None:
        date = read_date(text)
        if date is None:
            return None, 0.0
        number = date.timestamp()
    if number > _EPOCH_MILLIS:
        number /= 1_000
    if number > _EPOCH:
        # The Date header is older than the answer by up to a second.
        seconds, slack = number - site_now.timestamp(), apart
        if apart > _ROUNDING:
            seconds, slack = seconds + apart, 2 * apart
    else:
        seconds, slack = number + _ROUNDING, 2 * _ROUNDING
    return min(max(0.0, seconds), MAX_RESET_SECONDS), slack


class Resources:
    """Which budget the call of a URL belongs to, by what is configured, known of a host, and told by the site."""

    def __init__(self, budget: BudgetPolicy | None, budgets: Mapping[str, BudgetPolicy]) -> None:
        self._budget = budget
        self._budgets = budgets
        self._paths = sorted((name for name in budgets if name.startswith("/")), key=len, reverse=True)
        self._names = frozenset(name for name in budgets if not name.startswith("/"))
        self._told: dict[tuple[str, str, str], str] = {}
        self._known: dict[str, BudgetPolicy | None] = {}

    def of(self, url: str, host: str | None) -> str:
        """`host`: that of the URL."""
        host = host or ""
        if not self._budgets and not self._told and host not in _KNOWN:
            return DEFAULT_RESOURCE
        path = urlsplit(url).path or "/"
        for prefix in self._paths:
            if _is_under(path, prefix):
                return prefix
        first, second = _segments(path)
        told = self._told.get((host, first, second))
        if told is not None:
            return told
        for prefix, (name, policy) in _KNOWN.get(host, {}).items():
            if _is_under(path, prefix):
                self._known.setdefault(name, policy)
                return name
        return first if first in self._names else DEFAULT_RESOURCE

    def learn(self, url: str, host: str | None, resource: str) -> bool:
        """The site said which budget a URL belongs to. False when it is not believed."""
        if self.of(url, host) == resource:
            return True
        path = urlsplit(url).path or "/"
        if any(_is_under(path, prefix) for prefix in self._paths):
            return False
        if (resource not in self._known and len(self._known) >= MAX_RESOURCES) or len(self._told) >= _MAX_LEARNED:
            return False
        self._known.setdefault(resource, None)
        self._told[(host or "", *_segments(path))] = resource
        return True

    def policy(self, resource: str) -> BudgetPolicy | None:
        if resource in self._budgets:
            return self._budgets[resource]
        return self._budget if resource == DEFAULT_RESOURCE else self._known.get(resource)


def _is_under(path: str, prefix: str) -> bool:
    prefix = prefix.rstrip("/")
    return path == prefix or path.startswith(f"{prefix}/")


def _segments(path: str) -> tuple[str, str]:
    """The first two segments of a path, without those of a version."""
    segments: Iterable[str] = (part for part in path.lower().split("/") if part and not _VERSION.fullmatch(part))
    first = next(iter(segments), "")
    return first[:100], next(iter(segments), "")[:100]
