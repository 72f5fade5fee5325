"""A running browser as pages see it: profiles, which are identities, and pages that attempts use one after another."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import AttemptEnded, Transient
from shoal.fetch.chromium import Chromium
from shoal.fetch.interception import Event, PageRequests
from shoal.fetch.session import Cookie
from shoal.fetch.tab import Tab, TabContext
from shoal.fetch.urls import parse_url

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession
    from playwright.async_api import Page as PlaywrightPage

    from shoal.fetch.forwarder import ProxyForwarder
    from shoal.fetch.proxy import RequestRoute
    from shoal.fetch.redirects import CookieJars

# A tab that only Shoal has used is used again so often.
MAX_USES = 50
MAX_POPUPS = 20
CLOSE_SECONDS = 5.0
# How long a request may wait for its frame to be announced.
_FRAME_SECONDS = 0.5


class RunningBrowser:
    """A browser with its profiles. `open_tabs`: those in use; `targets`: tabs opened so far.

    `user_agent`: None for Chromium's. `on_retired` is told why no more tabs are opened in it. `opening`: held while a
    profile is looked for.
    """

    def __init__(self, chromium: Chromium, user_agent: str | None, on_retired: Callable[[str], None]) -> None:
        self._on_retired = on_retired
        self.opening = asyncio.Lock()
        self.chromium = chromium
        self.profiles: OrderedDict[str, Profile] = OrderedDict()
        self.forwarders: set[ProxyForwarder] = set()
        self.open_tabs = 0
        self.targets = 0
        self.is_crashed = False
        self._is_retired = False
        self._is_closed = False
        self._frames: dict[str, LivePage] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.agent = _agent(chromium.browser.version, user_agent)
        self.user_agent: str = self.agent["userAgent"]
        chromium.browser.on("disconnected", lambda _: self._on_disconnected())

    @property
    def is_usable(self) -> bool:
        return not (self._is_retired or self._is_closed or self.is_crashed)

    def retire(self, reason: str) -> None:
        """Open no more tabs in it."""
        if not self._is_retired:
            self._is_retired = True
            self._on_retired(reason)

    async def intercept(self) -> None:
        """Hold every request of the browser until it is decided about."""
        session = self.chromium.session
        session.on("Fetch.requestPaused", self._on_paused)
        session.on("Fetch.authRequired", self._on_auth)
        await session.send("Fetch.enable", {"patterns": [{"urlPattern": "*"}], "handleAuthRequests": True})

    def add_frame(self, frame: str, live: LivePage) -> None:
        self._frames[frame] = live

    def remove_frame(self, frame: str) -> None:
        self._frames.pop(frame, None)

    async def send(self, method: str, parameters: dict[str, Any]) -> Any:
        """Talk to the browser; a request that is gone, or a browser, is no error."""
        from playwright.async_api import Error

        with suppress(Error):
            return await self.chromium.session.send(method, parameters)

    async def close(self) -> None:
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        await self.chromium.close()
        for forwarder in self.forwarders:
            await forwarder.close()

    def _on_paused(self, event: Event) -> None:
        live = self._frames.get(event.get("frameId", ""))
        if live is not None:
            live.on_paused(event)
        else:
            self._spawn(self._on_unknown_frame(event))

    async def _on_unknown_frame(self, event: Event) -> None:
        """A frame that is about to be announced, or something that belongs to no tab."""
        give_up = monotonic() + _FRAME_SECONDS
        while monotonic() < give_up and event["resourceType"] == "Document":
            await asyncio.sleep(0.01)
            live = self._frames.get(event.get("frameId", ""))
            if live is not None:
                live.on_paused(event)
                return
        await self.send("Fetch.failRequest", {"requestId": event["requestId"], "errorReason": "BlockedByClient"})

    def _on_auth(self, event: Event) -> None:
        response: dict[str, Any] = {"response": "Default"}
        if event["authChallenge"].get("source") == "Proxy":
            from shoal.fetch.forwarder import PASSWORD, USERNAME

            response = {"response": "ProvideCredentials", "username": USERNAME, "password": PASSWORD}
        order = {"requestId": event["requestId"], "authChallengeResponse": response}
        self._spawn(self.send("Fetch.continueWithAuth", order))

    def _on_disconnected(self) -> None:
        if not self._is_closed:
            self.is_crashed = True
            for live in set(self._frames.values()):
                live.crash = live.crash or Transient("the browser crashed")

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Profile:
    """Cookies, storage and the way out of one identity in one browser.

    `key`: None for a profile that one tab uses. `route`: None when the browser connects by itself. `idle`: pages that
    can be used again.
    """

    def __init__(
        self,
        browser: RunningBrowser,
        key: str | None,
        route: RequestRoute | None,
        forwarder: ProxyForwarder | None,
        context: BrowserContext,
    ) -> None:
        self.browser = browser
        self.key = key
        self.route = route
        self.forwarder = forwarder
        self.context = context
        self.idle: list[LivePage] = []
        self.in_use = 0
        self.is_stale = False
        self.saved_at = monotonic()
        self._in_browser: tuple[Cookie, ...] = ()
        self._in_http: tuple[Cookie, ...] = ()

    @classmethod
    async def create(
        cls,
        browser: RunningBrowser,
        key: str | None,
        route: RequestRoute | None,
        forwarder: ProxyForwarder | None,
        state: Any,
    ) -> Profile:
        options: dict[str, Any] = {}
        if forwarder is not None:
            browser.forwarders.add(forwarder)
            options["proxy"] = {"server": forwarder.address}
        if state is not None:
            options["storage_state"] = state
        context = await browser.chromium.browser.new_context(
            # Its requests belong to no tab, and outlive the attempt.
            service_workers="block",
            **options,
        )
        return cls(browser, key, route, forwarder, context)

    async def open(self, context: TabContext, jars: CookieJars | None) -> LivePage:
        """A page for a tab; `jars`: the cookies of plain requests. The profile is in use until it is released."""
        try:
            live = self.idle.pop() if self.idle else await self._new_page()
            await self.import_cookies(jars, context.jar)
            await live.begin(context)
        except BaseException:
            self.in_use -= 1
            raise
        return live

    async def _new_page(self) -> LivePage:
        page = await self.context.new_page()
        session = await self.context.new_cdp_session(page)
        live = LivePage(self.browser, self, page, session)
        await live.prepare()
        return live

    async def import_cookies(self, jars: CookieJars | None, jar: str | None) -> None:
        """Have the cookies that plain requests of this jar have got since."""
        if jars is None or jar is None or (found := jars.export(jar)) == self._in_http:
            return
        known = set(self._in_http)
        for cookie in found:
            if cookie not in known:
                with suppress(Exception):  # one that the browser does not take
                    await self.context.add_cookies([msgspec.to_builtins(cookie)])
        self._in_http = found

    async def export_cookies(self, jars: CookieJars | None, jar: str | None) -> None:
        """Give plain requests of this jar the cookies of the browser."""
        if jars is None or jar is None:
            return
        with suppress(Exception):  # the browser has gone
            async with asyncio.timeout(CLOSE_SECONDS):
                given = await self.context.cookies()
            cookies = tuple(msgspec.convert(each, Cookie) for each in given)
            if cookies != self._in_browser:
                self._in_browser = cookies
                jars.load(jar, cookies)
                self._in_http = jars.export(jar)

    async def close(self) -> None:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.context.close()
        if self.forwarder is not None:
            self.browser.forwarders.discard(self.forwarder)
            await self.forwarder.close()


class LivePage:
    """A page of the browser, used for one attempt after another. `crash`: why it cannot be used any more."""

    def __init__(self, browser: RunningBrowser, profile: Profile, page: PlaywrightPage, session: CDPSession) -> None:
        self._browser = browser
        self.profile = profile
        self.page = page
        self._session = session
        self._main_frame = ""
        self._frames: set[str] = set()
        self._uses = 0
        self._popups = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._requests: PageRequests | None = None
        self._world = 0
        self.tab: Tab | None = None
        self.crash: Transient | Any = None
        # Set when the page has started a download that nobody asked for.
        self.downloaded = asyncio.Event()

    @property
    def requests(self) -> PageRequests:
        assert self._requests is not None, "it is in use"
        return self._requests

    @property
    def is_crashed(self) -> bool:
        return self.crash is not None

    @property
    def user_agent(self) -> str:
        return self._browser.user_agent

    async def prepare(self) -> None:
        session, page = self._session, self.page
        session.on("Page.frameAttached", lambda event: self._add_frame(event["frameId"]))
        session.on("Page.frameDetached", self._remove_frame)
        session.on("Page.frameStoppedLoading", lambda event: self._on_stopped(event["frameId"]))
        page.on("popup", self._on_popup)
        page.on("download", self._on_download)
        page.on("crash", lambda _: self._on_crash())
        answers = await asyncio.gather(
            session.send("Page.enable"),
            session.send("Emulation.setUserAgentOverride", self._browser.agent),
            session.send("Page.getFrameTree"),
        )
        tree: Any = answers[-1]
        self._main_frame = tree["frameTree"]["frame"]["id"]
        self._add_frame(self._main_frame)

    async def begin(self, context: TabContext) -> None:
        """Use it for one attempt."""
        self._uses += 1
        self.downloaded = asyncio.Event()
        self._requests = PageRequests(
            self._browser.send,
            self._main_frame,
            gate=context.gate,
            identity=context.identity,
            block=context.options.block,
            on_call=lambda: None if self.tab is None else self.tab.on_call(),
        )
        self.tab = Tab(self, context)
        viewport = context.options.viewport
        if viewport is not None:
            await self.page.set_viewport_size({"width": viewport[0], "height": viewport[1]})
            self.tab.is_touched = True

    def on_paused(self, event: Event) -> None:
        if self._requests is not None:
            self._requests.on_paused(event)
        else:
            order = {"requestId": event["requestId"], "errorReason": "BlockedByClient"}
            self._spawn(self._browser.send("Fetch.failRequest", order))

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in a world that scripts of the page cannot reach."""
        frame = {"frameId": self._main_frame, "worldName": "shoal"}
        world = await self._session.send("Page.createIsolatedWorld", frame)
        found = await self._session.send(
            "Runtime.evaluate",
            {"expression": expression, "contextId": world["executionContextId"], "returnByValue": True},
        )
        return found["result"]["value"]

    def way_failure(self, url: str, since: float) -> AttemptEnded | None:
        """How the way to a site has failed since then; None if it has not."""
        forwarder, parsed = self.profile.forwarder, parse_url(url)
        return None if forwarder is None or parsed is None else forwarder.failure(parsed.hostname, since)

    async def release(self) -> None:
        """End the attempt's use: make the page ready for the next one, or close it."""
        tab, self.tab = self.tab, None
        requests, self._requests = self._requests, None
        self.profile.in_use -= 1
        if requests is not None:
            await requests.close()
        may_be_used_again = (
            tab is not None
            and not (tab.is_touched or self.is_crashed or self._popups or self.downloaded.is_set())
            and self._uses < MAX_USES
            and self._browser.is_usable
            and self.profile.key is not None
            and not self.profile.is_stale
        )
        if may_be_used_again and tab is not None:
            with suppress(Exception):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._clear(tab)
                    self.profile.idle.append(self)
                    return
        await self.close()

    async def _clear(self, tab: Tab) -> None:
        """Stop the page's scripts, and forget what it has stored for this tab alone."""
        tab.stop_calls()
        await self.evaluate("try { sessionStorage.clear() } catch {}")
        await self.page.goto("about:blank")

    async def close(self) -> None:
        for frame in (*self._frames, self._main_frame):
            self._browser.remove_frame(frame)
        for task in list(self._tasks):
            task.cancel()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.page.close()
        except TimeoutError:
            self._browser.retire("a tab cannot be closed")
        except Exception:  # it is closed
            return

    def _add_frame(self, frame: str) -> None:
        self._frames.add(frame)
        self._browser.add_frame(frame, self)

    def _remove_frame(self, event: Event) -> None:
        if event.get("reason") != "swap":
            self._frames.discard(event["frameId"])
            self._browser.remove_frame(event["frameId"])

    def _on_stopped(self, frame: str) -> None:
        if self._requests is not None:
            self._requests.on_frame_stopped(frame)

    def _on_popup(self, popup: PlaywrightPage) -> None:
        self._popups += 1
        self._spawn(_close_quietly(popup))
        if self._popups > MAX_POPUPS and self.crash is None:
            self.crash = Transient(f"{self.page.url} opens more than {MAX_POPUPS} windows")
            self._spawn(_close_quietly(self.page))

    def _on_download(self, download: Any) -> None:
        if self.tab is None or not self.tab.on_download(download):
            self.downloaded.set()
            self._spawn(_cancel_quietly(download))

    def _on_crash(self) -> None:
        self.crash = self.crash or Transient(f"the page crashed the browser's tab: {self.page.url}")

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _agent(version: str, own: str | None) -> dict[str, Any]:
    """What the browser says it is: `own`, or Chromium with a window. All places that tell it agree."""
    major = version.partition(".")[0]
    brands = [{"brand": "Chromium", "version": major}, {"brand": "Not:A-Brand", "version": "8"}]
    text = f"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{major}.0.0.0 Safari/537.36"
    return {
        "userAgent": own or text,
        "userAgentMetadata": {
            "brands": brands,
            "fullVersionList": [{**brands[0], "version": version}, {**brands[1], "version": "8.0.0.0"}],
            "platform": "Linux",
            "platformVersion": "",
            "architecture": "x86",
            "model": "",
            "mobile": False,
        },
    }


async def _close_quietly(page: PlaywrightPage) -> None:
    with suppress(Exception):
        await page.close()


async def _cancel_quietly(download: Any) -> None:
    with suppress(Exception):
        await download.cancel()
        await download.delete()
