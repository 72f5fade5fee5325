"""`shoal demo github`: workers of each stage against the stand-in; its log says which tokens asked for whom."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.demo.recipe import DemoStep, RecipeDemo, SiteReport
from shoal.demo.stand_in import RunningStandIn, Visit
from shoal.errors import EXIT_INTERRUPTED
from shoal.recipes.github.population import Population
from shoal.recipes.github.stand_in import BAD_TOKEN, GitHubStandIn
from shoal.service.client import Fleet

TOKENS = ("demo-token-aa11", "demo-token-bb22", "demo-token-cc33", BAD_TOKEN)
TARGET = 120
STOPPED = (0, EXIT_INTERRUPTED)
_TOP = 5
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
            "RATE_LIMIT_DELAY": "0.05",
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
        return make_site_report(site.site, site.log(), stages, fewest=TARGET)


def make_site_report(
    site: GitHubStandIn, visits: Sequence[Visit], stages: Mapping[str, Records], *, fewest: int = 0
) -> SiteReport:
    """Compare the log of the site and the records of a run with the truth."""
    found, profiles, extras = stages["username"], stages["profile"], stages["social"]
    problems: list[str] = []
    asked = {"profile": profile_answers(visits), "social": social_answers(site.people, visits)}
    for stage, logins in asked.items():
        twice = [login for login, times in logins.items() if times > 1]
        if twice:
            problems.append(f"{len(twice)} developers were answered twice in the stage {stage}, such as {twice[0]}")
    spent = sum(visit.note.endswith("spent") for visit in visits)
    if spent:
        problems.append(f"{spent} requests had a token that was known to be spent")
    problems += _differences(site.people, found, profiles, extras)
    if len(profiles) < fewest:
        problems.append(f"{len(profiles)} profiles are stored instead of {fewest}")
    statuses = Counter(visit.status for visit in visits)
    refused = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()) if status != 200)
    tokens = Counter(" ".join(visit.note.split()[:2]) for visit in visits)
    lines = [
        f"{len(visits)} requests with {len(tokens)} tokens: "
        + ", ".join(f"{count} by {token}" for token, count in sorted(tokens.items())),
        f"answers other than 200: {refused or 'none'}",
        f"requests with a token that was known to be spent: {spent}",
        f"searches: {sum(visit.path.startswith('/search/') for visit in visits)}, developers found: {len(found)}",
        f"profiles: {len(asked['profile'])} answered, {len(profiles)} stored, each developer once",
        f"social: {len(asked['social'])} completed, each developer once; "
        f"{len(_of_kind(extras, 'social_link'))} links and {len(_of_kind(extras, 'repository'))} repositories stored",
        "the stored profiles and repositories equal the site's" if not problems else "see the problems",
    ]
    figures = {"requests": len(visits), "spent": spent, "found": len(found), "profiles": len(profiles)}
    return SiteReport(lines=lines, problems=problems, figures=figures)


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
    """What is stored and not true, or stored twice."""
    problems = []
    for what, records in (("found", found), ("profile", profiles)):
        names = Counter(record["username"] for record in records)
        problems += [f"{name} is stored {count} times as {what}" for name, count in names.items() if count > 1][:3]
    for record in profiles:
        number = people.number(record["username"])
        truth = people.user(number) if number is not None else {}
        wrong = [name for name, value in record.items() if name in truth and truth[name] != value]
        if number is None or wrong:
            problems.append(f"the profile of {record['username']} is wrong: {', '.join(wrong) or 'no such developer'}")
    best: dict[str, list[str]] = {}
    for record in sorted(_of_kind(extras, "repository"), key=lambda each: each["order"]):
        best.setdefault(record["username"], []).append(record["name"])
    for name, stored in best.items():
        number = people.number(name)
        truth_names = [] if number is None else _top_repositories(people, number)
        if stored != truth_names:
            problems.append(f"the repositories of {name} are {stored} instead of {truth_names}")
    return problems[:10]


def _top_repositories(people: Population, number: int) -> list[str]:
    ranked = sorted(people.repositories(number), key=lambda each: (-each["stargazers_count"], each["name"]))
    return [each["name"] for each in ranked[:_TOP]]


def _of_kind(records: Records, kind: str) -> Records:
    return [record for record in records if record["kind"] == kind]


DEMO = GitHubDemo()
