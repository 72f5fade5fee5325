"""Egress in a worker: each attempt gets an identity, stages without a usable exit are not claimed, health is shared.

An attempt's requests all go out as its identity. `IdentityFetcher` adds it to each of them, so nothing that an attempt
sends can take another way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, cast

import msgspec

from shoal.define.policy import Client
from shoal.define.stage import AnyStage
from shoal.errors import Blocked, ExitFailed, LedgerError, WorkerLost
from shoal.fetch.page import Fetcher, Identity, Page, Request, RequestGate, ResponseStream
from shoal.ledger.protocols import Ledger
from shoal.model.egress import EgressWait
from shoal.model.item import ClaimedItem
from shoal.model.log import Log
from shoal.model.url_key import host_or_none
from shoal.model.worker import Scope
from shoal.worker.state import WorkerIdentity

if TYPE_CHECKING:
    from shoal.egress.pool import ExitIdentity, ExitPool
    from shoal.fetch.browser import BrowserFetcher
    from shoal.worker.logins import Logins

# An attempt without a host of its own, such as one with only a key, chooses for this name.
NO_HOST = ""


class WorkerEgress:
    """The pools that the stages of a scraper use in this process, and its logins.

    `stages`: the pool of each stage; None for one without. `waits`: the stages that no exit can be used for now, or
    whose login fails; read by the heartbeat's thread.
    """

    def __init__(
        self,
        pools: Mapping[str, ExitPool],
        stages: Mapping[str, str | None],
        log: Log,
        *,
        logins: Logins | None = None,
    ) -> None:
        self._logins = logins
        self._pools = pools
        self._all_stages = tuple(stages)
        self._stages = {stage: pool for stage, pool in stages.items() if pool is not None}
        self._log = log
        self._changed = asyncio.Event()
        self._announced: dict[str, str] = {}
        self.waits: tuple[EgressWait, ...] = ()

    async def start(self) -> None:
        """Read the exits of every pool. Raises UsageError for a pool that can never work."""
        for pool in self._pools.values():
            await pool.start()

    async def sync(self, ledger: Ledger, worker: str) -> None:
        """Report health, and learn what other workers reported. Raises LedgerError."""
        for pool in self._pools.values():
            await pool.sync(ledger, worker)
        self.update_waits()

    async def try_sync(self, ledger: Ledger, worker: str) -> None:
        """Sync if the ledger can be reached, and knows the worker."""
        try:
            await self.sync(ledger, worker)
        except WorkerLost:
            # The claimer registers again; the next sync has the new id.
            self._log.debug("egress not synchronized: worker declared dead", worker=worker)
        except LedgerError as error:
            # Claims and commits fail as well, and decide how long the worker waits.
            self._log.debug("egress not synchronized: ledger unreachable", error=error.message)

    async def run(self, ledger: Ledger, identity: WorkerIdentity, interval: float) -> None:
        """Sync once per interval, and soon after an exit was banned, until cancelled."""
        while True:
            self._changed.clear()
            await self.try_sync(ledger, identity.id)
            try:
                async with asyncio.timeout(interval):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def choose(self, stage: AnyStage, claimed: ClaimedItem, avoid: Collection[str]) -> ExitIdentity:
        """The identity of an attempt. Raises EgressUnavailable."""
        pool = self._pools[self._stages[stage.name]]
        host = NO_HOST if claimed.url is None else host_or_none(claimed.url) or NO_HOST
        sticky = claimed.partition or claimed.lane or stage.name
        return pool.choose(host, sticky=sticky, avoid=avoid)

    def update_waits(self) -> frozenset[str]:
        """The stages whose items should not be claimed now."""
        waits = []
        for stage, name in self._stages.items():
            wait = self._pools[name].wait()
            if wait is not None:
                waits.append(msgspec.structs.replace(wait, stage=stage))
            self._announce(name, None if wait is None else wait.why)
        if self._logins is not None:
            waits += self._logins.waits()
        self.waits = tuple(waits)
        return frozenset(wait.stage for wait in waits)

    def claimable(self, scope: Scope) -> Scope | None:
        """The scope without the stages that no exit can be used for; None when nothing is left."""
        waiting = self.update_waits()
        if not waiting:
            return scope
        stages = tuple(stage for stage in scope.stages or self._all_stages if stage not in waiting)
        return msgspec.structs.replace(scope, stages=stages) if stages else None

    def is_waiting(self, stage: str) -> bool:
        """Whether no exit of the stage's pool can be used now."""
        return stage in self.update_waits()

    def record_changes(self) -> None:
        """Sync soon if other workers should know at once."""
        if any(pool.needs_sync for pool in self._pools.values()):
            self._changed.set()

    async def close(self) -> None:
        """End what the pools have started."""
        for pool in self._pools.values():
            await pool.close()

    def _announce(self, pool: str, why: str | None) -> None:
        """Log once that a pool cannot be used, and once that it can again."""
        before = self._announced.get(pool)
        if why is None and before is not None:
            del self._announced[pool]
            self._log.info("egress can be used again", egress=pool)
        elif why is not None and before is None:
            self._announced[pool] = why
            self._log.warning("no exit can be used; its stages wait", egress=pool, why=why)


class Clients:
    """The fetchers of a process by client, each made when it is first used."""

    def __init__(self, make: Callable[[Client], Fetcher], **made: Fetcher) -> None:
        self._make = make
        self._fetchers: dict[str, Fetcher] = made
        self._given = frozenset(made)

    def get(self, client: Client) -> Fetcher:
        fetcher = self._fetchers.get(client)
        if fetcher is None:
            fetcher = self._fetchers[client] = self._make(client)
        return fetcher

    def browser(self) -> BrowserFetcher:
        return cast("BrowserFetcher", self.get("browser"))

    async def close(self) -> None:
        """Close those that were made here."""
        for client, fetcher in self._fetchers.items():
            if client not in self._given:
                await fetcher.close()


class IdentityFetcher:
    """Sends every request of one attempt as its identity. `hosts`: those that answered."""

    def __init__(self, fetcher: Fetcher, identity: ExitIdentity) -> None:
        self._fetcher = fetcher
        self._identity = identity
        self.hosts: dict[str, None] = {}

    async def fetch(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        max_body: int | None = None,
        identity: Identity | None = None,
    ) -> Page:
        while True:
            try:
                page = await self._fetcher.fetch(
                    request, gate=gate, jar=jar, max_body=max_body, identity=self._identity
                )
            except ExitFailed as failed:
                self.record_failure(failed)
                raise
            self._add_hosts(*page.history, page.url)
            if not self._identity.should_repeat(page):
                return page

    def stream(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
    ) -> AbstractAsyncContextManager[ResponseStream]:
        return _RecordedStream(self, lambda: self._fetcher.stream(request, gate=gate, jar=jar, identity=self._identity))

    def over(self, fetcher: Fetcher) -> IdentityFetcher:
        """The same for another fetcher: what it learns about the exit is reported with the rest."""
        other = IdentityFetcher(fetcher, self._identity)
        other.hosts = self.hosts
        return other

    async def close(self) -> None:
        """The fetcher belongs to the worker."""

    def record_end(self, error: BaseException | None, blocked_host: str | None) -> None:
        """Report what the attempt's requests say about its exit; failures of the way were reported when they happened.

        `blocked_host`: the host that a Blocked is about, if it is known.
        """
        blocked = None
        if isinstance(error, Blocked):
            blocked = blocked_host or next(reversed(self.hosts), NO_HOST)
            self._identity.record_block(blocked, error.message)
        for host in self.hosts:
            if host != blocked:
                self._identity.record_success(host)
        self.hosts.clear()

    def record_failure(self, failed: ExitFailed) -> None:
        """Report a failure of the way; successes before it are reported as such, so that they do not end its row."""
        self.record_end(None, None)
        self._identity.record_failure(failed.message)

    def _add_hosts(self, *urls: str) -> None:
        for url in urls:
            self.hosts[host_or_none(url) or NO_HOST] = None


class _RecordedStream:
    """A stream whose failures of the way are reported, and which is opened again when only its identity was refused."""

    def __init__(
        self, fetcher: IdentityFetcher, open_stream: Callable[[], AbstractAsyncContextManager[ResponseStream]]
    ) -> None:
        self._fetcher = fetcher
        self._open = open_stream

    async def __aenter__(self) -> ResponseStream:
        while True:
            self._stream = self._open()
            try:
                response = await self._stream.__aenter__()
            except ExitFailed as failed:
                self._fetcher.record_failure(failed)
                raise
            self._fetcher._add_hosts(response.url)
            if not await self._was_refused(response):
                self._url = response.url
                return response
            await self._stream.__aexit__(None, None, None)

    async def __aexit__(self, *failure: object) -> bool | None:
        if isinstance(failure[1], ExitFailed):
            self._fetcher.hosts.pop(host_or_none(self._url) or NO_HOST, None)
            self._fetcher.record_failure(failure[1])  # in the middle of the body
        return await self._stream.__aexit__(*failure)  # type: ignore[arg-type]

    async def _was_refused(self, response: ResponseStream) -> bool:
        """Its body is not read: that of a refusal may never end."""
        page = Page(response.url, status=response.status, headers=response.headers, body=b"")
        try:
            return self._fetcher._identity.should_repeat(page)
        except BaseException:
            await self._stream.__aexit__(None, None, None)
            raise
