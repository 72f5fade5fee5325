"""The stages, with invented answers: `FakeHttp` gives them by URL, keeps the requests, and sends nothing."""

import pytest

from shoal import EarlierRuns, Item, Page, Transient
from shoal.errors import UsageError
from shoal.testing import FakeHttp, yielded_by

from github import Settings, profile, social, start_items, username

API = Settings(api="http://api.example", locations="Suva, Fiji; Apia", first_year=2023, last_year=2024)
SEARCH = (
    "http://api.example/search/users?q=type%3Auser+location%3A%22Apia%22+created%3A{}..{}"
    "&sort=joined&order=asc&per_page=100&page={}"
)
ROW = {"username": "Quiet-Heron", "bio": "Chat: t.me/heron", "blog": "heron.example", "followers": 3}


def found_by(
    total: int, since: str = "2023-01-01", until: str = "2023-12-31", page: int = 1, incomplete: bool = False
) -> list:
    url = SEARCH.format(since, until, page)
    users = [{"login": "Quiet-Heron", "html_url": "https://github.com/Quiet-Heron"}]
    http = FakeHttp({url: {"total_count": total, "incomplete_results": incomplete, "items": users}})
    payload = {"place": "Apia", "since": since, "until": until, "page": page}
    return yielded_by(username, Item(key="a search", payload=payload), http, API)


def test_a_search_leads_to_profiles_and_to_its_further_pages():
    record, item, *pages = found_by(230)
    assert record == {"username": "Quiet-Heron", "profile_url": "https://github.com/Quiet-Heron", "place": "Apia"}
    assert item == profile.item(key="quiet-heron", payload={"username": "Quiet-Heron"})
    assert [page.payload["page"] for page in pages] == [2, 3]
    assert len(found_by(230, page=3)) == 2  # only the first page leads to others


@pytest.mark.parametrize(("again", "found"), [(False, ["new"]), (True, ["Quiet-Heron", "new"])])
def test_a_search_leaves_out_whom_an_earlier_run_has_profiled(again, found):
    users = [{"login": login, "html_url": f"https://github.com/{login}"} for login in ("Quiet-Heron", "new")]
    http = FakeHttp(
        {SEARCH.format("2023-05-05", "2023-05-05", 1): {"total_count": 2, "incomplete_results": False, "items": users}}
    )
    item = Item(key="a search", payload={"place": "Apia", "since": "2023-05-05", "until": "2023-05-05"})
    settings = Settings(api=API.api, profile_again=again)
    yielded = yielded_by(username, item, http, settings, EarlierRuns({"profile": ["quiet-heron"]}))
    assert [each["username"] for each in yielded if isinstance(each, dict)] == found
    assert [each.payload["username"] for each in yielded if not isinstance(each, dict)] == found


def test_a_search_with_too_many_results_is_split_by_date():
    halves = found_by(1_001)
    assert [(half.payload["since"], half.payload["until"]) for half in halves] == [
        ("2023-01-01", "2023-07-02"),
        ("2023-07-03", "2023-12-31"),
    ]


def test_a_search_that_timed_out_at_github_is_tried_again():
    """Its count and its results are too small."""
    with pytest.raises(Transient) as raised:
        found_by(3, incomplete=True)
    assert raised.value.retry_after == 5


def test_a_day_cannot_be_split():
    """What GitHub shows of it is taken."""
    record, _, *pages = found_by(1_500, since="2023-05-05", until="2023-05-05")
    assert record["username"] == "Quiet-Heron"
    assert len(pages) == 9


def test_a_profile_is_one_record_and_goes_on_to_its_links():
    user = {
        "login": "Quiet-Heron",
        "html_url": "https://github.com/Quiet-Heron",
        "blog": "heron.example",
        "hireable": True,
    }
    record, item = yielded_by(
        profile, Item(key="quiet-heron"), FakeHttp({"http://api.example/users/quiet-heron": user}), API
    )
    assert (record["username"], record["profile_url"], record["hireable"]) == ("Quiet-Heron", user["html_url"], True)
    assert len(record) == 17
    assert (item.stage, item.key, item.payload["blog"]) == ("social", "quiet-heron", "heron.example")


@pytest.mark.parametrize(("exponential", "delays"), [(True, [5, 10, 20]), (False, [5, 5, 5])])
def test_errors_are_tried_again_after_a_delay(exponential, delays):
    http = FakeHttp({"http://api.example/users/quiet-heron": Page.of("http://api.example/", "", status=502)})
    settings = Settings(api="http://api.example", exponential_backoff=exponential)
    found = []
    for tries in range(3):
        with pytest.raises(Transient) as raised:
            yielded_by(profile, Item(key="quiet-heron", tries=tries), http, settings)
        found.append(raised.value.retry_after)
    assert found == delays


@pytest.mark.parametrize("status", ["PROFILED", "ENHANCED"])
def test_an_imported_row_needs_no_request_for_its_profile(status):
    http = FakeHttp({})
    assert yielded_by(profile, Item(key="quiet-heron", payload={"row": ROW, "status": status}), http, API) == [ROW]
    assert http.urls == []


def test_an_imported_failure_is_profiled_when_it_is_tried_again():
    user = {"login": "Quiet-Heron", "html_url": "https://github.com/Quiet-Heron", "followers": 4}
    http = FakeHttp({"http://api.example/users/quiet-heron": user})
    payload = {"row": {**ROW, "last_error": "404 Not Found"}, "status": "FAILED"}
    record, item = yielded_by(profile, Item(key="quiet-heron", payload=payload), http, API)
    assert (record["followers"], item.stage) == (4, "social")


def test_links_and_the_repositories_with_the_most_stars():
    repositories = [
        {
            "name": f"r{n}",
            "stargazers_count": n % 7,
            "language": "C",
            "html_url": f"https://x/r{n}",
            "description": None,
        }
        for n in range(20)
    ]
    base = "http://api.example/users/quiet-heron"
    accounts = [{"provider": "linkedin", "url": "https://www.linkedin.com/in/heron"}]
    http = FakeHttp(
        {
            f"{base}/social_accounts?per_page=100": accounts,
            f"{base}/repos?per_page=100&page=1&sort=pushed": repositories,
        }
    )
    payload = {**ROW, "twitter_username": None}
    records = yielded_by(social, Item(key="quiet-heron", payload=payload), http, API)
    links = [(each["platform"], each["verified"]) for each in records if each["kind"] == "social_link"]
    assert links == [("linkedin", True), ("other_1", False), ("telegram", False)]
    best = [(each["order"], each["name"]) for each in records if each["kind"] == "repository"]
    assert best == [(1, "r13"), (2, "r6"), (3, "r12"), (4, "r19"), (5, "r5")]


def test_what_a_run_starts_with(tmp_path):
    assert len(list(start_items(API))) == 4  # two places, two years
    names = tmp_path / "names.txt"
    lines = [
        "# people",
        "Quiet-Heron",
        "",
        "@amber-otter",
        "  # note",
        "teal_ibis # a note",
        "https://github.com/grey-wren/",
    ]
    names.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    found = list(start_items(Settings(usernames_file=str(names))))
    assert [item.key for item in found] == ["quiet-heron", "amber-otter", "teal_ibis", "grey-wren"]


@pytest.mark.parametrize("line", ["two words", "https://gitlab.example/heron", "heron/ponds", "-heron"])
def test_lines_that_are_no_user_names_are_reported(tmp_path, line):
    names = tmp_path / "names.txt"
    names.write_text(f"Quiet-Heron\n{line}\n")
    with pytest.raises(UsageError, match=f"line 2: {line}"):
        list(start_items(Settings(usernames_file=str(names))))


def test_a_missing_file_of_user_names():
    with pytest.raises(UsageError, match="USERNAMES_FILE cannot be read"):
        list(start_items(Settings(usernames_file="nowhere.txt")))


def test_a_file_without_a_user_name(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("# nobody yet\n\n")
    with pytest.raises(UsageError, match=r"names.txt has no user name"):
        list(start_items(Settings(usernames_file=str(names))))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"first_year": 2025}, "FIRST_YEAR is 2025 and LAST_YEAR is 2024"),
        ({"last_year": 2014}, "FIRST_YEAR is 2015 and LAST_YEAR is 2014"),
        ({"first_year": 0}, "from 2008 to 9999"),
        ({"last_year": 20244}, "from 2008 to 9999"),
        ({"retry_delay": -5}, "RETRY_DELAY is -5"),
        ({"api": "api.github.com"}, "GITHUB_API is 'api.github.com'"),
    ],
)
def test_values_that_cannot_be_meant(values, said):
    with pytest.raises(ValueError, match=said):
        Settings(**values)
