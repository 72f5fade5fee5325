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
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from shoal.errors import AttemptEnded, EgressUnavailable, Skipped, Throttled, Transient
from shoal.fetch.chromium import Chromium, ChromiumHome, check_playwright, total_bytes
from shoal.fetch.forwarder import ProxyForwarder
from shoal.fetch.live_page import CLOSE_SECONDS, LivePage, Profile, RunningBrowser
from shoal.fetch.page import BrowserOptions, suspended
from shoal.fetch.proxy import Evidence, RequestRoute, RequestRoutes
from shoal.fetch.session import jars_of
from shoal.fetch.tab import Tab, TabContext

if TYPE_CHECKING:
    from shoal.fetch.download import Downloads
    from shoal.fetch.environment import EnvironmentProxies
    from shoal.fetch.page import Fetcher, Identity, Page, PageGate, Request, RequestGate, ResponseStream
    from shoal.fetch.store import FileStore
    from shoal.model.log import Log

DEFAULT_TABS = 8
DEFAULT_TARGETS = 100
DEFAULT_MEMORY_MB = 2_048
# Profiles that no tab uses stay open up to this number; the cookies and storage of more are kept in memory.
MAX_IDLE_PROFILES = 16
MAX_STATES = 1_000
# The next browser is started when so many targets of the old one are left.
START_AHEAD = 10
_MONITOR_SECONDS = 2.0
_STATE_SECONDS = 5.0
# Above this many times its bound, the largest page is ended: it would take the machine's memory.
_HARD_FACTOR = 2
# There is nothing to see about these.
_NOT_CAPTURED = (Skipped, Throttled, EgressUnavailable)


class BrowserFetcher:
    """A Fetcher whose pages are rendered by Chromium. Created anywhere, used inside one event loop.

    `http` sends what is not a page: downloads. `tabs`: how many are open at once. `targets`: after so many, the browser
    is replaced; also above `memory` megabytes. `user_agent`: None for the browser's own. `chromium`: the program; empty
    to look for it. `store`: keeps rendered pages. `environment`: the proxies of requests whose identity has none.
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
        environment: EnvironmentProxies | None = None,
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
        self._environment = environment
        self._chromium = chromium
        self._downloads = downloads
        self._store = store
        self._log = log
        self._free_tabs = asyncio.Semaphore(tabs)
        self._starting = asyncio.Lock()
        self._home: ChromiumHome | None = None
        self._browsers: list[RunningBrowser] = []
        self._states: OrderedDict[str, Any] = OrderedDict()
        self._evidence = Evidence()
        self._routes = RequestRoutes()
        self._background: set[asyncio.Task[Any]] = set()
        self._next: asyncio.Task[RunningBrowser] | None = None
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
            is_failure = isinstance(error, Exception) and not isinstance(error, _NOT_CAPTURED)
            is_failure = is_failure or (deadline is not None and deadline.expired())
            if chosen.capture and is_failure:
                await tab.capture()
            if isinstance(error, Exception) and not isinstance(error, AttemptEnded):
                if live.crash is not None:
                    raise live.crash from error
                if isinstance(error, _playwright_error()) and (cause := tab.cause()) is not None:
                    raise cause from error
            raise
        finally:
            cookies = self._run(live.profile.export_cookies(jars_of(self._http), jar))
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
        """Start the browser now. Raises ClientMissing when it cannot be."""
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
            found = browser.profiles.get(profile)
            if found is not None:
                await self._discard(browser, found)

    async def close(self) -> None:
        self._is_closed = True
        if self._monitor is not None:
            self._monitor.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_SECONDS)
        if self._next is not None:
            with suppress(Exception):
                self._browsers.append(await self._next)
        for browser in list(self._browsers):
            await browser.close()
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
            if browser.targets == self._targets - START_AHEAD and self._next is None and self._home is not None:
                # Nobody has to wait for the next one.
                self._next = asyncio.ensure_future(self._start(self._home))
            try:
                profile = await self._profile(browser, context)
                return await profile.open(context, jars_of(self._http))
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

    async def _profile(self, browser: RunningBrowser, context: TabContext) -> Profile:
        """The profile of a tab's identity in this browser, which is then in use."""
        key, route = self._profile_key(context), self._route(context.identity)
        async with browser.opening:
            found = None if key is None else browser.profiles.get(key)
            if found is not None and found.route != route:
                await self._discard(browser, found)
                found = None
            if found is None:
                state = None if key is None else await self._state_for(key)
                found = await Profile.create(browser, key, route, await self._forwarder(route), state)
                if key is not None:
                    browser.profiles[key] = found
            if key is not None:
                browser.profiles.move_to_end(key)
            found.in_use += 1
            return found

    def _route(self, identity: Identity | None) -> RequestRoute | None:
        """Which way an identity goes; None: the browser connects by itself."""
        proxy = None if identity is None else identity.proxy
        if proxy is None and not self._deny_private and self._environment is None:
            return None
        return self._routes.get("" if identity is None else identity.key, proxy)

    async def _forwarder(self, route: RequestRoute | None) -> ProxyForwarder | None:
        if route is None:
            return None
        forwarder = ProxyForwarder(
            route, environment=self._environment, deny_private=self._deny_private, evidence=self._evidence
        )
        await forwarder.start()
        return forwarder

    @staticmethod
    async def _discard(browser: RunningBrowser, profile: Profile) -> None:
        """Open no more tabs in a profile."""
        browser.profiles.pop(profile.key or "", None)
        profile.is_stale = True
        if not profile.in_use:
            await profile.close()

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
            # Whoever waits opens another tab meanwhile.
            self._free_tabs.release()
            await live.release()
            await self._after_use(live.profile)
        finally:
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
            await self._save_state(each)
            if not each.in_use:
                await self._discard(browser, each)

    async def _save_state(self, profile: Profile) -> None:
        """Remember the cookies and storage of a profile for the next browser."""
        if profile.key is None or profile.is_stale:
            return
        profile.saved_at = monotonic()
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                self._remember(profile.key, await profile.context.storage_state())

    def _remember(self, profile: str, state: Any) -> None:
        self._states[profile] = state
        self._states.move_to_end(profile)
        if len(self._states) > MAX_STATES:
            self._states.popitem(last=False)

    async def _state_for(self, profile: str) -> Any:
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
                if browser.targets >= self._targets:
                    browser.retire(f"it has opened {browser.targets} targets")
                if browser.is_usable:
                    return browser
            if self._is_closed:
                raise Transient("the browser is closed")
            if self._home is None:
                self._home = await asyncio.to_thread(ChromiumHome)
            task, self._next = self._next or asyncio.ensure_future(self._start(self._home)), None
            browser = await task
            self._browsers.append(browser)
            if self._monitor is None:
                self._monitor = asyncio.ensure_future(self._watch_memory())
            return browser

    async def _start(self, home: ChromiumHome) -> RunningBrowser:
        chromium = await Chromium.start(home, executable=self._chromium, sandbox=self._sandbox)
        browser = RunningBrowser(chromium, self._user_agent, on_retired=self._log_retired)
        await browser.intercept()
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
        async with asyncio.timeout(CLOSE_SECONDS):
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

    def _log_retired(self, reason: str) -> None:
        if self._log is not None:
            self._log.debug("browser is replaced", reason=reason)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _playwright_error() -> type[Exception]:
    from playwright.async_api import Error

    return Error


def _as_page_gate(gate: RequestGate | None) -> PageGate | None:
    """The gate for requests that a page makes by itself, if it can give one."""
    return cast("PageGate", gate) if hasattr(gate, "for_page_request") else None
