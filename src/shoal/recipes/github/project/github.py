"""Developers on GitHub, in three stages: found by search, profiled, enhanced with social links and repositories.

A stage has its own workers: `shoal worker github --stage profile`. The views in `views/` show the ledger as the tables
`developers`, `social_links` and `repositories`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from shoal import Http, Item, Log, Permanent, Scraper, Transient

from links import social_links

# GitHub shows the first 1,000 results of a search, 100 on a page.
SEARCH_CAP, PAGE_SIZE = 1_000, 100
TOP_REPOSITORIES = 5
HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}


@dataclass
class Settings:
    """[scrapers.github.settings] of shoal.toml. `locations` are separated by semicolons: "Suva, Fiji; Samoa"."""

    api: str = "https://api.github.com"
    locations: str = ""
    first_year: int = 2015
    last_year: int = 2024
    usernames_file: str = ""
    repository_pages: int = 3
    retry_delay: float = 5
    exponential_backoff: bool = True


github = Scraper("github", settings=Settings, headers=HEADERS, views="views")


@github.stage(egress="github", pace="identity", delay=2, concurrency=100, record_key="username")
async def username(item: Item, http: Http, settings: Settings, log: Log):
    """One search: people at a place who joined between two days. A search with too many results is split in two."""
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
    total = found["total_count"]
    if page == 1 and (total > SEARCH_CAP or found.get("incomplete_results")):
        if first < last:
            middle = first + (last - first) // 2
            yield search(place, first, middle)
            yield search(place, middle + timedelta(days=1), last)
            return
        log.warning("more results than GitHub shows", place=place, day=since, total=total)
    for user in found["items"]:
        yield {"username": user["login"], "profile_url": user["html_url"], "place": place}
        yield profile.item(key=user["login"].lower(), payload={"username": user["login"]})
    if page == 1:
        for number in range(2, -(-min(total, SEARCH_CAP) // PAGE_SIZE) + 1):
            yield search(place, first, last, page=number)


@github.stage(egress="github", pace="identity", delay=2, concurrency=100)
async def profile(item: Item, http: Http, settings: Settings):
    """The 17 fields of a developer. Rows that `import_developers.py` stored have them already."""
    row = item.payload.get("row")
    if row is None:
        row = fields_of(await get(f"/users/{item.key}", {}, item, http, settings))
    elif item.payload["status"] == "FAILED":
        raise Permanent(row.get("last_error") or "failed before the import")
    yield row
    known = {name: row.get(name) for name in ("username", "twitter_username", "blog", "bio", "public_repos")}
    yield social.item(key=item.key, payload={**known, "enhanced": item.payload.get("status") == "ENHANCED"})


@github.stage(egress="github", pace="identity", delay=2, concurrency=100)
async def social(item: Item, http: Http, settings: Settings):
    """The links of a developer to other platforms, and the repositories with the most stars."""
    who = item.payload
    if who["enhanced"]:  # by the system that the row was imported from
        return
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
        delay = settings.retry_delay * (2**item.tries if settings.exponential_backoff else 1)
        error.retry_after = max(delay, error.retry_after or 0)
        raise


def fields_of(user: dict) -> dict:
    """A user of the API as a row of `developers`."""
    same = ("name", "email", "bio", "location", "company", "blog", "twitter_username", "hireable", "followers")
    more = ("following", "public_repos", "public_gists", "avatar_url", "created_at", "updated_at")
    return {
        "username": user["login"],
        "profile_url": user["html_url"],
        **{name: user.get(name) for name in (*same, *more)},
    }


def search(place: str, since: date, until: date, page: int = 1):
    """The item of a search; further pages follow the first one."""
    payload = {"place": place, "since": str(since), "until": str(until), "page": page}
    return username.item(key=f"{place} {since}..{until} page {page}", payload=payload)


def start_items(settings: Settings) -> Iterator:
    """A search for each place and year; or, with a file of user names, a profile for each of them."""
    if settings.usernames_file:
        for line in Path(settings.usernames_file).read_text(encoding="utf-8").splitlines():
            if (name := line.strip().lstrip("@")) and not line.startswith("#"):
                yield profile.item(key=name.lower(), payload={"username": name})
        return
    for place in filter(None, (place.strip() for place in settings.locations.split(";"))):
        for year in range(settings.first_year, settings.last_year + 1):
            yield search(place, date(year, 1, 1), date(year, 12, 31))


@github.on_start
async def check_settings(settings: Settings, log: Log):
    if not settings.locations and not settings.usernames_file:
        log.warning("no searches: neither LOCATIONS nor USERNAMES_FILE is set in .env")


github.start(start_items)
