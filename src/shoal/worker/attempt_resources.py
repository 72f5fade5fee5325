"""What all attempts of a process share: clients, egress, logins, politeness, providers, threads, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.define.hooks import PreparedHook, type_text
from shoal.define.scraper import Scraper
from shoal.define.stage import AnyStage
from shoal.fetch.download import Downloads
from shoal.fetch.memory import MemoryBudget
from shoal.fetch.page import Fetcher
from shoal.model.log import Log
from shoal.threads import ThreadRunner
from shoal.worker.egress import Clients, WorkerEgress
from shoal.worker.politeness import Politeness
from shoal.worker.providers import WorkerProviders
from shoal.worker.registration import Registration

if TYPE_CHECKING:
    from shoal.worker.logins import Logins


class AttemptResources:
    """What all attempts of a process share.

    `in_lanes=False` takes follow-up items out of their lanes, for a run that visits no site. `parsing_stages`: stages
    whose handlers have parsed a page. `registration`: asks the ledger about redirects; None without a ledger.
    `clients`: the fetchers of stages that have another client; None when pages come from the store. `egress`: the pools
    of exits; None when no stage has one. `logins`: those of the scraper; None when there are none to run.
    """

    __slots__ = (
        "_hook_records",
        "clients",
        "downloads",
        "egress",
        "fetcher",
        "in_lanes",
        "log",
        "logins",
        "memory",
        "parsing_stages",
        "politeness",
        "providers",
        "registration",
        "scraper",
        "threads",
    )

    def __init__(  # noqa: PLR0913 - the parts that attempts share
        self,
        scraper: Scraper,
        fetcher: Fetcher,
        politeness: Politeness,
        *,
        log: Log,
        in_lanes: bool = True,
        memory: MemoryBudget | None = None,
        registration: Registration | None = None,
        downloads: Downloads | None = None,
        clients: Clients | None = None,
        egress: WorkerEgress | None = None,
        logins: Logins | None = None,
    ) -> None:
        self.downloads = downloads
        self.clients = clients
        self.egress = egress
        self.logins = logins
        self.scraper = scraper
        self.fetcher = fetcher
        self.politeness = politeness
        self.log = log
        self.in_lanes = in_lanes
        self.registration = registration
        self.memory = memory or MemoryBudget()
        self.threads = ThreadRunner("shoal-handler")
        self.providers = WorkerProviders(scraper, self.threads, log)
        self.parsing_stages: set[str] = set()
        self._hook_records: dict[PreparedHook, tuple[int, int]] = {}

    def fetcher_of(self, stage: AnyStage) -> Fetcher:
        """What sends the requests of a stage; for a stage with a browser, those that are not the browser's own."""
        return self.fetcher if self.clients is None or stage.client == "browser" else self.clients.get(stage.client)

    def count_records(self, hook: PreparedHook, matching: int, seen: int) -> None:
        """Count the records that a hook had the type for, so that one which is never called is reported."""
        before = self._hook_records.get(hook, (0, 0))
        self._hook_records[hook] = before[0] + matching, before[1] + seen

    async def close(self) -> None:
        for hook, (matching, seen) in self._hook_records.items():
            if seen and not matching:
                wanted = type_text(hook.record_type)
                self.log.warning("an on_record hook was never called", hook=hook.name, type=wanted, records=seen)
        await self.providers.close()
        self.threads.close()
        if self.downloads is not None:
            self.downloads.close()
        if self.logins is not None:
            await self.logins.close()
        if self.clients is not None:
            await self.clients.close()
        if self.egress is not None:
            await self.egress.close()
        await self.politeness.close()
