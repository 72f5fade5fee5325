"""What sites say about their limits, and which budget a URL belongs to."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.egress.rate_limits import MAX_RESET_SECONDS, Resources, site_budget
from shoal.model.egress import BudgetPolicy, SiteBudget

DATE = "Tue, 03 Mar 2026 10:00:00 GMT"
NOON = int(datetime(2026, 3, 3, 10, 0, tzinfo=UTC).timestamp())


def github(**changed: str) -> dict[str, str]:
    names = {"limit": "5000", "remaining": "4999", "reset": str(NOON + 600), "used": "1", "resource": "core"}
    return {"Date": DATE, **{f"X-RateLimit-{name}": value for name, value in (names | changed).items()}}


def test_github() -> None:
    assert site_budget(github()) == SiteBudget(
        remaining=4_999, limit=5_000, reset_seconds=600.0, reset_slack=1.0, resource="core"
    )


def test_headers_that_are_about_something_else() -> None:
    assert site_budget({"Date": DATE, "Content-Type": "text/html", "X-Frame-Rate": "5"}) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"RateLimit-Limit": "100, 100;w=60", "RateLimit-Remaining": "7", "RateLimit-Reset": "30"},
        {"ratelimit": "limit=100, remaining=7, reset=30"},
        {"RateLimit": '"default";r=7;t=30', "RateLimit-Policy": '"default";q=100;w=60'},
        {"RateLimit": '"day";r=900;t=9000, "minute";r=7;t=30', "RateLimit-Policy": '"minute";q=100, "day";q=1000'},
        {"x-rate-limit-limit": "100", "x-rate-limit-remaining": "7.0", "x-rate-limit-reset": str(NOON + 31)},
        {"x-ratelimit-limit": "100", "x-ratelimit-used": "93", "x-ratelimit-reset": str((NOON + 31) * 1_000)},
        {"x-ratelimit-limit": "100", "x-ratelimit-remaining": "7", "x-ratelimit-reset": "2026-03-03T10:00:31Z"},
    ],
)
def test_the_same_in_other_words(headers: dict[str, str]) -> None:
    said = site_budget({**headers, "Date": DATE})
    assert said is not None
    assert (said.remaining, said.limit, said.reset_seconds) == (7, 100, 31.0)


@pytest.mark.parametrize("value", ["120", "Tue, 03 Mar 2026 10:02:00 GMT"])
def test_retry_after(value: str) -> None:
    assert site_budget({"Retry-After": value, "Date": DATE}) == SiteBudget(retry_after=120.0)


def test_the_sites_clock_counts_and_not_ours() -> None:
    said = site_budget(github(), now=datetime(2030, 1, 1, tzinfo=UTC))
    assert said is not None
    assert said.reset_seconds == 600.0
    without = {name: value for name, value in github().items() if name != "Date"}
    said = site_budget(without, now=datetime.fromtimestamp(NOON, UTC))
    assert said is not None
    assert said.reset_seconds == 605.0, "the clocks may be apart: the window ends later at most"
    assert said.reset_slack == 10.0


@pytest.mark.parametrize(
    "changed",
    [
        {"remaining": "many", "limit": "?", "used": "-"},
        {"remaining": "9" * 500},
        {"reset": "tomorrow"},
        {"reset": "9" * 18},
        {"reset": "-5"},
        {"resource": "x" * 500},
        {"resource": "a b\tc"},
    ],
)
def test_nonsense_is_absent_or_bounded(changed: dict[str, str]) -> None:
    said = site_budget(github(**changed))
    assert said is not None
    assert said.remaining is None or 0 <= said.remaining < 2**31
    assert said.reset_seconds is None or 0 <= said.reset_seconds <= MAX_RESET_SECONDS
    assert said.resource in (None, "core")


@given(
    st.dictionaries(st.sampled_from(["RateLimit", "RateLimit-Policy", "X-RateLimit-Reset", "Retry-After"]), st.text())
)
def test_no_header_raises(headers: dict[str, str]) -> None:
    site_budget(headers)


def test_a_budget_of_its_own_for_a_kind_of_call() -> None:
    search, hourly = BudgetPolicy(30, 60.0), BudgetPolicy(5_000, 3_600.0)
    resources = Resources(hourly, {"search": search, "/v2/exports": BudgetPolicy(1, 60.0)})
    assert resources.of("https://api.example/search/users?q=x", "api.example") == "search"
    assert resources.of("https://api.example/api/v3/search/code", "api.example") == "search"
    assert resources.of("https://api.example/v2/exports/5", "api.example") == "/v2/exports"
    assert resources.of("https://api.example/v2/exports-of-others", "api.example") == "core"
    assert resources.of("https://api.example/repos/a/search", "api.example") == "core"
    assert (resources.policy("search"), resources.policy("core"), resources.policy("else")) == (search, hourly, None)


def test_github_has_budgets_for_search_without_being_told() -> None:
    resources = Resources(None, {})
    assert resources.of("https://api.github.com/users/torvalds", "api.github.com") == "core"
    assert resources.of("https://api.github.com/search/users", "api.github.com") == "search"
    assert resources.of("https://api.github.com/search/code", "api.github.com") == "code_search"
    assert resources.policy("search") == BudgetPolicy(30, 60.0)


def test_what_the_site_calls_a_kind_of_call_is_learned() -> None:
    resources = Resources(None, {"/paid": BudgetPolicy(5, 60.0)})
    assert resources.learn("https://api.example/search/code?q=a", "api.example", "code_search")
    assert resources.of("https://api.example/search/code?q=b", "api.example") == "code_search"
    assert resources.of("https://api.example/search/users", "api.example") == "core"
    assert not resources.learn("https://api.example/paid/1", "api.example", "core"), "what is configured stays"
    for number in range(200):
        resources.learn(f"https://api.example/x/{number}", "api.example", f"kind{number}")
    assert resources.of("https://api.example/x/5", "api.example") == "kind5"
    assert resources.of("https://api.example/x/199", "api.example") == "core", "a site cannot make budgets without end"
