"""The targets: every city with every category, the large cities first and with more pages."""

import csv
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from state_assignments import DATA, STATES

# Of all cities by population: the largest tenth, the rest of the larger half, the smaller half.
TIERS = ((0.1, 1, 3), (0.5, 2, 2), (1.0, 3, 1))


@dataclass(frozen=True)
class City:
    """`priority`: 1 comes first. `max_pages`: of results that are read for it."""

    state_id: str
    name: str
    priority: int
    max_pages: int

    @property
    def slug(self) -> str:
        """`los-angeles-ca`; letters lose their accents: Cañon City is `canon-city-co`."""
        letters = unicodedata.normalize("NFKD", f"{self.name} {self.state_id}".lower())
        plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
        return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


@dataclass(frozen=True)
class Target:
    """A city and a category, with the pages to look at."""

    provider: str
    state_id: str
    city: str
    city_slug: str
    yp_geo: str
    category_label: str
    category_slug: str
    primary_url: str
    fallback_url: str
    max_pages: int
    priority: int

    @property
    def key(self) -> str:
        return f"{self.city_slug}/{self.category_slug}"


def read_cities(path: Path = DATA / "cities.csv") -> list[City]:
    """The cities of a file with the columns state_id, city, population; the tier comes from the rank in the file."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: -int(row["population"]))
    unknown = {row["state_id"] for row in rows} - set(STATES)
    if unknown:
        raise SystemExit(f"{path} has states that there are not: {', '.join(sorted(unknown))}")
    found = []
    for rank, row in enumerate(rows):
        priority, pages = next((priority, pages) for share, priority, pages in TIERS if rank < share * len(rows))
        found.append(City(row["state_id"], row["city"], priority, pages))
    return found


def read_categories(path: Path = DATA / "categories.csv") -> list[tuple[str, str]]:
    """Label and slug of each category."""
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["label"], row["slug"]) for row in csv.DictReader(file)]


def make_targets(cities: list[City], categories: list[tuple[str, str]], base_url: str) -> Iterator[Target]:
    """The most important first; equal ones in the order of the states, so that all workers have some from the start."""
    for city in sorted(cities, key=lambda city: city.priority):
        for label, slug in categories:
            geo = f"{city.name}, {city.state_id}"
            search = urlencode({"search_terms": label, "geo_location_terms": geo})
            yield Target(
                provider="yellowpages",
                state_id=city.state_id,
                city=city.name,
                city_slug=city.slug,
                yp_geo=geo,
                category_label=label,
                category_slug=slug,
                primary_url=f"{base_url}/{city.slug}/{slug}",
                fallback_url=f"{base_url}/search?{search}",
                max_pages=city.max_pages,
                priority=city.priority,
            )
