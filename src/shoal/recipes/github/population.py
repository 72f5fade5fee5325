"""The invented developers of the stand-in: made from a seed, each by its number, so that thousands cost nothing."""

from __future__ import annotations

import bisect
import datetime as dt
import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any

# (place, developers). The last one has more in one year than a search shows.
PLACES = (("Suva, Fiji", 60), ("Apia, Samoa", 40), ("Koror, Palau", 20), ("Port Vila, Vanuatu", 2_600))
YEARS = range(2015, 2025)
_CROWDED_YEAR = 2019
_TRAITS = (
    "amber",
    "quiet",
    "brisk",
    "mellow",
    "copper",
    "lunar",
    "tidal",
    "cedar",
    "polar",
    "velvet",
    "hollow",
    "sunny",
)
_ANIMALS = ("otter", "heron", "marten", "lynx", "puffin", "gecko", "tapir", "wren", "ibis", "newt", "vole", "shrike")
_GIVEN = ("Ada", "Bo", "Cleo", "Dov", "Edda", "Finn", "Gita", "Hugo", "Isla", "Juno", "Kai", "Lena")
_FAMILY = ("Ashdown", "Brook", "Calder", "Dunmore", "Ekland", "Farrow", "Glen", "Harbour", "Inlet", "Jarvis")
_WORDS = ("tide", "reef", "palm", "sail", "coral", "drift", "lagoon", "harbour", "beacon", "current")
_LANGUAGES = ("Python", "Rust", "Go", "TypeScript", "C", None)
_ACCOUNTS = (
    ("linkedin", "https://www.linkedin.com/in/{}"),
    ("youtube", "https://youtube.com/@{}"),
    ("mastodon", "https://social.example/@{}"),
    ("generic", "https://{}.hashnode.dev"),
)
_BIOS = (
    None,
    "Builds small tools.",
    "Writes at https://medium.com/@{} about the sea.",
    "Chat: t.me/{} or https://dev.to/{}",
    "Answers on stackoverflow.com/users/{}",
)
_PLATFORM_OF_ACCOUNT = {"linkedin": "linkedin", "youtube": "youtube", "generic": "hashnode"}
_PLACES_IN_BIOS = {
    "medium": "medium.com/@{}",
    "telegram": "t.me/{}",
    "dev_to": "dev.to/{}",
    "stackoverflow": "stackoverflow.com/users/{}",
}


class Population:
    """Developers by number and by login. `places`: how many live where."""

    def __init__(self, seed: int, places: Sequence[tuple[str, int]] = PLACES) -> None:
        self.seed = seed
        self.places = tuple(places)
        self.size = sum(count for _, count in places)

    def login(self, number: int) -> str:
        return f"{_TRAITS[number % len(_TRAITS)]}-{_ANIMALS[number // len(_TRAITS) % len(_ANIMALS)]}-{number}"

    def number(self, login: str) -> int | None:
        """The number of a login, whatever its case; None when there is no such user."""
        tail = login.rpartition("-")[2]
        found = int(tail) if tail.isdigit() and int(tail) < self.size else None
        return found if found is not None and self.login(found) == login.lower() else None

    @cached_property
    def joined(self) -> list[dt.date]:
        """The day that each developer joined on."""
        days = []
        for place, count in self.places:
            rng = random.Random(f"{self.seed} {place}")
            for index in range(count):
                year = _CROWDED_YEAR if count > 1_000 and index % 2 else rng.choice(YEARS)
                days.append(dt.date(year, 1, 1) + dt.timedelta(days=rng.randrange(365)))
        return days

    @cached_property
    def _by_place(self) -> dict[str, list[tuple[dt.date, int]]]:
        found, first = {}, 0
        for place, count in self.places:
            found[place.lower()] = sorted((self.joined[number], number) for number in range(first, first + count))
            first += count
        return found

    def search(self, place: str, since: dt.date, until: dt.date) -> list[int]:
        """Who lives there and joined in this range, in the order in which they joined."""
        people = self._by_place.get(place.lower(), [])
        return [
            number
            for _, number in people[
                bisect.bisect_left(people, (since, -1)) : bisect.bisect_right(people, (until, self.size))
            ]
        ]

    def user(self, number: int) -> dict[str, Any]:
        """A developer as the API shows it, without the addresses of the API itself."""
        rng, login = random.Random(f"{self.seed} user {number}"), self.login(number)
        place = self._place(number)
        bio = rng.choice(_BIOS)
        return {
            "login": login,
            "id": 1_000 + number,
            "type": "User",
            "html_url": f"https://github.com/{login}",
            "avatar_url": f"https://avatars.example/u/{1_000 + number}",
            "name": f"{rng.choice(_GIVEN)} {rng.choice(_FAMILY)}" if rng.random() < 0.9 else None,
            "company": f"@{rng.choice(_WORDS)}-works" if rng.random() < 0.4 else None,
            "blog": rng.choice(("", f"https://{login}.example", f"{login}.example", "https://twitter.com/" + login)),
            "location": place,
            "email": f"{login}@mail.example" if rng.random() < 0.3 else None,
            "hireable": True if rng.random() < 0.3 else None,
            "bio": None if bio is None else bio.replace("{}", login),
            "twitter_username": login.replace("-", "_") if rng.random() < 0.3 else None,
            "public_repos": self._repository_count(number),
            "public_gists": rng.randrange(10),
            "followers": rng.randrange(500),
            "following": rng.randrange(200),
            "created_at": f"{self.joined[number]}T08:00:00Z",
            "updated_at": "2025-06-01T12:00:00Z",
        }

    def social_accounts(self, number: int) -> list[dict[str, str]]:
        rng = random.Random(f"{self.seed} accounts {number}")
        chosen = rng.sample(_ACCOUNTS, rng.randrange(len(_ACCOUNTS)))
        return [{"provider": provider, "url": url.format(self.login(number))} for provider, url in chosen]

    def links(self, number: int) -> dict[str, tuple[str, bool]]:
        """The truth about a developer's links: by platform the URL, and whether it is verified."""
        login, user = self.login(number), self.user(number)
        blog, bio, twitter = user["blog"], user["bio"] or "", user["twitter_username"]
        stated = [(_PLATFORM_OF_ACCOUNT.get(each["provider"]), each["url"]) for each in self.social_accounts(number)]
        stated += [("twitter", f"https://twitter.com/{twitter}")] if twitter else []
        mentioned: list[tuple[str | None, str]] = []
        if blog:
            platform = "twitter" if "//twitter.com/" in blog else None
            mentioned.append((platform, blog if blog.startswith("https://") else f"https://{blog}"))
        places = {platform: place.format(login) for platform, place in _PLACES_IN_BIOS.items()}
        mentioned += [(platform, f"https://{place}") for platform, place in places.items() if place in bio]
        found: dict[str, tuple[str, bool]] = {}
        for verified, links in ((True, stated), (False, mentioned)):
            for known, url in links:
                platform = known or f"other_{1 + sum(name.startswith('other_') for name in found)}"
                found.setdefault(platform, (url, verified))
        return found

    def repositories(self, number: int) -> list[dict[str, Any]]:
        rng, login = random.Random(f"{self.seed} repositories {number}"), self.login(number)
        return [
            {
                "name": (name := f"{rng.choice(_WORDS)}-{index}"),
                "html_url": f"https://github.com/{login}/{name}",
                "description": None if rng.random() < 0.2 else f"A {rng.choice(_WORDS)} for {rng.choice(_WORDS)}s.",
                "language": rng.choice(_LANGUAGES),
                "stargazers_count": rng.randrange(300),
                "fork": False,
            }
            for index in range(self._repository_count(number))
        ]

    def _repository_count(self, number: int) -> int:
        # A few have more than one page of a hundred.
        return 130 if number % 40 == 7 else random.Random(f"{self.seed} count {number}").randrange(12)

    def _place(self, number: int) -> str:
        for place, count in self.places:
            if number < count:
                return place
            number -= count
        raise IndexError(number)
