"""The targets: every city with every category, the large cities first and with more pages."""

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from state_assignments import DATA, STATES

# Of all cities by population: the largest tenth, the rest of the larger half, the smaller half.
TIERS = ((0.1, 1, 3), (0.5, 2, 2), (1.0, 3, 1))


class WrongFile(Exception):
    """A file of cities or categories that cannot be used; its text says where, and what to do."""


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


def read_cities(path: Path = DATA / "cities.csv") -> tuple[list[City], Counter[str]]:
    """The cities of a file with the columns state_id, city, population; the tier comes from the rank among them.

    Places outside the 51 states, such as those of PR, are left out, and counted by their code. Raises WrongFile.
    """
    rows, others = [], Counter()
    for line, row in _rows(path, ("state_id", "city", "population")):
        population = row["population"].replace(",", "").replace(" ", "")
        if not population.isdecimal():
            raise WrongFile(
                f"{path}, line {line}: the population {row['population']!r} is no number; write one such as 3900000"
            )
        if (code := row["state_id"].upper()) in STATES:
            rows.append((int(population), code, row["city"]))
        else:
            others[code] += 1
    rows.sort(key=lambda row: -row[0])
    found = []
    for rank, (_, code, name) in enumerate(rows):
        priority, pages = next((priority, pages) for share, priority, pages in TIERS if rank < share * len(rows))
        found.append(City(code, name, priority, pages))
    return found, others


def read_categories(path: Path = DATA / "categories.csv") -> list[tuple[str, str]]:
    """Label and slug of each category. Raises WrongFile."""
    return [(row["label"], row["slug"]) for _, row in _rows(path, ("label", "slug"))]


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with their lines; each of these columns has a text in each. A BOM is no part of it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
                raise WrongFile(
                    f"{path} has no column {', '.join(missing)}; its first line must be: {','.join(columns)}"
                )
            for row in reader:
                texts = {name: (row[name] or "").strip() for name in columns}
                if empty := [name for name, text in texts.items() if not text]:
                    raise WrongFile(
                        f"{path}, line {reader.line_num}: {empty[0]} is empty; fill it in, or remove the line"
                    )
                yield reader.line_num, texts
    except OSError as error:
        raise WrongFile(f"{path} cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise WrongFile(f"{path} is not UTF-8 text; save it as CSV UTF-8") from None


def make_targets(cities: list[City], categories: list[tuple[str, str]], base_url: str) -> Iterator[Target]:
    """The most important first; equal ones in the order of the states, so that all workers have some from the start."""
    site = base_url.rstrip("/")
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
                primary_url=f"{site}/{city.slug}/{slug}",
                fallback_url=f"{site}/search?{search}",
                max_pages=city.max_pages,
                priority=city.priority,
            )
