"""Developers on GitHub, in three stages: found by search, profiled, enhanced with social links and repositories.

A stage has its own workers: `shoal worker github --stage profile`. The views in `views/` show the ledger as the tables
`developers`, `social_links` and `repositories`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from shoal import EarlierRuns, Http, Item, Log, Scraper, Transient
from shoal.errors import UsageError

from links import social_links

# GitHub shows the first 1,000 results of a search, 100 on a page.
SEARCH_CAP, PAGE_SIZE = 1_000, 100
TOP_REPOSITORIES = 5
# The year in which GitHub began.
FOUNDED = 2008
# A user name as people write it, or the address of the profile.
USER = re.compile(r"(?:@|(?:https?://)?(?:www\.)?github\.com/)?([a-z\d][a-z\d_-]*)/?", re.IGNORECASE | re.ASCII)
HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}


@dataclass
class Settings:
    """[scrapers.github.settings] of shoal.toml. `locations` are separated by semicolons: "Suva, Fiji; Samoa"."""

    api: str = "https://api.github.com"
    locations: str = ""
    first_year: int = 2015
    last_year: int = 2024
    usernames_file: str = ""
    profile_again: bool = False
    repository_pages: int = 3
    retry_delay: float = 5
    exponential_backoff: bool = True

    def __post_init__(self):
        """Raises ValueError for a value that cannot be meant, by the name that it has in .env."""
        if not re.match(r"https?://[^/\s]", self.api):
            raise ValueError(f"GITHUB_API is {self.api!r}, it must begin with https:// or http://")
        if not FOUNDED <= self.first_year <= self.last_year <= date.max.year:
            years = f"FIRST_YEAR is {self.first_year} and LAST_YEAR is {self.last_year}"
            raise ValueError(
                f"{years}, they must be from {FOUNDED} to {date.max.year}, the first one not after the last"
            )
        if not 0 <= self.retry_delay < float("inf"):
            raise ValueError(f"RETRY_DELAY is {self.retry_delay}, it must be 0 or more seconds")


github = Scraper(
    "github",
    settings=Settings,
    headers=HEADERS,
    views="views",
    start_remedy="Set LOCATIONS or USERNAMES_FILE in .env.",
)


@github.stage(egress="github", pace="identity", delay=2, concurrency=100, record_key="username")
async def username(item: Item, http: Http, settings: Settings, log: Log, earlier: EarlierRuns):
    """One search: people at a place who joined between two days. A search with too many results is split in two.

    Whom an earlier run has profiled is left out, unless `profile_again` is set.
    """
    place, since, until = (item.payload[name] for name in ("place", "since", "until"))
    first, last, page = date.fromisoformat(since), date.fromisoformat(until), item.payload.get("page", 1)
    query = {
        "q": f'type:user location:"{place}" created:{since}..{until}',
        "sort": "joined",
        "order": "asc",
        "per_page": PAGE_SIZE,
        "page": page,
    }
    found = await get("/search/users", query, item, http, settings)
    if found["incomplete_results"]:
        raise Transient("the search timed out at GitHub", retry_after=delay_after_error(item, settings))
    total = found["total_count"]
    if page == 1 and total > SEARCH_CAP:
        if first < last:
            middle = first + (last - first) // 2
            yield search(place, first, middle)
            yield search(place, middle + timedelta(days=1), last)
            return
        log.warning("more results than GitHub shows", place=place, day=since, total=total)
    people = {user["login"].lower(): user for user in found["items"]}
    known = set() if settings.profile_again else await earlier.finished(profile.name, people)
    for key, user in people.items():
        if key not in known:
            yield {"username": user["login"], "profile_url": user["html_url"], "place": place}
            yield profile.item(key=key, payload={"username": user["login"]})
    if page == 1:
        for number in range(2, -(-min(total, SEARCH_CAP) // PAGE_SIZE) + 1):
            yield search(place, first, last, page=number)


@github.stage(egress="github", pace="identity", delay=2, concurrency=100)
async def profile(item: Item, http: Http, settings: Settings):
    """The 17 fields of a developer. PROFILED and ENHANCED rows of `import_developers.py` have them already."""
    if item.payload.get("status") in ("PROFILED", "ENHANCED"):
        yield item.payload["row"]
        return
    row = fields_of(await get(f"/users/{item.key}", {}, item, http, settings))
    yield row
    yield links_of(item.key, row)


@github.stage(egress="github", pace="identity", delay=2, concurrency=100)
async def social(item: Item, http: Http, settings: Settings):
    """The links of a developer to other platforms, and the repositories with the most stars."""
    who = item.payload
    accounts = await get(f"/users/{item.key}/social_accounts", {"per_page": PAGE_SIZE}, item, http, settings)
    for link in social_links(accounts, who["twitter_username"], who["blog"], who["bio"]):
        yield {"kind": "social_link", "username": who["username"], **link}
    repositories = []
    for page in range(1, settings.repository_pages + 1):
        query = {"per_page": PAGE_SIZE, "page": page, "sort": "pushed"}
        answer = await get(f"/users/{item.key}/repos", query, item, http, settings)
        repositories += answer
        if len(answer) < PAGE_SIZE:
            break
    best = sorted(repositories, key=lambda each: (-each["stargazers_count"], each["name"]))[:TOP_REPOSITORIES]
    for order, each in enumerate(best, start=1):
        yield {
            "kind": "repository",
            "username": who["username"],
            "order": order,
            "name": each["name"],
            "stars": each["stargazers_count"],
            "language": each["language"],
            "url": each["html_url"],
            "description": each["description"],
        }


async def get(path: str, query: dict, item: Item, http: Http, settings: Settings):
    """An answer of the API. After an error the next try waits `retry_delay` seconds, doubled from try to try."""
    try:
        return (await http.get(settings.api + path, params=query)).json()
    except Transient as error:
        error.retry_after = max(delay_after_error(item, settings), error.retry_after or 0)
        raise


def delay_after_error(item: Item, settings: Settings) -> float:
    return settings.retry_delay * (2**item.tries if settings.exponential_backoff else 1)


def fields_of(user: dict) -> dict:
    """A user of the API as a row of `developers`."""
    same = ("name", "email", "bio", "location", "company", "blog", "twitter_username", "hireable", "followers")
    more = ("following", "public_repos", "public_gists", "avatar_url", "created_at", "updated_at")
    return {
        "username": user["login"],
        "profile_url": user["html_url"],
        **{name: user.get(name) for name in (*same, *more)},
    }


def links_of(key: str, row: dict):
    """The item of a developer's links and repositories."""
    payload = {name: row.get(name) for name in ("username", "twitter_username", "blog", "bio")}
    return social.item(key=key, payload=payload)


def search(place: str, since: date, until: date, page: int = 1):
    """The item of a search; further pages follow the first one."""
    payload = {"place": place, "since": str(since), "until": str(until), "page": page}
    return username.item(key=f"{place} {since}..{until} page {page}", payload=payload)


def start_items(settings: Settings) -> Iterator:
    """A search for each place and year; or, with a file of user names, a profile for each of them."""
    if settings.usernames_file:
        for name in read_usernames(settings.usernames_file):
            yield profile.item(key=name.lower(), payload={"username": name})
        return
    for place in filter(None, (place.strip() for place in settings.locations.split(";"))):
        for year in range(settings.first_year, settings.last_year + 1):
            yield search(place, date(year, 1, 1), date(year, 12, 31))


def read_usernames(file: str) -> list[str]:
    """The user names of a file: a name or the address of a profile on a line, `#` begins a comment."""
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"USERNAMES_FILE cannot be read: {error}", remedy="Correct it in .env.") from error
    found = {number: text for number, line in enumerate(lines, start=1) if (text := line.partition("#")[0].strip())}
    wrong = [f"line {number}: {text}" for number, text in found.items() if not USER.fullmatch(text)]
    if wrong:
        shown = "; ".join(wrong[:5]) + ("; ..." if len(wrong) > 5 else "")
        remedy = "Correct or remove these lines; nothing was stored."
        raise UsageError(f"{file} has {len(wrong)} lines that are no user name of GitHub: {shown}.", remedy=remedy)
    if not found:
        raise UsageError(
            f"USERNAMES_FILE: {file} has no user name.", remedy="Write one on each line; nothing was stored."
        )
    return [match[1] for text in found.values() if (match := USER.fullmatch(text))]


github.start(start_items)
