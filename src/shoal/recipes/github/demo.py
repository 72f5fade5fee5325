"""`shoal demo github`: workers of each stage against the stand-in; its log says which tokens asked for whom."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.demo.recipe import DemoStep, RecipeDemo, SiteReport, closest_line
from shoal.demo.stand_in import RunningStandIn, Visit
from shoal.errors import EXIT_INTERRUPTED
from shoal.recipes.github.population import Population
from shoal.recipes.github.stand_in import BAD_TOKEN, GitHubStandIn
from shoal.service.client import Fleet

TOKENS = ("demo-token-aa11", "demo-token-bb22", "demo-token-cc33", BAD_TOKEN)
TARGET = 120
DELAY = 0.05
STOPPED = (0, EXIT_INTERRUPTED)
MOST_SHOWN = 10
_TOP = 5
# The fields of the records of the stage social that are compared, by kind.
_EXTRAS = {
    "social_link": ("platform", "url", "verified"),
    "repository": ("order", "name", "stars", "language", "url", "description"),
}
_PROFILE = re.compile(r"/users/([^/?]+)$")
_REPOSITORIES = re.compile(r"/users/([^/?]+)/repos\?.*\bpage=(\d+)")
Records = Sequence[Mapping[str, Any]]


class GitHubDemo(RecipeDemo):
    name = "github"
    about = "Developers in three stages against a stand-in of GitHub: 404, 502, limits, a token that is refused."

    def stand_in(self) -> GitHubStandIn:
        return GitHubStandIn(
            latency=(0.03, 0.12),
            faults=("missing", "errors", "secondary", "throttled", "bad_token"),
            limits={"core": (150, 10), "search": (30, 10)},
        )

    def environment(self, site: RunningStandIn[Any]) -> Mapping[str, str]:
        tokens = {f"GITHUB_TOKEN_{number}": token for number, token in enumerate(TOKENS, start=1)}
        return tokens | {
            "GITHUB_API": site.url,
            "LOCATIONS": "Suva, Fiji; Apia, Samoa; Koror, Palau; Port Vila, Vanuatu",
            "TARGET_PROFILES": str(TARGET),
            "TARGET_USERNAMES": "600",
            "RATE_LIMIT_DELAY": str(DELAY),
            "RETRY_DELAY": "2",
        }

    def steps(self, site: RunningStandIn[Any]) -> Sequence[DemoStep]:
        worker = ("shoal", "worker", "github", "--forever", "-q", "--stage")
        return [
            DemoStep(
                (*worker, "profile"),
                "instances of single stages; start as many as you like",
                background=True,
                exit_codes=STOPPED,
            ),
            DemoStep((*worker, "social"), background=True, exit_codes=STOPPED),
            DemoStep((*worker, "social"), background=True, exit_codes=STOPPED),
            DemoStep(("shoal", "run", "github"), "the searches, and whatever is left; it ends with the run"),
            DemoStep(("shoal", "stats", "github", "latest"), "items by state: the rest of the profiles is cancelled"),
            DemoStep(("shoal", "tokens", "ls"), "the tokens: one was refused, the others share the work"),
        ]

    async def site_report(self, site: RunningStandIn[Any], fleet: Fleet) -> SiteReport:
        stages = {
            stage: [record async for record in fleet.records("latest", stage=stage)]
            for stage in ("username", "profile", "social")
        }
        return make_site_report(site.site, site.log(), stages, fewest=TARGET, delay=DELAY)


def make_site_report(
    site: GitHubStandIn, visits: Sequence[Visit], stages: Mapping[str, Records], *, fewest: int = 0, delay: float = 0.0
) -> SiteReport:
    """Compare the log of the site and the records of a run with the truth. `delay`: what RATE_LIMIT_DELAY was."""
    found, profiles, extras = stages["username"], stages["profile"], stages["social"]
    problems: list[str] = []
    asked = {
        "username": search_answers(visits),
        "profile": profile_answers(visits),
        "social": social_answers(site.people, visits),
    }
    once = {}
    for stage, answers in asked.items():
        twice = [key for key, times in answers.items() if times > 1]
        one, many = ("search", "searches") if stage == "username" else ("developer", "developers")
        once[stage] = f"{len(twice)} {many} more than once" if twice else f"each {one} once"
        if twice:
            problems.append(f"{len(twice)} {many} were answered twice in the stage {stage}, such as {twice[0]}")
    spent = sum(visit.note.endswith("spent") for visit in visits)
    if spent:
        problems.append(f"{spent} requests had a token that was known to be spent")
    differences = _differences(site.people, found, profiles, extras)
    problems += differences[:MOST_SHOWN]
    if len(profiles) < fewest:
        problems.append(f"{len(profiles)} profiles are stored instead of {fewest}")
    statuses = Counter(visit.status for visit in visits)
    refused = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()) if status != 200)
    tokens = Counter(map(_token, visits))
    lines = [
        f"{len(visits)} requests with {len(tokens)} tokens: "
        + ", ".join(f"{count} by {token}" for token, count in sorted(tokens.items())),
        f"answers other than 200: {refused or 'none'}",
        f"requests with a token that was known to be spent: {spent}",
        f"searches: {len(asked['username'])} answered, {once['username']}; developers found: {len(found)}",
        closest_line(visits, _token, "of a token", asked_for=delay),
        f"profiles: {len(asked['profile'])} answered, {len(profiles)} stored, {once['profile']}",
        f"social: {len(asked['social'])} completed, {once['social']}; "
        f"{len(_of_kind(extras, 'social_link'))} links and {len(_of_kind(extras, 'repository'))} repositories stored",
        f"differences between what is stored and the site: {len(differences)}"
        if differences
        else "the stored profiles, links and repositories equal the site's",
    ]
    figures = {"requests": len(visits), "spent": spent, "found": len(found), "profiles": len(profiles)}
    return SiteReport(lines=lines, problems=problems, figures=figures)


def _token(visit: Visit) -> str:
    """The token of a visit, as the site numbers it."""
    return " ".join(visit.note.split()[:2])


def search_answers(visits: Iterable[Visit]) -> Counter[str]:
    """How often each page of each search was answered, without the answers that GitHub calls incomplete."""
    return Counter(
        visit.path
        for visit in visits
        if visit.status == 200 and visit.path.startswith("/search/") and "incomplete" not in visit.note
    )


def profile_answers(visits: Iterable[Visit]) -> Counter[str]:
    """How often the profile of each developer was answered."""
    return Counter(match[1] for visit in visits if visit.status == 200 and (match := _PROFILE.search(visit.path)))


def social_answers(people: Population, visits: Iterable[Visit]) -> Counter[str]:
    """How often the last request of the stage social was answered for each developer: the last page of repositories.

    An attempt that fails, or that finds no token, after its first request makes all of its requests again.
    """
    found: Counter[str] = Counter()
    for visit in visits:
        match = _REPOSITORIES.search(visit.path)
        number = people.number(match[1]) if match and visit.status == 200 else None
        if match and number is not None and int(match[2]) == len(people.repositories(number)) // 100 + 1:
            found[match[1]] += 1
    return found


def _differences(people: Population, found: Records, profiles: Records, extras: Records) -> list[str]:
    """What is stored and not true, missing, or stored twice. Every developer with a profile has been enhanced."""
    problems = []
    for what, records in (("found", found), ("profile", profiles)):
        names = Counter(record["username"] for record in records)
        problems += [f"{name} is stored {count} times as {what}" for name, count in names.items() if count > 1]
    for record in profiles:
        number = people.number(record["username"])
        truth = people.user(number) if number is not None else {}
        wrong = [name for name, value in record.items() if name in truth and truth[name] != value]
        if number is None or wrong:
            problems.append(f"the profile of {record['username']} is wrong: {', '.join(wrong) or 'no such developer'}")
    stored = {kind: _values_by_username(_of_kind(extras, kind), names) for kind, names in _EXTRAS.items()}
    for name in sorted({record["username"] for record in (*profiles, *extras)}):
        number = people.number(name)
        for kind, values in stored.items():
            truth_values = [] if number is None else _true_values(people, number, kind)
            if values.get(name, []) != truth_values:
                problems.append(f"{kind} of {name}: {values.get(name, [])} instead of {truth_values}")
    return problems


def _values_by_username(records: Records, names: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
    """The values of these fields of each developer's records, sorted by the first one."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for record in sorted(records, key=lambda each: each[names[0]]):
        found.setdefault(record["username"], []).append(tuple(record[name] for name in names))
    return found


def _true_values(people: Population, number: int, kind: str) -> list[tuple[Any, ...]]:
    """What is to be stored of this kind for a developer, as `_values_by_username` has it."""
    if kind == "social_link":
        return [(platform, *link) for platform, link in sorted(people.links(number).items())]
    ranked = sorted(people.repositories(number), key=lambda each: (-each["stargazers_count"], each["name"]))
    names = ("name", "stargazers_count", "language", "html_url", "description")
    return [(order, *(each[name] for name in names)) for order, each in enumerate(ranked[:_TOP], start=1)]


def _of_kind(records: Records, kind: str) -> Records:
    return [record for record in records if record["kind"] == kind]


DEMO = GitHubDemo()
