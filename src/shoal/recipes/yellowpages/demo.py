"""`shoal demo yellowpages`: the pool of ten workers and fifty proxies on a stand-in, and what both say afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import msgspec

from shoal.demo.recipe import DemoStep, RecipeDemo, SiteReport
from shoal.demo.stand_in import RunningStandIn, Visit
from shoal.model.egress import ExitState
from shoal.model.views import AttemptView
from shoal.recipes.yellowpages.proxies import RunningProxies, serving_proxies
from shoal.recipes.yellowpages.stand_in import YellowPages
from shoal.service.client import Fleet

WORKERS = 10
MIN_DELAY, MAX_DELAY = 0.2, 0.4
# What the site wants between two requests of an address: one in ten further pages of a target is asked for too soon.
MIN_GAP = 0.22
# A captcha at every 25th visit of an address would be ten in all.
CAPTCHA_EVERY = 10
# So many of a worker's requests may come less than half of the least delay after the one before: see `hurried_workers`.
HURRIED_SHARE = 0.2
PAGE = 200


class DemoSize(msgspec.Struct, frozen=True, kw_only=True):
    """How large the demo is. `states` and the numbers of cities and categories are those of the generator.

    `proxies`: how many there are, of which so many are `dead` and so many `flaky`; a dead one rests after `ban_after`
    failures.
    """

    states: str = "all"
    cities: int = 3
    categories: int = 4
    workers: int = WORKERS
    proxies: int = 50
    dead: int = 5
    flaky: int = 3
    ban_after: int = 10


WHOLE = DemoSize()


class TargetEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A target as the ledger has it: its attempts, and how many pages of it are read."""

    city: str
    category: str
    pages: int
    state: str
    attempts: tuple[AttemptView, ...]

    @property
    def done(self) -> int:
        """How many attempts ended as done."""
        return sum(attempt.outcome == "done" for attempt in self.attempts)


async def read_targets(fleet: Fleet, run: str = "latest") -> list[TargetEvidence]:
    """All targets of a run with their attempts."""
    found, cursor = [], None
    while True:
        page = await fleet.items(run, cursor=cursor, limit=PAGE)
        for item in page.rows:
            payload = item.payload or {}
            detail = await fleet.item(run, id=item.id)
            found.append(
                TargetEvidence(
                    city=payload["city_slug"],
                    category=payload["category_slug"],
                    pages=payload["max_pages"],
                    state=item.state.value,
                    attempts=detail.attempts,
                )
            )
        cursor = page.cursor
        if cursor is None:
            return found


def addresses_by_worker(targets: Sequence[TargetEvidence]) -> dict[str, set[str]]:
    """The addresses that each worker went out through, by its attempts."""
    found: dict[str, set[str]] = {}
    for attempt in (attempt for target in targets for attempt in target.attempts):
        exit_name = str((attempt.detail or {}).get("egress", ""))
        if attempt.worker and exit_name:
            found.setdefault(attempt.worker, set()).add(exit_name.rpartition("/")[2].partition(":")[0])
    return found


async def banned_addresses(fleet: Fleet) -> set[str]:
    """The addresses of the proxies that rest."""
    exits = await fleet.exits()
    return {each.label.partition("//")[2].partition(":")[0] for each in exits if each.state is ExitState.BANNED}


def gaps_by_worker(visits: Sequence[Visit], proxies: RunningProxies, workers: int = WORKERS) -> dict[int, list[float]]:
    """Seconds between two visits of one worker, which the site knows by its addresses; by the worker's number."""
    place = {address: at * workers // len(proxies.addresses) for at, address in enumerate(proxies.addresses)}
    times: dict[int, list[float]] = {}
    for visit in visits:
        if visit.peer in place:
            times.setdefault(place[visit.peer], []).append(visit.at)
    return {worker: [after - before for before, after in pairwise(sorted(starts))] for worker, starts in times.items()}


def hurried_workers(gaps: Mapping[int, Sequence[float]], least: float) -> list[int]:
    """The numbers of the workers that did not leave this delay between their requests.

    Gaps are measured at the site. A request that was late there makes the gap before it longer and the one after it
    shorter, so no single gap counts, but their mean, and how many are far too short.
    """
    return sorted(
        worker
        for worker, own in gaps.items()
        if own and (fmean(own) < least or sum(gap < least / 2 for gap in own) > HURRIED_SHARE * len(own))
    )


class YellowPagesDemo(RecipeDemo):
    """612 targets in 51 states; five proxies are dead, three drop connections, the site shows captchas."""

    name = "yellowpages"
    about = "51 states, ten workers, fifty proxies: 5 are dead, 3 drop connections, and the site shows captchas."

    def __init__(self, size: DemoSize = WHOLE) -> None:
        self._size = size
        self._proxies: RunningProxies | None = None

    def stand_in(self) -> YellowPages:
        faults = ("captcha", "limits")
        return YellowPages(faults=faults, captcha_every=CAPTCHA_EVERY, min_gap=MIN_GAP, latency=(0.01, 0.05))

    @contextmanager
    def serving(self, folder: Path) -> Iterator[RunningStandIn[YellowPages]]:
        size = self._size
        proxies = serving_proxies(size.proxies, dead=size.dead, flaky=size.flaky)
        with self.stand_in().serving() as site, proxies as self._proxies:
            file = folder / "data" / "webshare_proxies.txt"
            file.write_text("".join(f"{line}\n" for line in self._proxies.lines()))
            file.chmod(0o600)
            yield site

    def environment(self, site: RunningStandIn[YellowPages]) -> Mapping[str, str]:
        return {
            "YP_BASE_URL": site.url,
            "WORKER_COUNT": str(self._size.workers),
            "MIN_DELAY_SECONDS": str(MIN_DELAY),
            "MAX_DELAY_SECONDS": str(MAX_DELAY),
            "PROXY_FILE": "data/webshare_proxies.txt",
            "PROXY_BLACKLIST_THRESHOLD": str(self._size.ban_after),
        }

    def steps(self, site: RunningStandIn[YellowPages]) -> Sequence[DemoStep]:
        size = self._size
        targets = ("python", "generate_city_targets.py", "--states", size.states)
        number = ("--cities-per-state", str(size.cities), "--max-categories", str(size.categories))
        return [
            DemoStep(("python", "state_assignments.py"), "Which worker has which states."),
            DemoStep((*targets, *number), "A target per city and category."),
            DemoStep(
                ("shoal", "pool", "yellowpages", "--yes", "--stagger", "0-0.2"), "Ten workers, five proxies each."
            ),
            DemoStep(("shoal", "proxies", "ls", "--state", "banned"), "Dead proxies rest for an hour."),
        ]

    async def site_report(self, site: RunningStandIn[YellowPages], fleet: Fleet) -> SiteReport:
        assert self._proxies is not None
        proxies, visits, targets = self._proxies, site.log(), await read_targets(fleet)
        states = Counter(target.state for target in targets)
        found = {record["company"] async for record in fleet.records()}
        done = [target for target in targets if target.state == "done"]
        truth = site.site.companies_of((target.city, target.category, target.pages) for target in done)
        shares = addresses_by_worker(targets)
        gaps = gaps_by_worker(visits, proxies, self._size.workers)
        all_gaps = [gap for each in gaps.values() for gap in each] or [0.0]
        closest, usual = min(all_gaps), fmean(all_gaps)
        banned = await banned_addresses(fleet)
        notes = Counter(visit.note for visit in visits if visit.note in ("captcha", "too fast", "blocked"))
        missing = sum(visit.status == 404 for visit in visits)
        lines = [
            f"{len(visits)} requests from {len({visit.peer for visit in visits})} addresses",
            f"{missing} pages were not there (404), and the search was asked instead",
            f"{notes['captcha']} captchas were shown with status 200; the worker tried another of its proxies",
            f"{notes['too fast']} times it told an address to wait (429), {notes['blocked']} times refused (403); "
            f"it wants {site.site.min_gap} s between two requests of an address",
            f"{len(targets)} targets: {', '.join(f'{number} {state}' for state, number in states.items())}; "
            f"{sum(target.done == 1 for target in targets)} were done exactly once; workers used at most "
            f"{max(map(len, shares.values()), default=0)} addresses each",
            f"a worker waits {MIN_DELAY} to {MAX_DELAY} s between two requests; the site saw {usual:.2f} s on average, "
            f"{closest:.2f} s at least: after a request that was late the next seems early",
            f"{len(banned)} proxies rest: {', '.join(sorted(banned)) or 'none'}",
            f"{len(found)} companies stored; {len(truth)} are in the pages of the targets that are done",
        ]
        problems = [
            *(["a target was done twice"] if any(target.done > 1 for target in targets) else []),
            *(["the companies are not those of the pages"] if found != truth else []),
            *(["an address had two workers"] if _has_overlap(shares.values()) else []),
            *(["a worker did not keep its delay"] if hurried_workers(gaps, MIN_DELAY) else []),
        ]
        unreached = [
            *(["some targets are not done"] if set(states) - {"done"} else []),
            *([f"dead proxies that do not rest: {', '.join(left)}"] if (left := sorted(proxies.dead - banned)) else []),
        ]
        figures = {"requests": len(visits), "targets": len(targets), "companies": len(found), "closest": closest}
        return SiteReport(lines=lines, problems=problems, unreached=unreached, figures=figures)


def _has_overlap(shares: Iterable[set[str]]) -> bool:
    times = Counter(address for share in shares for address in share)
    return any(number > 1 for number in times.values())


DEMO = YellowPagesDemo()
