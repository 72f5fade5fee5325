"""One attempt: fetch the page, call the handler, follow links, all within the stage's timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.define.context import EarlierRuns, Failure, Http, Item, Notes, outgoing_request
from shoal.define.counters import Counters
from shoal.define.files import Files
from shoal.define.follow import Follow, StageLinks
from shoal.define.login import Login
from shoal.define.providers import FunctionKind, Signature
from shoal.define.records import Output
from shoal.define.stage import AnyStage
from shoal.errors import Blocked, ExitFailed, Permanent, Throttled, Transient
from shoal.fetch.classify import classify_page
from shoal.fetch.download import Download
from shoal.fetch.page import BrowserOptions, Fetcher, Page, Request
from shoal.fetch.session import BrowserProfile, jars_of
from shoal.model.item import ClaimedItem, ItemState, NewItem
from shoal.model.log import Log
from shoal.model.url_key import host_or_none
from shoal.model.views import ItemView
from shoal.worker.attempt_hooks import AttemptHooks
from shoal.worker.attempt_resources import AttemptResources
from shoal.worker.egress import IdentityFetcher
from shoal.worker.politeness import IdentityPace
from shoal.worker.providers import AttemptProviders
from shoal.worker.redirects import RedirectGate

if TYPE_CHECKING:
    from shoal.egress.pool import ExitIdentity
    from shoal.egress.tokens import Token
    from shoal.fetch.redirects import CookieJars
    from shoal.fetch.tab import Tab
    from shoal.worker.logins import LoginSession

# From this size on, building the tree would delay the other items noticeably, so a thread does it.
PARSE_IN_THREAD_BYTES = 256 << 10


class Attempt:
    """The state of one attempt while it runs.

    Built-in providers read its public attributes. `page`: the fetched page, which the report of a failure describes.
    `tab`: the tab that it was opened in; `captured`: what was kept of it. `avoid`: exits that were tried before;
    `again`: the item is run again at once.
    """

    __slots__ = (
        "_avoid",
        "_closing",
        "_deadline",
        "_fetcher",
        "_gate",
        "_hooks",
        "_http",
        "_providers",
        "_resources",
        "_stage",
        "began",
        "captured",
        "claimed",
        "counters",
        "download",
        "failure",
        "identity",
        "item",
        "page",
        "session",
        "step",
        "tab",
        "waited",
    )

    def __init__(
        self,
        resources: AttemptResources,
        stage: AnyStage,
        claimed: ClaimedItem,
        claimed_at: float,
        *,
        avoid: Collection[str] = (),
        again: bool = False,
    ) -> None:
        self._resources = resources
        self._stage = stage
        self._deadline = asyncio.timeout(stage.policy.timeout)
        self._gate = resources.politeness.gate(
            claimed,
            claimed_at,
            lane_run_id=lane_run_id(stage, claimed),
            deadline=self._deadline,
            own_pace=stage.policy.pace != "host",
        )
        if self._gate is not None and stage.policy.pace == "worker" and stage.policy.delay:
            self._gate.use_worker_pace(stage.policy.delay)
        if again and self._gate is not None:
            self._gate.repeat()
        self._avoid = avoid
        self._fetcher = resources.fetcher_of(stage)
        self.identity: ExitIdentity | None = None
        self.session: LoginSession | None = None
        self.tab: Tab | None = None
        self.captured: Mapping[str, str] = {}
        self._http: Http | None = None
        self._providers: AttemptProviders | None = None
        self.step = "its page was fetched"
        self._closing = False
        self.claimed = claimed
        self.item = Item.from_claimed(claimed)
        self.counters = Counters()
        self.began = time.monotonic()
        self.waited: float | None = None
        self.page: Page | None = None
        self.download: Download | None = None
        self.failure: Failure | None = None
        self._hooks = None if stage.hooks is None else AttemptHooks(stage.hooks, self, resources)

    @property
    def http(self) -> Http:
        """One for the attempt, so that its requests go one after another."""
        if self._http is None:
            self._http = self.make_http()
        return self._http

    @property
    def files(self) -> Files:
        """Where its handler writes files."""
        downloads = self._resources.downloads
        return Files(None if downloads is None else downloads.place)

    def make_http(self, *, with_hooks: bool = True) -> Http:
        scraper = self._resources.scraper
        http = Http(
            self._fetcher,
            gate=self._gate,
            jar=self._jar(),
            headers=self._headers(),
            reveal=scraper.reveal_secret,
            downloads=self._resources.downloads,
            deadline=self._deadline,
            hooks=self._hooks if with_hooks else None,
            opener=partial(self._open_page, with_hooks=with_hooks),
        )
        http._link_source = StageLinks(self._stage, self.item)
        return http

    @property
    def cookie_jars(self) -> CookieJars | None:
        """Those of the client that sends its requests."""
        return jars_of(self._resources.fetcher_of(self._stage))

    def browser_profile(self, jar: str, login: Login) -> BrowserProfile | None:
        """Where the browser has what belongs to a jar; None when neither its stage nor its login has a browser."""
        clients = self._resources.clients
        if clients is None or not (login.uses_browser or self._stage.client == "browser"):
            return None
        browser = clients.browser()
        return BrowserProfile(browser, browser.profile_of(jar, self.identity), jars_of(self._resources.fetcher))

    @contextmanager
    def paused_timeout(self, step: str) -> Iterator[None]:
        """Let its time stand still during a step that is not its own."""
        now = asyncio.get_running_loop().time
        when, before = self._deadline.when(), self.step
        left = None if when is None else when - now()
        self._deadline.reschedule(None)
        self.step = step
        try:
            yield
        finally:
            self.step = before
            self._deadline.reschedule(None if left is None else now() + left)

    async def call_login(self, login: Login, jar: str, secrets: set[str]) -> Any:
        """What a login returns. Its requests go out as this attempt's do, with the cookies of `jar`.

        `secrets` gets the names of those that it sent.
        """
        from shoal.worker.logins import LoginValues

        resources, scraper, function = self._resources, self._resources.scraper, login.function

        def reveal(name: str) -> str:
            secrets.add(name)
            return scraper.reveal_secret(name)

        http = Http(
            self._fetcher,
            gate=self._gate,
            jar=jar,
            headers=scraper.headers,
            reveal=reveal,
            deadline=self._deadline,
            private=True,
        )
        values = LoginValues(http, resources.log.bind(login=login.name), scraper.settings)
        clients = _LoginClients(self, jar)
        providers = AttemptProviders(clients, scraper, resources.providers, resources.threads, resources.log)
        try:
            arguments = await providers.arguments(login.signature, values)
            if login.signature.kind is FunctionKind.PLAIN:
                return await resources.threads.run(lambda: function(**arguments))
            return await function(**arguments)
        finally:
            await providers.close()

    @property
    def log(self) -> Log:
        return self._resources.log.bind(stage=self._stage.name, item=self.item.key)

    @property
    def settings(self) -> Any:
        return self._resources.scraper.settings

    def ends_at(self) -> float | None:
        """When its timeout expires, on the loop's clock; None once its handler has ended."""
        return None if self._closing else self._deadline.when()

    def lift_timeout(self) -> None:
        """Let it take as long as it likes: a person is looking at it in a debugger. On the loop's thread only."""
        with suppress(RuntimeError):  # it has not begun, or is over
            self._deadline.reschedule(None)

    def timeout_error(self) -> Transient:
        return Transient(f"timed out after {self._stage.policy.timeout:g} s while {self.step}")

    async def run(self) -> Output:
        share = self._resources.memory.open_share(self._deadline)
        try:
            async with self._deadline:
                return await self._run_steps()
        except TimeoutError:
            if not self._deadline.expired():
                raise
            raise self.timeout_error() from None
        finally:
            share.close()
            if self._providers is not None:
                self._closing = True
                await self._providers.close()
            # They refer to this attempt: without the cycle its page is freed at once, not by the garbage collector.
            self._hooks = self._http = None

    async def _run_steps(self) -> Output:
        stage, claimed, resources = self._stage, self.claimed, self._resources
        output = Output(
            stage.name,
            resources.scraper.stages,
            stage.record,
            keys=stage.record_keys,
            depth=claimed.depth,
            in_lanes=resources.in_lanes,
            hold=self._hooks is not None and self._hooks.of_records,
        )
        if stage.egress is not None and resources.egress is not None:
            self._use_identity(resources.egress.choose(stage, claimed, self._avoid))
        if stage.login is not None and resources.logins is not None:
            self.session = await resources.logins.session(self, stage.login)
        if stage.client == "browser" and resources.clients is not None:
            async with self._open_tab(self._jar(), stage.browser) as self.tab:
                await self._fetch_and_call(output)
        else:
            await self._fetch_and_call(output)
        return output

    async def _fetch_and_call(self, output: Output) -> None:
        stage, claimed, resources = self._stage, self.claimed, self._resources
        if stage.fetches:
            self.page = page = await self._fetch_page()
            if len(page.body) > PARSE_IN_THREAD_BYTES and stage.name in resources.parsing_stages:
                await resources.threads.run(page.parse)
        elif stage.save is not None:
            self.download = await self._save_file(stage.save)
        elif claimed.paced and self._gate is not None and self.tab is None and Http not in stage.signature.types:
            await self._gate.start()  # Shoal sends no request for it, so the attempt itself is the start
        self.step = "its providers were set up"
        arguments = await self.arguments(stage.signature, self)
        self.step = "its handler ran"
        own_page = self.page
        await self._call(output, arguments)
        self.page = own_page  # a handler may have opened further ones
        if stage.yields_download:
            output.add(self.download)
        if self._hooks is not None:
            await self._hooks.on_records(output)
        if self.page is not None:
            if self.page.parsed:
                resources.parsing_stages.add(stage.name)
            if stage.follow is not None:
                await self._follow(self.page, stage.follow, output)

    @asynccontextmanager
    async def _open_tab(self, jar: str | None, options: BrowserOptions) -> AsyncIterator[Tab]:
        """A tab of the browser, which goes out as the attempt does, and what is kept of it when it fails."""
        clients = self._resources.clients
        if clients is None:
            raise Permanent(f"the stage {self._stage.name} asks for a Tab, but its pages come from the store")
        browser = clients.browser()
        context = browser.open_tab(
            gate=self._gate,
            jar=jar,
            identity=self.identity,
            options=options,
            deadline=self._deadline,
            http=self._fetcher,
        )
        tab: Tab | None = None
        try:
            async with context as tab:
                tab._link_source = StageLinks(self._stage, self.item)
                yield tab
        except ExitFailed as failed:
            if tab is not None and failed is tab.way_failure and isinstance(self._fetcher, IdentityFetcher):
                self._fetcher.record_failure(failed)
            raise
        finally:
            self.tab = None
            if tab is not None:
                self.captured = tab.captured

    @asynccontextmanager
    async def live_tab(self) -> AsyncIterator[Tab]:
        """The tab that the page was opened in."""
        if self.tab is not None:
            yield self.tab
            return
        async with self._open_tab(self._jar(), self._stage.browser) as tab:
            yield tab

    @asynccontextmanager
    async def open_token(self) -> AsyncIterator[Token]:
        """Tokens of the stage's pool, for requests that Shoal does not send."""
        from shoal.egress.tokens import TokenIdentity

        if not isinstance(self.identity, TokenIdentity):
            raise Permanent(
                f"the stage {self._stage.name} asks for a Token, but its egress is no pool of tokens: "
                'give it egress="NAME" of one'
            )
        token = self.identity.token()
        try:
            yield token
        finally:
            token.close()

    @asynccontextmanager
    async def open_earlier_runs(self) -> AsyncIterator[EarlierRuns]:
        """What other runs of the scraper have finished; nothing is known without a ledger."""
        registration = self._resources.registration
        if registration is None:
            yield EarlierRuns()
            return
        run_id = self.claimed.run_id
        left: dict[str, list[ItemView]] = {}

        async def find_left(stage: str, *, dead: bool) -> list[Item]:
            if stage not in left:
                left[stage] = await registration.find_left(run_id, stage)
            views = [view for view in left[stage] if (view.state is ItemState.DEAD) is dead]
            return [Item(view.url, key=view.key, payload=view.payload, stage=stage) for view in views]

        yield EarlierRuns(
            lambda stage, hashes: registration.find_finished(run_id, stage, hashes),
            lambda stage: find_left(stage, dead=True),
            lambda stage, hashes: registration.find_finished(run_id, stage, hashes, failed=True),
            in_finished_runs=lambda stage, hashes: registration.find_finished(
                run_id, stage, hashes, in_finished_runs=True
            ),
            unfinished=lambda stage: find_left(stage, dead=False),
        )

    @asynccontextmanager
    async def open_notes(self) -> AsyncIterator[Notes]:
        """The notes of the run; there are none without a ledger."""
        registration = self._resources.registration
        if registration is None:
            yield Notes()
            return
        run_id = self.claimed.run_id
        yield Notes(lambda name: registration.read_note(run_id, name))

    def _use_identity(self, identity: ExitIdentity) -> None:
        """Send every request of this attempt as the identity."""
        self.identity = identity
        # robots.txt is asked for under Shoal's own name, whatever the client of the stage.
        fetcher = IdentityFetcher(self._resources.fetcher, identity)
        self._fetcher = fetcher if self._stage.client != "chrome" else IdentityFetcher(self._fetcher, identity)
        if self._gate is not None:
            policy, pace = self._stage.policy, None
            if policy.pace == "identity" and policy.delay:
                pace = IdentityPace(identity, policy.delay)
            self._gate.use_identity(fetcher, pace)

    def record_egress(self, error: BaseException | None) -> None:
        """Report what the attempt says about its exit."""
        if isinstance(self._fetcher, IdentityFetcher):
            host = None if self.page is None else host_or_none(self.page.url)
            self._fetcher.record_end(error, host)
            if self._resources.egress is not None:
                self._resources.egress.record_changes()

    async def arguments(self, signature: Signature, values: object) -> dict[str, Any]:
        """The arguments of a function; built-in providers read from `values`. Raises ProviderFailed."""
        if signature.readers is not None:
            return {name: read(values) for name, read in signature.readers}
        if self._providers is None:
            shared = self._resources
            self._providers = AttemptProviders(self, shared.scraper, shared.providers, shared.threads, shared.log)
        return await self._providers.arguments(signature, values)

    async def on_throttled(self, ended: Throttled) -> None:
        if self._gate is not None:
            await self._gate.on_throttled(ended)

    async def _follow(self, page: Page, follow: Follow, output: Output) -> None:
        def find() -> list[NewItem]:
            return follow.items(page, self.item, self._stage)

        large = len(page.body) > PARSE_IN_THREAD_BYTES
        for new in await self._resources.threads.run(find) if large else find():
            output.add(new)

    def _own_request(self) -> Request:
        stage, claimed, scraper = self._stage, self.claimed, self._resources.scraper
        if claimed.url is None:
            what = "asks for a Page" if stage.save is None else "saves a file"
            raise Permanent(f"the stage {stage.name} {what}, but the item {claimed.name!r} has no URL")
        return outgoing_request(claimed.url, self.item.request, self._headers(), scraper.reveal_secret)

    def _headers(self) -> Mapping[str, str]:
        common, own = self._resources.scraper.headers, self._stage.headers
        if self.session is not None and self.session.headers:
            return {**common, **own, **self.session.headers}
        return {**common, **own} if common or own else {}

    async def _save_file(self, name: str) -> Download:
        request, resources = self._own_request(), self._resources
        if self._hooks is not None:
            request = await self._hooks.before_request(request)
        if resources.downloads is None:
            raise Permanent(f"the stage {self._stage.name} saves a file, but there is no folder for files")
        self.step = "its file was downloaded"
        return await resources.downloads.save(
            self._fetcher,
            request,
            gate=self._gate,
            jar=self._jar(),
            name=name,
            max_bytes=self._stage.max_bytes,
            deadline=self._deadline,
        )

    async def _fetch_page(self) -> Page:
        return await self._open_page(self._own_request(), self._redirect_gate())

    async def _open_page(
        self, request: Request, redirects: RedirectGate | None = None, *, with_hooks: bool = True
    ) -> Page:
        """A page by the client of the stage, judged as the stage says."""
        stage, hooks = self._stage, self._hooks if with_hooks else None
        if hooks is not None:
            request = await hooks.before_request(request)
        gate = self._gate if redirects is None else redirects
        self.page = page = await self._page_fetcher().fetch(request, gate=gate, jar=self._jar())
        if redirects is not None:
            await redirects.check(page)
        if hooks is not None:
            self.page = page = await hooks.after_response(request, page)
        page._link_source = StageLinks(stage, self.item)
        ended = classify_page(page)
        if ended is not None and not (page.status in stage.accept and not isinstance(ended, Throttled)):
            if isinstance(ended, Throttled):
                await self.on_throttled(ended)
            raise ended
        if stage.blocked is not None and (reason := stage.blocked(page)):
            raise Blocked(
                f"soft block: {reason}" if isinstance(reason, str) else "soft block: by the stage's `blocked` function"
            )
        return page

    def _page_fetcher(self) -> Fetcher:
        """What fetches the item's own page."""
        if self.tab is None:
            return self._fetcher
        from shoal.fetch.tab import TabFetcher

        fetcher = TabFetcher(self.tab, self._fetcher)
        return self._fetcher.over(fetcher) if isinstance(self._fetcher, IdentityFetcher) else fetcher

    def _redirect_gate(self) -> RedirectGate | None:
        """The gate of a crawl, in which each page is visited once; None for other stages."""
        stage, resources = self._stage, self._resources
        if not stage.dedupe_redirects or resources.registration is None:
            return None
        return RedirectGate(
            self._gate, resources.registration, stage, self.claimed, self.item, in_lanes=resources.in_lanes
        )

    async def _call(self, output: Output, arguments: dict[str, Any]) -> None:
        await self._collect(output, self._stage.function, self._stage.signature.kind, arguments)

    async def call_error_function(self, failure: Failure) -> Output:
        """What the stage's `on_error` function yields for the item, which died. Raises what the function raises."""
        stage, resources = self._stage, self._resources
        assert stage.error_function is not None
        self.failure = failure
        self._closing = True
        output = Output(stage.name, resources.scraper.stages, depth=self.claimed.depth, in_lanes=resources.in_lanes)
        providers = AttemptProviders(self, resources.scraper, resources.providers, resources.threads, resources.log)
        try:
            async with asyncio.timeout(stage.policy.timeout):
                arguments = await providers.arguments(stage.error_signature, self)
                await self._collect(output, stage.error_function, stage.error_signature.kind, arguments)
        finally:
            await providers.close()
        return output

    async def _collect(
        self, output: Output, function: Callable[..., Any], kind: FunctionKind, arguments: dict[str, Any]
    ) -> None:
        match kind:
            case FunctionKind.ASYNC_GENERATOR:
                values: AsyncGenerator[Any, None] = function(**arguments)
                try:
                    async for value in values:
                        output.add(value)
                except BaseException:
                    await values.aclose()
                    raise
            case FunctionKind.COROUTINE:
                await _add_all(output, await function(**arguments))
            case FunctionKind.PLAIN:
                await self._resources.threads.run(lambda: _add_returned(output, function(**arguments)))

    def _jar(self) -> str | None:
        if self.session is not None:
            return self.session.jar
        if not self._resources.scraper.cookies:
            return None
        # Cookies belong to the identity: a site must never see those of another exit.
        return self.identity.key if self.identity is not None else self.claimed.lane or self._stage.name


class _LoginClients:
    """Opens what a login asks for: a tab has the cookies that its session will have."""

    def __init__(self, attempt: Attempt, jar: str) -> None:
        self._attempt = attempt
        self._jar = jar

    def live_tab(self) -> AbstractAsyncContextManager[Tab]:
        # Nothing is kept of a page that has credentials.
        return self._attempt._open_tab(self._jar, BrowserOptions())

    def open_token(self) -> AbstractAsyncContextManager[Token]:
        return self._attempt.open_token()


def lane_run_id(stage: AnyStage | None, claimed: ClaimedItem) -> str | None:
    """The run that the item's lane belongs to; None for a lane that all runs share."""
    return claimed.run_id if stage is not None and stage.policy.ordered else None


def is_cancellation(error: BaseException) -> bool:
    """Whether the attempt's own task was cancelled, or is being closed by the interpreter.

    A handler may also raise GeneratorExit itself, or let the CancelledError of another task escape.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop is running
        task = None
    if isinstance(error, GeneratorExit):
        return task is None
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def _add_all(output: Output, value: Any) -> None:
    if hasattr(value, "__aiter__"):
        async for each in value:
            output.add(each)
    else:
        _add_returned(output, value)


def _add_returned(output: Output, value: Any) -> None:
    """Add a returned value: a record, an item, or an iterable of them."""
    if (
        isinstance(value, Iterable)
        and not isinstance(value, Mapping | str | bytes)
        and not hasattr(value, "model_dump")
    ):
        for each in value:
            output.add(each)
    else:
        output.add(value)
