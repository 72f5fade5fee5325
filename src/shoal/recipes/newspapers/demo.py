"""`shoal demo newspapers`: a first run of all 24, then a second one that fetches only what is new."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.demo.recipe import DemoStep, RecipeDemo, SiteReport
from shoal.demo.stand_in import RunningStandIn, Visit
from shoal.recipes.newspapers.expected import expected_records
from shoal.recipes.newspapers.papers import PAPERS
from shoal.recipes.newspapers.stand_in import NewspaperSites
from shoal.service.client import Fleet

PROJECT_PORT = ":8002"
LATENCY = (0.02, 0.06)
# Seconds between two members of a group, by the log of the sites.
LEAST_PAUSE = 1.0
_PUBLISH = ("python", "-m", "shoal.recipes.newspapers.stand_in", "--fault", "news", "--running")


class NewspapersDemo(RecipeDemo):
    name = "newspapers"
    about = "24 newspapers: 13 singles, one in seven countries, one in four; then the news of the next day."

    def __init__(self, countries: Sequence[str] = ()) -> None:
        """`countries`: the newspapers of these are run, of which two must share one; without any, all of them."""
        self._papers = [paper for paper in PAPERS if not countries or paper.country in countries]
        self._run = ("shoal", "run", "pacific", *(word for country in countries for word in ("--country", country)))

    def stand_in(self) -> NewspaperSites:
        return NewspaperSites(latency=LATENCY)

    @contextmanager
    def serving(self, folder: Path) -> Iterator[RunningStandIn[Any]]:
        """Serve the sites on any port; the files of the project get that port."""
        with self.stand_in().serving() as site:
            use_port(folder / "configs", site)
            yield site

    def environment(self, site: RunningStandIn[Any]) -> Mapping[str, str]:
        return {}

    def steps(self, site: RunningStandIn[Any]) -> Sequence[DemoStep]:
        return [
            DemoStep(("shoal", "newspapers", "check", "configs/"), "every mistake in every file, if there were one"),
            DemoStep(self._run, f"all {len(self._papers)}: singles side by side, groups one after another"),
            DemoStep((*_PUBLISH, site.url), "the next day: every newspaper publishes three more stories"),
            DemoStep(self._run, "the same command: only what is new"),
        ]

    async def site_report(self, site: RunningStandIn[Any], fleet: Fleet) -> SiteReport:
        visits = by_member(site.log())
        problems = [*group_problems(visits)]
        twice = [
            path
            for seen in visits.values()
            for path in {visit.path for visit in seen if "/story/" in visit.path}
            if sum(visit.path == path for visit in seen) > 1
        ]
        problems += [f"{path} was fetched twice" for path in twice]
        stored = 0
        for paper in self._papers:
            url = site.urls[paper.host]
            wanted = {record["url"]: record for record in expected_records(site.site, paper.key, url)}
            found = {record["url"]: record for record in await _records(fleet, f"{paper.country}.{paper.title}")}
            stored += len(found)
            if found != wanted:
                wrong = [key for key in wanted | found if wanted.get(key) != found.get(key)]
                problems.append(f"{paper.key}: {len(wrong)} of {len(wanted)} records differ, such as {wrong[0]}")
        pages = sum(bool(visit.note) for seen in visits.values() for visit in seen)
        gaps = [gap for group in ("island_weekly", "ocean_review") for gap in group_gaps(visits, group)]
        lines = [
            f"{len(visits)} newspapers were asked for {pages:,} pages; {stored} records are stored, each as published.",
            f"No story was fetched twice in two runs ({sum('/story/' in v.path for s in visits.values() for v in s)}).",
            f"Members of a group were never visited at once; the shortest pause was {min(gaps):.2f} s.",
        ]
        figures = {"pages": pages, "records": stored, "shortest_pause": round(min(gaps), 2)}
        return SiteReport(lines=lines, problems=problems, figures=figures)


def use_port(configs: Path, site: RunningStandIn[Any]) -> None:
    """Point the files of the project to the port of the running stand-in."""
    port = f":{site.url.rpartition(':')[2]}"
    for file in configs.rglob("*.yaml"):
        file.write_text(file.read_text().replace(PROJECT_PORT, port))


def by_member(visits: Sequence[Visit]) -> dict[str, list[Visit]]:
    """The visits of each newspaper, in the order they began.

    A robots.txt is that of a host, and the first thing that each newspaper asks for: it belongs to the next one there.
    """
    found: dict[str, list[Visit]] = defaultdict(list)
    following: dict[str, str] = {}
    for visit in sorted(visits, key=lambda visit: visit.at, reverse=True):
        name = visit.note or following.get(visit.host, "")
        if name:
            following[visit.host] = name
            found[name].append(visit)
    return {name: seen[::-1] for name, seen in found.items()}


def group_gaps(visits: Mapping[str, Sequence[Visit]], group: str) -> list[float]:
    """Seconds between the last visit of one member and the first of the next; negative when they overlap."""
    own = [(visit, key) for key, seen in visits.items() if key.endswith(f"/{group}") for visit in seen]
    own.sort(key=lambda each: each[0].at)
    return [later.at - earlier.ended for (earlier, before), (later, key) in itertools.pairwise(own) if key != before]


def group_problems(visits: Mapping[str, Sequence[Visit]]) -> Iterator[str]:
    """S2.3, S2.9, S2.15: the members of a group one after another, at least a second apart."""
    for group in ("island_weekly", "ocean_review"):
        short = [gap for gap in group_gaps(visits, group) if gap < LEAST_PAUSE]
        if short:
            yield f"{group}: members were {min(short):.2f} s apart, {len(short)} times less than a second"


async def _records(fleet: Fleet, scraper: str) -> list[dict[str, Any]]:
    """The records of all runs of a scraper."""
    runs = (await fleet.runs(scraper=scraper)).rows
    return [record for run in runs async for record in fleet.records(run.run.id)]


DEMO = NewspapersDemo()
