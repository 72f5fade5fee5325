"""A stand-in for an API with GitHub's limits, on loopback, which counts each token's calls by its own clock.

Primary limits are calls per token and resource in fixed windows; /search/... belongs to `search`, the rest to `core`.
The secondary limit is calls per token and second. Windows begin at whole seconds, as their ends are told in whole
seconds. It runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

Limits = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class ApiCall:
    """A call as the API counted it: `number`: the how-manieth of its window; `is_over`: one too many.

    `seconds_under_way`: since its worker took it from the budget, if it says when in X-Taken-At.
    """

    at: float
    token: str
    resource: str
    window: int
    number: int
    is_over: bool
    path: str
    status: int
    seconds_under_way: float = 0.0


@dataclass
class TokenApi:
    """`limits`: calls and seconds of a window, by resource. `says`: whether it tells its limits in headers.

    `bad`: tokens that are answered with 401. `status`: of calls over a limit. `late`: seconds before each answer, after
    the call was counted. `per_second`: the secondary limit, told by Retry-After, or by a text alone.
    """

    limits: Limits
    says: bool = True
    bad: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    status: int = 403
    late: float = 0.0
    per_second: int | None = None
    tells_pause: bool = True
    calls: list[ApiCall] = field(default_factory=list)
    url: str = ""
    _counts: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    _bursts: Counter[tuple[str, int]] = field(default_factory=Counter)
    _loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        ready = threading.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._stopped = asyncio.Event()
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}"
            ready.set()
            await self._stopped.wait()
            await runner.cleanup()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="token-api")
        self._thread.start()
        assert ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def spend(self, token: str, calls: int, resource: str = "core") -> None:
        """Count calls that somebody else makes with a token."""
        self._counts[token, resource, math.floor(time.time() / self.limits[resource][1])] += calls

    @property
    def over(self) -> list[ApiCall]:
        return [call for call in list(self.calls) if call.is_over]

    def late_calls(self, seconds: float) -> Counter[tuple[str, int]]:
        """Calls that were under way for longer than this, by token and window."""
        return Counter((call.token, call.window) for call in list(self.calls) if call.seconds_under_way > seconds)

    def counted(self, resource: str = "core") -> Counter[tuple[str, int]]:
        """Calls by token and window."""
        return Counter((call.token, call.window) for call in list(self.calls) if call.resource == resource)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        now = time.time()
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        taken_at = request.headers.get("X-Taken-At")
        under_way = 0.0 if taken_at is None else time.clock_gettime(time.CLOCK_BOOTTIME) - float(taken_at)
        path = request.path
        resource = "search" if path.startswith("/search/") and "search" in self.limits else "core"
        if "url" in request.query:
            return web.Response(status=302, headers={"Location": request.query["url"]})
        limit, seconds = self.limits[resource]
        window = math.floor(now / seconds)
        if not token or token in self.bad or path in self.forbidden:
            self.calls.append(ApiCall(now, token, resource, window, 0, False, path, 401))
            return web.json_response({"message": "Bad credentials"}, status=401)
        self._bursts[token, math.floor(now)] += 1
        if self.per_second is not None and self._bursts[token, math.floor(now)] > self.per_second:
            self.calls.append(ApiCall(now, token, resource, window, 0, True, path, self.status))
            headers = {"Retry-After": "1"} if self.tells_pause else {}
            message = "You have exceeded a secondary rate limit."
            return web.json_response({"message": message}, status=self.status, headers=headers)
        self._counts[token, resource, window] += 1
        number = self._counts[token, resource, window]
        is_over = number > limit
        status = self.status if is_over else 200
        self.calls.append(ApiCall(now, token, resource, window, number, is_over, path, status, under_way))
        headers = {}
        if self.says:
            headers = {
                "X-RateLimit-Limit": str(limit),
                "X-RateLimit-Remaining": str(max(0, limit - number)),
                "X-RateLimit-Used": str(number),
                "X-RateLimit-Reset": str((window + 1) * seconds),
                "X-RateLimit-Resource": resource,
            }
        if self.late:
            await asyncio.sleep(self.late)
        body = {"message": "API rate limit exceeded"} if is_over else {"path": path}
        return web.Response(text=json.dumps(body), status=status, headers=headers, content_type="application/json")
