"""A site for members: pages need a session, which a login begins and the site may end. It logs what happened."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any, Self

import msgspec
from aiohttp import web

PASSWORD = "open-sesame-7"


# An application that keeps its token in the storage of the browser.
APP_LOGIN = """<input id="password"><button>Enter</button><script>
document.querySelector("button").onclick = async () => {
    const password = document.querySelector("#password").value;
    const answer = await fetch("/token", {method: "POST", body: new URLSearchParams({password})});
    localStorage.setItem("token", (await answer.json()).token);
    document.body.append(Object.assign(document.createElement("p"), {id: "in"}));
};
</script>"""
APP_PAGE = """<main></main><script>
const item = location.pathname.replace("/app/", "/item/");
fetch(item, {headers: {Authorization: `Bearer ${localStorage.getItem("token")}`}}).then(async answer => {
    document.querySelector("main").innerHTML = answer.ok ? await answer.text() : "<b>logged out</b>";
});
</script>"""


class MemberVisit(msgspec.Struct):
    """One request. `session`: the cookie or token that came with it; `exit`: its header X-Exit."""

    method: str
    path: str
    status: int
    session: str
    exit: str
    at: float


class MemberSite:
    """Use it as a context; it runs in a thread, so that other processes can visit it.

    GET and POST /login (a form with a token of its own) begin a session by a cookie, POST /token by a bearer token.
    /item/N and /file/N need one, else they answer 401 and remove the cookie; /soft/N answers 200 with a login form.
    /renew sets a further cookie. /app/login and /app/N are an application in JavaScript that uses /token and /item/N.

    `one_at_a_time`: a new session ends the older ones. `refuses`: paths that no session helps for. `login_status`: what
    /login answers instead. `blocks`: exits that may not log in. `delay`: seconds that an item takes. `ends_after`: so
    many items end all sessions, once. `holds_at`: after so many items no further one is answered until it is None, a
    request without a session is refused all the same.
    """

    def __init__(self, *, one_at_a_time: bool = False, delay: float = 0.0, robots: str | None = None) -> None:
        self.one_at_a_time = one_at_a_time
        self.delay = delay
        self.robots = robots
        self.password = PASSWORD
        self.refuses: set[str] = set()
        self.refuses_all = False
        self.blocks: set[str] = set()
        self.login_status = 200
        self.ends_after: int | None = None
        self.holds_at: int | None = None
        self.log: list[MemberVisit] = []
        self.logins: list[str] = []
        self._sessions: set[str] = set()
        self._forms: set[str] = set()
        self._served = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *exception: object) -> None:
        self._do(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def end_sessions(self) -> None:
        """As a site does when its sessions time out."""
        self._do(self._end_sessions())

    def statuses(self, start: str = "/item/") -> Counter[int]:
        return Counter(visit.status for visit in self.log if visit.path.startswith(start))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _end_sessions(self) -> None:
        self._sessions.clear()

    async def _answer(self, request: web.Request) -> web.Response:
        began = time.monotonic()
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        session = request.cookies.get("session", "") or bearer
        response = await self._respond(request, session)
        exit_ = request.headers.get("X-Exit", "")
        self.log.append(MemberVisit(request.method, request.path, response.status, session, exit_, began))
        return response

    async def _respond(self, request: web.Request, session: str) -> web.Response:
        path = request.path
        if path == "/robots.txt":
            return web.Response(status=404) if self.robots is None else web.Response(text=self.robots)
        if path in ("/login", "/token"):
            return await self._log_in(request)
        if path == "/renew":
            renewed = _html("renewed")
            renewed.set_cookie("visits", "renewed")
            return renewed
        if path == "/app/login":
            return _html(APP_LOGIN)
        if path.startswith("/app/"):
            return _html(APP_PAGE)
        while self.holds_at is not None and self._served >= self.holds_at and self._knows(session, path):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        known = self._knows(session, path)
        if self.delay:
            await asyncio.sleep(self.delay)
        if path.startswith("/soft/") and not known:
            return _html('<form method="post" action="/login"></form>')
        if not known:
            refused = web.Response(status=401)
            refused.set_cookie("session", "", max_age=0)
            return refused
        self._served += 1
        if self._served == self.ends_after:
            self._sessions.clear()
        return _html(f"<h1>{path.rpartition('/')[2]}</h1>")

    def _knows(self, session: str, path: str) -> bool:
        return session in self._sessions and path not in self.refuses and not self.refuses_all

    async def _log_in(self, request: web.Request) -> web.Response:
        if request.headers.get("X-Exit") in self.blocks:
            return web.Response(status=403)
        if self.login_status != 200:
            return web.Response(status=self.login_status, headers={"Retry-After": "0.2"})
        if request.method == "GET":
            self._forms.add(form := f"form-{len(self._forms)}")
            return _html(
                f'<form method="post" action="/login"><input type="hidden" name="csrf" value="{form}">'
                '<input name="user"><input name="password" type="password"></form>'
            )
        given = await request.post()
        wanted_form = request.path == "/token" or given.get("csrf") in self._forms
        if given.get("password") != self.password or not wanted_form:
            return _html("wrong password")
        if self.one_at_a_time:
            self._sessions.clear()
        token = f"session-{len(self.logins) + 1}-{time.monotonic_ns()}"
        self.logins.append(token)
        self._sessions.add(token)
        if request.path == "/token":
            return web.json_response({"token": token})
        welcome = _html("welcome")
        welcome.set_cookie("session", token, httponly=True, path="/")
        return welcome


def _html(body: str) -> web.Response:
    return web.Response(text=body, content_type="text/html")
