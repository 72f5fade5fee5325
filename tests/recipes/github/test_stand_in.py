"""The stand-in answers as GitHub does where it matters: pages, the cap of searches, limits of tokens, faults."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

from shoal.recipes.github.population import Population
from shoal.recipes.github.stand_in import BAD_TOKEN
from tests.recipes.github.conftest import Serve, Site

QUERY = 'type:user location:"Port Vila, Vanuatu" created:{}..{}'
SLOW = {"core": (3, 3_600), "search": (100, 3_600)}


def ask(site: Site, path: str, token: str = "token-aaaa", **query: object) -> tuple[int, Any, dict[str, str]]:
    url = f"{site.url}{path}?{urlencode(query)}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), dict(error.headers)


def test_a_search_shows_a_thousand_at_most(serve: Serve) -> None:
    site = serve(limits=SLOW)
    crowded = QUERY.format("2019-01-01", "2019-12-31")
    _, first, _ = ask(site, "/search/users", q=crowded, per_page=100)
    assert (first["total_count"] > 1_300, len(first["items"])) == (True, 100)
    _, tenth, _ = ask(site, "/search/users", q=crowded, per_page=100, page=10)
    assert len(tenth["items"]) == 100
    assert ask(site, "/search/users", q=crowded, per_page=100, page=11)[0] == 422
    _, whole, _ = ask(site, "/search/users", q=QUERY.format("2015-01-01", "2024-12-31"))
    assert whole["total_count"] == 2_600


def test_each_token_has_its_calls_and_hears_how_many_are_left(serve: Serve) -> None:
    site = serve(limits=SLOW)
    login = site.site.people.login(3)
    told = [ask(site, f"/users/{login}")[2] for _ in range(3)]
    assert [each["x-ratelimit-remaining"] for each in told] == ["2", "1", "0"]
    status, body, headers = ask(site, f"/users/{login}")
    assert (status, headers["x-ratelimit-remaining"], "rate limit" in body["message"]) == (403, "0", True)
    assert ask(site, f"/users/{login}", token="token-bbbb")[0] == 200
    assert ask(site, "/search/users", q=QUERY.format("2015-01-01", "2015-12-31"))[0] == 200, "a kind of its own"
    assert [visit.note for visit in site.log()][4:] == ["token 2 core 2", "token 1 search 99"], "no part of a token"
    assert [visit.note for visit in site.log()][2:4] == ["token 1 core 0", "token 1 core 0 spent"]


def test_faults(serve: Serve) -> None:
    site = serve()
    people = site.site.people
    assert ask(site, f"/users/{people.login(5)}")[0] == 200
    site.switch("missing")
    assert ask(site, f"/users/{people.login(5)}")[0] == 404
    site.switch("bad_token")
    assert ask(site, f"/users/{people.login(6)}", token=BAD_TOKEN)[0] == 401
    for fault, status in (("errors", 502), ("throttled", 429), ("secondary", 403)):
        site = serve(faults=[fault])
        answers = [ask(site, f"/users/{people.login(number)}")[0] for number in range(50) for _ in range(2)]
        assert set(answers[1::2]) == {200}, "each address has a fault once"
        assert 0 < answers.count(status) < 20
    site = serve(faults=["exhausted"])
    answers = [ask(site, f"/users/{people.login(number)}")[0] for number in range(30)]
    assert answers == [200] * 24 + [403] * 6
    site = serve(faults=["incomplete"], limits={"core": (100, 3_600), "search": (100, 3_600)})
    searches = [QUERY.format(f"{year}-01-01", f"{year}-12-31") for year in range(2015, 2025)]
    found = [ask(site, "/search/users", q=search)[1] for search in searches for _ in range(2)]
    assert any(answer["incomplete_results"] for answer in found[::2])
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert not second["incomplete_results"], "each search has the fault once"
        assert first["incomplete_results"] == (first["total_count"] < second["total_count"])


def test_the_people_depend_on_the_seed_alone() -> None:
    same, other = Population(7), Population(8)
    assert Population(7).user(50) == same.user(50)
    assert other.user(50) != same.user(50)
    assert same.number(same.login(1_234).upper()) == 1_234
    assert same.number("nobody-1") is None
