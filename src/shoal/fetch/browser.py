"""Pages in a real browser: one Chromium for the process, a profile for each identity, several tabs at once.

How an attempt uses it:

    async with browser.open_tab(gate=gate, jar=jar, identity=identity, options=stage.browser, deadline=deadline) as tab:
        page = await tab.fetch(request)      # the rendered page; the handler may ask for the tab as well

A browser is replaced after a number of targets, above a size, and when it has crashed. The new one starts beside the
old one, which is closed when its last tab is. Cookies and storage of a profile move to the new browser.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import msgspec

from shoal.errors import AttemptEnded, Transient
from shoal.fetch.chromium import Chromium, ChromiumHome, check_playwright, total_bytes
from shoal.fetch.interception import Event, PageRequests
from shoal.fetch.page import BrowserOptions
from shoal.fetch.session import Cookie, jars_of
from shoal.fetch.tab import Tab, TabContext
from shoal.fetch.urls import parse_url

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession
    from playwright.async_api import Page as PlaywrightPage

    from shoal.fetch.download import Downloads
    from shoal.fetch.forwarder import ProxyForwarder
    from shoal.fetch.page import Fetcher, Identity, Page, PageGate, Request, RequestGate, ResponseStream
    from shoal.fetch.redirects import CookieJars
    from shoal.fetch.store import FileStore
    from shoal.model.log import Log

DEFAULT_TABS = 8
DEFAULT_TARGETS = 100
DEFAULT_MEMORY_MB = 2_048
# Profiles that no tab uses stay open up to this number; the cookies and storage of more are kept in memory.
MAX_IDLE_PROFILES = 16
MAX_STATES = 1_000
# A tab that only Shoal has used is used again so often.
MAX_USES = 50
MAX_POPUPS = 20
_MONITOR_SECONDS = 2.0
_STATE_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
# How long a request may wait for its frame to be announced.
_FRAME_SECONDS = 0.5
# Above this many times its bound, the largest page is ended: it would take the machine's memory.
_HARD_FACTOR = 2


class BrowserFetcher:
    """A Fetcher whose pages are rendered by Chromium. Created anywhere, used inside one event loop.

    `http` sends what is not a page: downloads. `tabs`: how many are open at once. `targets`: after so many, the browser
    is replaced; also above `memory` megabytes. `user_agent`: None for the browser's own. `chromium`: the program; empty
    to look for it. `store`: keeps rendered pages.
    """

    def __init__(  # noqa: PLR0913 - its settings, all by keyword
        self,
        http: Fetcher,
        *,
        tabs: int = DEFAULT_TABS,
        targets: int = DEFAULT_TARGETS,
        memory: int = DEFAULT_MEMORY_MB,
        max_body: int = 32 << 20,
        user_agent: str | None = None,
        sandbox: bool = True,
        deny_private: bool = False,
        chromium: str = "",
        downloads: Downloads | None = None,
        store: FileStore | None = None,
        log: Log | None = None,
    ) -> None:
        check_playwright()
        self._http = http
        self._targets = targets
        self._memory = memory << 20
        self._max_body = max_body
        self._user_agent = user_agent
        self._sandbox = sandbox
        self._deny_private = deny_private
        self._chromium = chromium
        self._downloads = downloads
        self._store = store
        self._log = log
        self._free_tabs = asyncio.Semaphore(tabs)
        self._starting = asyncio.Lock()
        self._home: ChromiumHome | None = None
        self._browsers: list[RunningBrowser] = []
        self._states: OrderedDict[str, Any] = OrderedDict()
        self._forwarders: dict[str, ProxyForwarder] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._monitor: asyncio.Task[None] | None = None
        self._is_closed = False

    @asynccontextmanager
    async def open_tab(
        self,
        *,
        gate: PageGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
        options: BrowserOptions | None = None,
        deadline: asyncio.Timeout | None = None,
        http: Fetcher | None = None,
    ) -> AsyncIterator[Tab]:
        """A tab for one attempt, with the cookies of `identity`, or of `jar` without one; None for a clean profile.

        Waiting for a free tab, and for the browser to start, does not count for `deadline`. `http` sends downloads.
        With the option `capture`, `tab.captured` has what was kept of a page that failed.
        """
        chosen = options or BrowserOptions()
        context = TabContext(
            gate=gate,
            jar=jar,
            identity=identity,
            options=chosen,
            deadline=deadline,
            http=http or self._http,
            downloads=self._downloads,
            store=self._store,
            max_body=self._max_body,
        )
        with suspended(deadline):
            await self._free_tabs.acquire()
            try:
                live = await self._open(context)
            except BaseException:
                self._free_tabs.release()
                raise
        tab = live.tab
        assert tab is not None
        try:
            yield tab
        except BaseException as error:
            is_failure = isinstance(error, Exception) or (deadline is not None and deadline.expired())
            if chosen.capture and is_failure:
                await tab.capture()
            if live.crash is not None and isinstance(error, Exception) and not isinstance(error, AttemptEnded):
                raise live.crash from error
            raise
        finally:
            cookies = self._run(live.profile.export_cookies(self.http_jars, jar))
            # The attempt does not wait until the tab is ready for the next one.
            self._run(self._release(live, cookies))
            if jar is not None and not live.is_crashed:
                # What the attempt does next, such as keeping its session, needs them.
                await asyncio.wait({cookies})

    async def fetch(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        max_body: int | None = None,
        identity: Identity | None = None,
    ) -> Page:
        async with self.open_tab(gate=_as_page_gate(gate), jar=jar, identity=identity) as tab:
            return await tab.fetch(request, gate=gate, max_body=max_body)

    def stream(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
    ) -> AbstractAsyncContextManager[ResponseStream]:
        return self._http.stream(request, gate=gate, jar=jar, identity=identity)

    async def start(self) -> None:
        """Start the browser now. Raises BrowserMissing or UsageError when it cannot be."""
        await self._current()

    async def version(self) -> str:
        """The version of the browser, started if need be."""
        return (await self._current()).chromium.browser.version

    async def storage_state(self, profile: str) -> Any:
        """Cookies and storage of a profile (`profile_of`), as Playwright's `storage_state`; None: there are none."""
        for browser in reversed(self._browsers):
            found = browser.profiles.get(profile)
            if found is not None:
                with suppress(Exception):
                    self._remember(profile, await found.context.storage_state())
                break
        return self._states.get(profile)

    async def set_storage_state(self, profile: str, state: Any) -> None:
        """Give a profile these cookies and this storage in place of its own, in tabs opened from now on."""
        self._remember(profile, state)
        for browser in self._browsers:
            found = browser.profiles.pop(profile, None)
            if found is not None:
                found.is_stale = True
                if not found.in_use:
                    await found.close()

    async def close(self) -> None:
        self._is_closed = True
        if self._monitor is not None:
            self._monitor.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=_CLOSE_SECONDS)
        for browser in list(self._browsers):
            await browser.close()
        for forwarder in self._forwarders.values():
            await forwarder.close()
        if self._home is not None:
            home, self._home = self._home, None
            await asyncio.to_thread(home.close)

    async def _open(self, context: TabContext) -> LivePage:
        """A page in the profile of this identity. A browser that has just crashed is replaced once."""
        from playwright.async_api import Error

        for is_last in (False, True):
            browser = await self._current()
            browser.open_tabs += 1
            browser.targets += 1
            try:
                return await browser.open(context, self._profile_key(context))
            except Error as error:
                self._leave(browser)
                browser.retire("it does not answer")
                if is_last:
                    text = str(error).partition("\n")[0]
                    raise Transient(f"the browser could not open a tab: {text}") from error
            except BaseException:
                self._leave(browser)
                raise
        raise AssertionError("unreachable")

    def _profile_key(self, context: TabContext) -> str | None:
        """Which cookies and storage a tab has; None for none."""
        return None if context.jar is None else self.profile_of(context.jar, context.identity)

    def profile_of(self, jar: str, identity: Identity | None) -> str:
        """The profile of tabs with this jar and identity, for `storage_state`."""
        return jar if identity is None else f"{identity.key} {jar}"

    async def _release(self, live: LivePage, cookies: asyncio.Task[None]) -> None:
        browser = live.profile.browser
        try:
            await asyncio.wait({cookies})
            await live.release()
            await self._after_use(live.profile)
        finally:
            self._free_tabs.release()
            self._leave(browser)

    async def _after_use(self, profile: Profile) -> None:
        browser = profile.browser
        if profile.key is None or profile.is_stale:
            if not profile.in_use:
                await profile.close()
            return
        if browser.is_usable and monotonic() - profile.saved_at > _STATE_SECONDS:
            await self._save_state(profile)
        idle = [each for each in browser.profiles.values() if not each.in_use]
        for each in idle[: max(0, len(idle) - MAX_IDLE_PROFILES)]:
            browser.profiles.pop(each.key or "", None)
            await self._save_state(each)
            await each.close()

    async def _save_state(self, profile: Profile) -> None:
        """Remember the cookies and storage of a profile for the next browser."""
        if profile.key is None or profile.is_stale:
            return
        profile.saved_at = monotonic()
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                self._remember(profile.key, await profile.context.storage_state())

    def _remember(self, profile: str, state: Any) -> None:
        self._states[profile] = state
        self._states.move_to_end(profile)
        if len(self._states) > MAX_STATES:
            self._states.popitem(last=False)

    async def state_for(self, profile: str) -> Any:
        """What a profile begins with in a new browser: what it has in the old one, or had when that was last seen."""
        for browser in reversed(self._browsers):
            found = browser.profiles.get(profile)
            if found is not None:
                await self._save_state(found)
                break
        return self._states.get(profile)

    def _leave(self, browser: RunningBrowser) -> None:
        browser.open_tabs -= 1
        if browser.targets >= self._targets:
            browser.retire(f"it has opened {browser.targets} targets")
        if not browser.is_usable and not browser.open_tabs:
            self._run(self._close_browser(browser))

    async def _close_browser(self, browser: RunningBrowser) -> None:
        if browser not in self._browsers:
            return
        for profile in list(browser.profiles.values()):
            if not browser.is_crashed and profile.key is not None:
                newer = any(profile.key in each.profiles for each in self._browsers if each is not browser)
                if not newer:
                    await self._save_state(profile)
        if browser in self._browsers:
            self._browsers.remove(browser)
            await browser.close()

    async def _current(self) -> RunningBrowser:
        async with self._starting:
            for browser in self._browsers:
                if browser.is_usable:
                    return browser
            if self._is_closed:
                raise Transient("the browser is closed")
            if self._home is None:
                self._home = await asyncio.to_thread(ChromiumHome)
            chromium = await Chromium.start(self._home, executable=self._chromium, sandbox=self._sandbox)
            browser = RunningBrowser(self, chromium)
            await browser.intercept()
            self._browsers.append(browser)
            if self._monitor is None:
                self._monitor = asyncio.ensure_future(self._watch_memory())
            if self._log is not None:
                self._log.debug("browser started", version=chromium.browser.version, process=chromium.process)
            return browser

    async def _watch_memory(self) -> None:
        """Replace a browser above its memory bound, and end a page that takes too much on its own."""
        while True:
            await asyncio.sleep(_MONITOR_SECONDS)
            for browser in list(self._browsers):
                with suppress(Exception):
                    await self._check_memory(browser)

    async def _check_memory(self, browser: RunningBrowser) -> None:
        async with asyncio.timeout(_CLOSE_SECONDS):
            processes = await browser.chromium.processes()
        used = await asyncio.to_thread(total_bytes, processes)
        if used <= self._memory:
            return
        browser.retire(f"it takes {used >> 20} MB")
        if not browser.open_tabs:
            self._run(self._close_browser(browser))
        elif used > _HARD_FACTOR * self._memory:
            renderers = [process for process, kind in processes.items() if kind == "renderer"]
            largest = max(renderers, key=lambda process: total_bytes({process: ""}), default=None)
            if largest is not None:
                with suppress(OSError):
                    os.kill(largest, signal.SIGKILL)

    def log_retired(self, reason: str) -> None:
        if self._log is not None:
            self._log.debug("browser is replaced", reason=reason)

    async def forwarder_of(self, context: TabContext) -> ProxyForwarder | None:
        """What the browser gets as its proxy; None: it connects by itself."""
        identity = context.identity
        proxy = None if identity is None else identity.proxy
        if proxy is None and not self._deny_private:
            return None
        from shoal.fetch.forwarder import ProxyForwarder

        key = "" if identity is None or proxy is None else identity.key
        found = self._forwarders.get(key)
        if found is None or found.proxy != proxy:
            if found is not None:
                await found.close()
            found = ProxyForwarder(proxy, deny_private=self._deny_private)
            await found.start()
            self._forwarders[key] = found
        return found

    @property
    def user_agent(self) -> str | None:
        return self._user_agent

    @property
    def http_jars(self) -> CookieJars | None:
        """The cookies of plain requests: a browser and they share the cookies of a jar."""
        return jars_of(self._http)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


class RunningBrowser:
    """A browser with its profiles. `open_tabs`: those in use; `targets`: tabs opened so far."""

    def __init__(self, fetcher: BrowserFetcher, chromium: Chromium) -> None:
        self._fetcher = fetcher
        self.chromium = chromium
        self.profiles: OrderedDict[str, Profile] = OrderedDict()
        self.open_tabs = 0
        self.targets = 0
        self.is_crashed = False
        self._is_retired = False
        self._is_closed = False
        self._frames: dict[str, LivePage] = {}
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.agent = _agent(chromium.browser.version, fetcher.user_agent)
        self.user_agent: str = self.agent["userAgent"]
        chromium.browser.on("disconnected", lambda _: self._on_disconnected())

    @property
    def is_usable(self) -> bool:
        return not (self._is_retired or self._is_closed or self.is_crashed)

    def retire(self, reason: str) -> None:
        """Open no more tabs in it."""
        if not self._is_retired:
            self._is_retired = True
            self._fetcher.log_retired(reason)

    async def intercept(self) -> None:
        """Hold every request of the browser until it is decided about."""
        session = self.chromium.session
        session.on("Fetch.requestPaused", self._on_paused)
        session.on("Fetch.authRequired", self._on_auth)
        await session.send("Fetch.enable", {"patterns": [{"urlPattern": "*"}], "handleAuthRequests": True})

    async def open(self, context: TabContext, key: str | None) -> LivePage:
        """A page for a tab, in the profile of this key; None: in one of its own."""
        async with self._opening:
            profile = None if key is None else self.profiles.get(key)
            forwarder = await self._fetcher.forwarder_of(context)
            if profile is not None and profile.forwarder is not forwarder:
                profile.is_stale, profile = True, None
            if profile is None:
                state = None if key is None else await self._fetcher.state_for(key)
                profile = await Profile.create(self, key, forwarder, state)
                if key is not None:
                    self.profiles[key] = profile
            if key is not None:
                self.profiles.move_to_end(key)
            profile.in_use += 1
        try:
            live = profile.idle.pop() if profile.idle else await self._new_page(profile)
            await profile.import_cookies(self._fetcher.http_jars, context.jar)
            await live.begin(context)
        except BaseException:
            profile.in_use -= 1
            raise
        return live

    async def _new_page(self, profile: Profile) -> LivePage:
        page = await profile.context.new_page()
        session = await profile.context.new_cdp_session(page)
        live = LivePage(self, profile, page, session)
        await live.prepare()
        return live

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

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Profile:
    """Cookies, storage and the way out of one identity in one browser. `idle`: pages that can be used again."""

    def __init__(
        self, browser: RunningBrowser, key: str | None, context: BrowserContext, forwarder: ProxyForwarder | None
    ) -> None:
        self.browser = browser
        self.key = key
        self.context = context
        self.forwarder = forwarder
        self.idle: list[LivePage] = []
        self.in_use = 0
        self.is_stale = False
        self.saved_at = monotonic()
        self._in_browser: tuple[Cookie, ...] = ()
        self._in_http: tuple[Cookie, ...] = ()

    @classmethod
    async def create(
        cls, browser: RunningBrowser, key: str | None, forwarder: ProxyForwarder | None, state: Any
    ) -> Profile:
        options: dict[str, Any] = {}
        if forwarder is not None:
            options["proxy"] = {"server": forwarder.address}
        if state is not None:
            options["storage_state"] = state
        context = await browser.chromium.browser.new_context(
            # Its requests belong to no tab, and outlive the attempt.
            service_workers="block",
            **options,
        )
        return cls(browser, key, context, forwarder)

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
            async with asyncio.timeout(_CLOSE_SECONDS):
                given = await self.context.cookies()
            cookies = tuple(msgspec.convert(each, Cookie) for each in given)
            if cookies != self._in_browser:
                self._in_browser = cookies
                jars.load(jar, cookies)
                self._in_http = jars.export(jar)

    async def close(self) -> None:
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.context.close()


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
        self.download_url: str | None = None

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
        self.download_url = None
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
            and not (tab.is_touched or self.is_crashed or self._popups or self.download_url)
            and self._uses < MAX_USES
            and self._browser.is_usable
            and self.profile.key is not None
            and not self.profile.is_stale
        )
        if may_be_used_again and tab is not None:
            with suppress(Exception):
                async with asyncio.timeout(_CLOSE_SECONDS):
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
            async with asyncio.timeout(_CLOSE_SECONDS):
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
            self.download_url = download.url
            self._spawn(_cancel_quietly(download))

    def _on_crash(self) -> None:
        self.crash = self.crash or Transient(f"the page crashed the browser's tab: {self.page.url}")

    def _spawn(self, work: Any) -> None:
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


@contextmanager
def suspended(deadline: asyncio.Timeout | None) -> Iterator[None]:
    """The deadline stands still inside."""
    ends_at = None if deadline is None else deadline.when()
    if deadline is None or ends_at is None:
        yield
        return
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(ends_at + loop.time() - started)


def _as_page_gate(gate: RequestGate | None) -> PageGate | None:
    """The gate for requests that a page makes by itself, if it can give one."""
    return cast("PageGate", gate) if hasattr(gate, "for_page_request") else None


async def _close_quietly(page: PlaywrightPage) -> None:
    with suppress(Exception):
        await page.close()


async def _cancel_quietly(download: Any) -> None:
    with suppress(Exception):
        await download.cancel()
        await download.delete()
