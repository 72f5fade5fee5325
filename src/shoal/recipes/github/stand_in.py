"""A stand-in of GitHub's API: search, users, repositories and social accounts, with the limits of each token.

`python -m shoal.recipes.github.stand_in --port 8002 --seed 7 --fault NAME`. Tokens are any texts; the site counts the
calls of each in windows, announces what remains, and refuses more. A visit's note names the token by its number, in the
order of their first calls, the kind of call, and what remained: `token 2 core 41`; then `incomplete` for such a search,
and `spent` when an earlier answer had announced that nothing remains.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from shoal.demo.stand_in import JSON, StandIn, StandInRequest, StandInResponse, latency_of, main
from shoal.recipes.github.population import PLACES, Population

SEARCH_CAP = 1_000
ANONYMOUS_CALLS = 60
BAD_TOKEN = "stolen-token-0000"
_QUERY = re.compile(r'location:"(?P<place>[^"]+)" created:(?P<since>\S+)\.\.(?P<until>\S+)')


class Limit:
    """Calls of one token and kind in the window that runs."""

    def __init__(self, calls: int, seconds: int) -> None:
        self.calls = calls
        self.seconds = seconds
        self.window = 0
        self.used = 0
        self.announced_at = float("inf")  # when the site has announced that nothing remains

    def take(self) -> bool:
        """Count a call; False: it is one too many."""
        window = int(time.time() // self.seconds)
        if window != self.window:
            self.window, self.used, self.announced_at = window, 0, float("inf")
        if self.used >= self.calls:
            return False
        self.used += 1
        return True

    def headers(self, kind: str) -> dict[str, str]:
        announced = {"limit": self.calls, "remaining": self.calls - self.used, "used": self.used}
        announced["reset"] = (self.window + 1) * self.seconds
        return {f"x-ratelimit-{name}": str(value) for name, value in announced.items()} | {"x-ratelimit-resource": kind}


class GitHubStandIn(StandIn):
    """`limits`: calls and seconds of a window, by kind of call. `places`: who lives where."""

    name = "github"
    FAULTS: ClassVar[Mapping[str, str]] = {
        "missing": "every 40th developer is gone: 404",
        "errors": "every 9th address answers 502 the first time",
        "exhausted": "every 25th call of a token finds it used up by another program: 403, nothing remains",
        "throttled": "every 17th address answers 429 with Retry-After: 1 the first time",
        "secondary": "every 13th address answers 403 about a secondary limit, with Retry-After: 1, the first time",
        "incomplete": "every 3rd search times out the first time: its count and its results are too small",
        "bad_token": f"the token {BAD_TOKEN} is answered with 401",
    }

    def __init__(
        self,
        *,
        seed: int = 7,
        latency: tuple[float, float] = (0.0, 0.0),
        faults: Collection[str] = (),
        places: Sequence[tuple[str, int]] = PLACES,
        limits: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(seed=seed, latency=latency, faults=faults)
        self.people = Population(seed, places)
        self._kinds = dict(limits or {"core": (5_000, 3_600), "search": (30, 60)})
        self._limits: dict[tuple[str, str], Limit] = {}
        self._asked: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}

    async def answer(self, request: StandInRequest) -> StandInResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        kind = "search" if request.path.startswith("/search/") else "core"
        who = f"token {self._number(token)} {kind}" if token else f"no token {kind}"
        if token == BAD_TOKEN and "bad_token" in self.faults:
            return _answer({"message": "Bad credentials"}, 401, note=f"{who} bad")
        limit = self._limit(token, kind)
        accepted = limit.take() and not self._is_exhausted(token, limit)
        note = "spent" if time.monotonic() > limit.announced_at else ""
        announced_at = time.monotonic() + latency_of(request.path, self.latency)
        if not accepted:
            limit.announced_at = min(limit.announced_at, announced_at)
            return _refused("API rate limit exceeded", 403, limit.headers(kind), note=f"{who} 0 {note}".strip())
        headers = limit.headers(kind)
        left = limit.calls - limit.used
        if not left:
            limit.announced_at = announced_at
        response = self._fault(request, headers) or self._found(request, headers)
        return StandInResponse(
            body=response.body,
            status=response.status,
            content_type=JSON,
            headers=response.headers,
            note=" ".join(filter(None, (who, str(left), response.note, note))),
        )

    def _number(self, token: str) -> int:
        return self._numbers.setdefault(token, len(self._numbers) + 1)

    def _limit(self, token: str, kind: str) -> Limit:
        if (token, kind) not in self._limits:
            calls, seconds = self._kinds[kind]
            self._limits[token, kind] = Limit(calls if token else min(calls, ANONYMOUS_CALLS), seconds)
        return self._limits[token, kind]

    def _is_exhausted(self, token: str, limit: Limit) -> bool:
        self._calls[token] += 1
        if "exhausted" not in self.faults or self._calls[token] % 25:
            return False
        limit.used = limit.calls
        return True

    def _fault(self, request: StandInRequest, headers: Mapping[str, str]) -> StandInResponse | None:
        """The answer of a fault that is on: each address has it once."""
        address = _address(request)
        self._asked[address] += 1
        if self._asked[address] > 1:
            return None
        number = sum(address.encode())
        if "errors" in self.faults and number % 9 == 0:
            return _answer({"message": "Server Error"}, 502, headers)
        if "throttled" in self.faults and number % 17 == 1:
            return _refused("Too many requests", 429, {**headers, "Retry-After": "1"})
        if "secondary" in self.faults and number % 13 == 2:
            return _refused("You have exceeded a secondary rate limit", 403, {**headers, "Retry-After": "1"})
        return None

    def _is_first_of(self, request: StandInRequest, *, every: int) -> bool:
        """Whether this is the first call of one address in so many."""
        address = _address(request)
        return self._asked[address] == 1 and sum(address.encode()) % every == 0

    def _found(self, request: StandInRequest, headers: Mapping[str, str]) -> StandInResponse:
        parts = request.path.strip("/").split("/")
        if parts == ["search", "users"]:
            return self._search(request, headers)
        number = self.people.number(parts[1]) if parts[0] == "users" and len(parts) in (2, 3) else None
        if number is None or ("missing" in self.faults and number % 40 == 5):
            return _answer({"message": "Not Found"}, 404, headers)
        if len(parts) == 2:
            return _answer(self.people.user(number), headers=headers)
        if parts[2] == "social_accounts":
            return _answer(_page(self.people.social_accounts(number), request), headers=headers)
        if parts[2] == "repos":
            return _answer(_page(self.people.repositories(number), request), headers=headers)
        return _answer({"message": "Not Found"}, 404, headers)

    def _search(self, request: StandInRequest, headers: Mapping[str, str]) -> StandInResponse:
        asked = _QUERY.search(request.query.get("q", ""))
        if asked is None:
            return _answer({"message": "Validation Failed"}, 422, headers)
        since, until = (dt.date.fromisoformat(asked[name]) for name in ("since", "until"))
        numbers = self.people.search(asked["place"], since, until)
        is_incomplete = "incomplete" in self.faults and self._is_first_of(request, every=3)
        if is_incomplete:
            numbers = numbers[: len(numbers) // 2]
        first = (int(request.query.get("page", "1")) - 1) * int(request.query.get("per_page", "30"))
        if first >= SEARCH_CAP:
            return _answer({"message": "Only the first 1000 search results are available"}, 422, headers)
        shown = [
            {"login": login, "html_url": f"https://github.com/{login}", "type": "User"}
            for login in map(self.people.login, _page(numbers[:SEARCH_CAP], request))
        ]
        found = {"total_count": len(numbers), "incomplete_results": is_incomplete, "items": shown}
        return _answer(found, headers=headers, note="incomplete" if is_incomplete else "")


def _address(request: StandInRequest) -> str:
    return request.path + str(sorted(request.query.items()))


def _page(values: list[Any], request: StandInRequest) -> list[Any]:
    size, page = min(int(request.query.get("per_page", "30")), 100), int(request.query.get("page", "1"))
    return values[(page - 1) * size : page * size]


def _answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None, note: str = "") -> StandInResponse:
    return StandInResponse(
        body=json.dumps(value), status=status, content_type=JSON, headers=dict(headers or {}), note=note
    )


def _refused(message: str, status: int, headers: Mapping[str, str], note: str = "") -> StandInResponse:
    return _answer({"message": message, "documentation_url": "https://docs.github.com/rest"}, status, headers, note)


if __name__ == "__main__":
    raise SystemExit(main(GitHubStandIn))
