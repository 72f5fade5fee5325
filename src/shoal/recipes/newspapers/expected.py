"""What a correct scraper gets from the stand-in with the files of the project: computed from the stories alone."""

from __future__ import annotations

from typing import Any

from shoal.recipes.newspapers.papers import PAPERS, Paper, Story
from shoal.recipes.newspapers.stand_in import NewspaperSites, archive_begin

BY_KEY = {paper.key: paper for paper in PAPERS}


def expected_records(site: NewspaperSites, key: str, url: str) -> list[dict[str, Any]]:
    """The records of a newspaper, the newest first. `url`: the address of the newspaper's site."""
    paper = BY_KEY[key]
    return [_record(paper, story, url) for story in site.stories(key) if is_wanted(paper, story)]


def is_wanted(paper: Paper, story: Story) -> bool:
    """Whether the file of the newspaper keeps this story."""
    match paper.layout:
        case "daily":
            return story.date >= archive_begin()
        case "api_ids":
            return story.section != "video"
        case "api_offset":
            return story.section == "local"
        case "api_picky":
            return "celebrate" not in story.slug
        case "notices":
            return not story.notice
        case _:
            return True


def has_page(paper: Paper, story: Story) -> bool:
    """Whether the page of this story has to be fetched: dropped ones are, when only their text shows it."""
    return paper.layout != "api_body" and (is_wanted(paper, story) or paper.layout == "notices")


def _record(paper: Paper, story: Story, url: str) -> dict[str, Any]:
    tags = [tag.lower() for tag in story.tags] if paper.layout == "notices" else list(story.tags)
    record = {
        "url": f"{url}/{paper.key}/story/{story.number}-{story.slug}",
        "title": story.title,
        "date": story.date.isoformat(),
        "body": story.text,
        "tags": tags,
        "source": paper.title.replace("_", " ").title().replace(" Du ", " du "),
        "country": paper.country if "_" not in paper.country else _country_name(paper.country),
    }
    return {**record, "section": story.section} if paper.layout == "api_offset" else record


def _country_name(country: str) -> str:
    """As the files write the names of countries with several words."""
    return country.replace("_", " ").title()
