"""The newspapers of the stand-in and their stories: invented, and the same for the same seed."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence

import msgspec

PAGE_SIZE = 4
STORIES = 14
# Stories that are published when the fault `news` is switched on.
NEW_STORIES = 3
NEWEST = dt.date(2024, 6, 28)
_PLACES = ("Harbour Point", "Coral Bay", "Reef Town", "North Lagoon", "Palm Creek", "Shell Beach", "Mango Hill")
_SUBJECTS = ("Council", "Fishers", "Students", "Ferry company", "Choir", "Farmers", "Rugby club", "Clinic", "Market")
_VERBS = ("open", "repair", "plan", "celebrate", "discuss", "welcome", "finish", "measure")
_OBJECTS = ("a new jetty", "the old seawall", "a seed bank", "the school hall", "a weather station", "the bus route")
_TAGS = ("Sea", "Schools", "Health", "Sport", "Roads", "Weather", "Farming", "Music")
_SENTENCES = (
    "The work began in the morning and took {n} days.",
    "About {n} people came to {place} to see it.",
    "It cost {n} thousand, most of it given by neighbours.",
    "The next meeting is in {n} weeks at {place}.",
    "Boats from {place} brought timber and {n} bags of sand.",
)
SECTIONS = ("local", "sport", "video", "local")


class Paper(msgspec.Struct, frozen=True):
    """A newspaper: its country and file name, the host that serves it, and the layout of its pages."""

    country: str
    title: str
    host: str
    layout: str

    @property
    def key(self) -> str:
        return f"{self.country}/{self.title}"


class Story(msgspec.Struct, frozen=True):
    """A story. `byline` and `notice` are what cleaning removes or filters."""

    number: int
    title: str
    date: dt.date
    paragraphs: tuple[str, ...]
    tags: tuple[str, ...]
    section: str
    author: str
    notice: bool

    @property
    def text(self) -> str:
        return " ".join(self.paragraphs)

    @property
    def slug(self) -> str:
        return self.title.lower().replace(" ", "-")


_SINGLES = (
    ("fiji", "fiji_dispatch", "cards"),
    ("fiji", "lagoon_post", "two_sections"),
    ("samoa", "samoa_courier", "start_page"),
    ("samoa", "tide_gazette", "offsets"),
    ("tonga", "tonga_lookout", "outside"),
    ("vanuatu", "le_courrier_du_lagon", "french"),
    ("kiribati", "kiribati_log", "daily"),
    ("palau", "palau_herald", "monthly"),
    ("nauru", "nauru_notes", "api_ids"),
    ("solomon_islands", "solomon_wire", "api_offset"),
    ("papua_new_guinea", "highland_news", "api_body"),
    ("cook_islands", "cook_islands_star", "api_picky"),
    ("tuvalu", "tuvalu_signal", "notices"),
)
_WEEKLY = ("fiji", "kiribati", "nauru", "palau", "samoa", "tonga", "vanuatu")
_REVIEW = ("fiji", "samoa", "tonga", "tuvalu")
_LAYOUTS = ("cards", "daily", "api_offset")


def make_papers() -> list[Paper]:
    """13 newspapers of one country, one in seven countries and one in four; each site has an address of its own."""
    papers = [Paper(country, title, f"127.0.2.{n}", layout) for n, (country, title, layout) in enumerate(_SINGLES, 1)]
    papers += [Paper(country, "island_weekly", "127.0.2.21", _LAYOUTS[n % 3]) for n, country in enumerate(_WEEKLY)]
    papers += [Paper(country, "ocean_review", "127.0.2.22", _LAYOUTS[n % 3]) for n, country in enumerate(_REVIEW)]
    return papers


PAPERS = make_papers()
HOSTS = tuple(dict.fromkeys(paper.host for paper in PAPERS))


def make_stories(paper: Paper, seed: int) -> list[Story]:
    """All stories of a newspaper, the newest first; the first few are published later."""
    chance = random.Random(f"{seed} {paper.key}")
    day, stories = NEWEST, []
    for number in range(STORIES + NEW_STORIES, 0, -1):
        stories.append(_story(chance, number, day))
        # Some days have two stories, some have none.
        day -= dt.timedelta(days=chance.choice((0, 1, 1, 2, 4)))
    return stories


def _story(chance: random.Random, number: int, day: dt.date) -> Story:
    place = chance.choice(_PLACES)
    title = f"{chance.choice(_SUBJECTS)} {chance.choice(_VERBS)} {chance.choice(_OBJECTS)} {number}"
    paragraphs = tuple(
        sentence.format(n=chance.randint(2, 90), place=place) for sentence in chance.sample(_SENTENCES, 3)
    )
    return Story(
        number=number,
        title=title,
        date=day,
        paragraphs=paragraphs,
        tags=tuple(chance.sample(_TAGS, 2)),
        section=SECTIONS[number % len(SECTIONS)],
        author=f"Desk {chance.randint(1, 9)}",
        notice=number % 5 == 0,
    )


def published(stories: Sequence[Story], *, news: bool) -> list[Story]:
    """The stories that readers see now."""
    return list(stories if news else stories[NEW_STORIES:])
