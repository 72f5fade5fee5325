"""What the demo says at its end: every stored profile, link and repository is compared with the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.demo.recipe import SiteReport
from shoal.demo.stand_in import Visit
from shoal.recipes.github.demo import make_site_report
from shoal.recipes.github.stand_in import GitHubStandIn

SITE = GitHubStandIn()
EQUAL = "the stored profiles, links and repositories equal the site's"
Record = dict[str, Any]
NOTHING: dict[str, list[Record]] = {"username": [], "profile": [], "social": []}


def true_records(*numbers: int) -> tuple[list[Record], list[Record]]:
    """The records of the stages profile and social that these developers lead to."""
    people, profiles, extras = SITE.people, list[Record](), list[Record]()
    for number in numbers:
        name, user = people.login(number), people.user(number)
        profiles.append({"username": name, "name": user["name"], "bio": user["bio"], "followers": user["followers"]})
        for platform, (url, verified) in people.links(number).items():
            link = {"platform": platform, "url": url, "verified": verified}
            extras.append({"kind": "social_link", "username": name, **link})
        best = sorted(people.repositories(number), key=lambda each: (-each["stargazers_count"], each["name"]))
        for order, each in enumerate(best[:5], start=1):
            same = {"name": each["name"], "language": each["language"], "description": each["description"]}
            more = {"order": order, "stars": each["stargazers_count"], "url": each["html_url"]}
            extras.append({"kind": "repository", "username": name, **same, **more})
    return profiles, extras


def visit(path: str, at: float = 0.0, note: str = "token 1 core 9") -> Visit:
    return Visit(at=at, ended=at, host="127.0.0.1", path=path, status=200, peer="", user_agent="", note=note)


def report_on(profiles: list[Record], extras: list[Record], *visits: Visit) -> SiteReport:
    return make_site_report(SITE, visits, {"username": profiles, "profile": profiles, "social": extras})


def test_links_are_those_that_the_site_shows() -> None:
    """By hand, of one developer: accounts and the name at Twitter are verified; what blog and bio mention is not."""
    login, user = SITE.people.login(37), SITE.people.user(37)
    assert [each["provider"] for each in SITE.people.social_accounts(37)] == ["mastodon", "linkedin", "generic"]
    assert (user["blog"], user["twitter_username"]) == (f"{login}.example", "quiet_lynx_37")
    assert user["bio"] == f"Chat: t.me/{login} or https://dev.to/{login}"
    assert SITE.people.links(37) == {
        "other_1": (f"https://social.example/@{login}", True),
        "linkedin": (f"https://www.linkedin.com/in/{login}", True),
        "hashnode": (f"https://{login}.hashnode.dev", True),
        "twitter": ("https://twitter.com/quiet_lynx_37", True),
        "other_2": (f"https://{login}.example", False),
        "telegram": (f"https://t.me/{login}", False),
        "dev_to": (f"https://dev.to/{login}", False),
    }


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda extras: [each for each in extras if each["kind"] != "social_link"], "social_link"),
        (lambda extras: [each for each in extras if each["kind"] != "repository"], "repository"),
        (lambda extras: [each | {"verified": True} for each in extras], "social_link"),
        (lambda extras: [each | {"url": "https://other.example"} for each in extras], "social_link"),
        (lambda extras: [*extras, extras[0]], "social_link"),
        (lambda extras: [*extras, extras[0] | {"platform": "other_9"}], "social_link"),
        (lambda extras: [each | {"stars": 1} for each in extras], "repository"),
    ],
)
def test_what_differs_from_the_truth_is_a_problem(change: Callable[[list[Record]], list[Record]], what: str) -> None:
    number = next(each for each in range(50) if len({ok for _, ok in SITE.people.links(each).values()}) == 2)
    profiles, extras = true_records(number)
    said = report_on(profiles, extras)
    assert (said.problems, said.lines[-1]) == ([], EQUAL)
    said = report_on(profiles, change(extras))
    assert said.problems[0].startswith(f"{what} of {SITE.people.login(number)}: ")
    assert EQUAL not in said.lines


def test_a_developer_with_nothing_stored_is_compared_too() -> None:
    numbers = [each for each in range(50) if SITE.people.links(each) and SITE.people.repositories(each)][:2]
    profiles, extras = true_records(*numbers)
    first = SITE.people.login(numbers[0])
    said = report_on(profiles, [each for each in extras if each["username"] != first])
    assert [problem.partition(":")[0] for problem in said.problems] == [
        f"social_link of {first}",
        f"repository of {first}",
    ]
    assert "differences between what is stored and the site: 2" in said.lines


def test_who_was_answered_twice_is_not_once() -> None:
    name = SITE.people.login(1)
    profiles, extras = true_records(1)
    once, twice = (report_on(profiles, extras, *[visit(f"/users/{name}")] * times) for times in (1, 2))
    assert "profiles: 1 answered, 1 stored, each developer once" in once.lines
    assert "profiles: 1 answered, 1 stored, 1 developers more than once" in twice.lines
    assert [problem for problem in twice.problems if "twice in the stage profile" in problem]
    assert not any("profile" in line and "each developer once" in line for line in twice.lines)


def test_a_search_that_was_answered_twice_is_a_problem() -> None:
    """As when each instance makes all searches by itself; one that GitHub calls incomplete is repeated rightly."""
    page = "/search/users?q=a&page=1"
    partial = visit(page, note="token 1 search 9 incomplete")
    once, twice = (report_on([], [], partial, *[visit(page)] * times) for times in (1, 2))
    assert "searches: 1 answered, each search once; developers found: 0" in once.lines
    assert once.problems == []
    assert "searches: 1 answered, 1 searches more than once; developers found: 0" in twice.lines
    assert twice.problems == [f"1 searches were answered twice in the stage username, such as {page}"]


def test_how_close_together_requests_of_a_token_were() -> None:
    times = (("1", 0.0), ("2", 0.1), ("1", 0.45), ("2", 0.9))
    said = report_on([], [], *(visit("/users/nobody", at, f"token {token} core 9") for token, at in times))
    assert "the two closest requests of a token: 0.450 s apart" in said.lines
    closer = make_site_report(SITE, [visit("/x", 0), visit("/x", 0.45)], NOTHING, delay=0.5).lines
    assert (
        "the two closest requests of a token: 0.450 s apart (0.5 s asked for; the difference arose on the way)"
        in closer
    )
    assert "the two closest requests of a token: there were none" in report_on([], [], visit("/x")).lines
