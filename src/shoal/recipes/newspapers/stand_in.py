"""The sites of 24 invented newspapers: numbered pages, archives by day and month, JSON APIs.

`python -m shoal.recipes.newspapers.stand_in` serves them on addresses of the loopback, one for each site.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, ClassVar, Self

from shoal.demo.stand_in import JSON, TEXT, RunningStandIn, StandIn, StandInRequest, StandInResponse, main
from shoal.recipes.newspapers.papers import HOSTS, NEWEST, PAGE_SIZE, PAPERS, Paper, Story, make_stories, published

_FRENCH_MONTHS = (
    *("janvier", "février", "mars", "avril", "mai", "juin", "juillet"),
    *("août", "septembre", "octobre", "novembre", "décembre"),
)
# What many APIs say of a page behind their last one.
_NO_SUCH_PAGE = json.dumps({"code": "invalid_page_number", "message": "The page number is larger than their number."})
# The first and the last day that the archives of the project ask for.
ARCHIVE_DAYS = 60


class NewspaperSites(StandIn):
    """All newspapers. The path of a page begins with its country and its newspaper."""

    name = "newspapers"
    default_port = 8002
    FAULTS: ClassVar = {
        "news": "every newspaper publishes three more stories",
        "gone": "one story of fiji/fiji_dispatch is answered with 404",
        "down": "samoa/island_weekly answers 503",
        "redesign": "the cards of tonga/tonga_lookout have another class",
        "undated": "samoa/samoa_courier shows no dates",
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._papers = {paper.key: paper for paper in PAPERS}
        self._stories = {paper.key: make_stories(paper, self.seed) for paper in PAPERS}

    @contextmanager
    def serving(self, *, port: int = 0, hosts: Sequence[str] = HOSTS) -> Iterator[RunningStandIn[Self]]:
        with super().serving(port=port, hosts=hosts) as running:
            yield running

    def stories(self, key: str) -> list[Story]:
        """What a newspaper has published, the newest first."""
        return published(self._stories[key], news="news" in self.faults)

    async def answer(self, request: StandInRequest) -> StandInResponse:
        parts = request.path.strip("/").split("/")
        if request.path == "/robots.txt":
            return StandInResponse(body="User-agent: *\nAllow: /\n", content_type=TEXT)
        paper = self._papers.get("/".join(parts[:2]))
        if paper is None or paper.host != request.host:
            return StandInResponse(status=404)
        if "down" in self.faults and paper.key == "samoa/island_weekly":
            return StandInResponse(status=503, note=paper.key)
        if paper.layout == "api_picky" and "Mozilla" not in request.headers.get("User-Agent", ""):
            return StandInResponse(status=403, note=paper.key)
        stories = self.stories(paper.key)
        if paper.layout == "api_body" and parts[2:3] == ["api"] and not _page(stories, int(request.query["page"])):
            return StandInResponse(status=400, body=_NO_SUCH_PAGE, content_type=JSON, note=paper.key)
        if parts[2:3] == ["story"]:
            body = self._story_page(paper, stories, parts[3])
        else:
            body = self._listing(paper, stories, parts[2:], request)
        if body is None:
            return StandInResponse(status=404, note=paper.key)
        kind = JSON if body.startswith(("{", "[")) else "text/html; charset=utf-8"
        return StandInResponse(body=body, content_type=kind, note=paper.key)

    def _listing(self, paper: Paper, stories: list[Story], path: list[str], request: StandInRequest) -> str | None:
        if path[:1] == ["api"]:
            return _api(paper, stories, request)
        if path[:1] == ["archive"]:
            return self._archive(paper, stories, "-".join(path[1:]))
        if paper.layout == "two_sections":
            own = [story for story in stories if (story.section == "sport") == (path[0] == "sport")]
            return self._cards(paper, _page(own, int(path[1])))
        if paper.layout == "offsets":
            return self._cards(paper, stories[int(request.query["from"]) :][:PAGE_SIZE])
        number = int(path[1]) if len(path) > 1 else 1
        return self._cards(paper, _page(stories, number)) if _page(stories, number) else None

    def _archive(self, paper: Paper, stories: list[Story], period: str) -> str | None:
        found = [story for story in stories if story.date.isoformat().startswith(period)]
        # Days without stories have no page, or an empty one.
        if not found:
            return None if int(period[-2:]) % 2 else self._cards(paper, [])
        return self._cards(paper, found)

    def _cards(self, paper: Paper, stories: list[Story]) -> str:
        css = "story-card" if not ("redesign" in self.faults and paper.layout == "outside") else "tile"
        undated = "undated" in self.faults and paper.layout == "start_page"
        boxes = "".join(
            f'<li class="{css} wide"><h2><a href="{_story_path(paper, story)}"><b>{escape(story.title.split()[0])}</b>'
            f" {escape(story.title.partition(' ')[2])}</a></h2>"
            f"<span>{'' if undated else _written(paper, story.date)}</span></li>"
            for story in stories
        )
        return f'<html><body><div class="river"><ul class="list">{boxes}</ul></div></body></html>'

    def _story_page(self, paper: Paper, stories: list[Story], name: str) -> str | None:
        story = next((story for story in stories if name.split("-", maxsplit=1)[0] == str(story.number)), None)
        if story is None or ("gone" in self.faults and paper.key == "fiji/fiji_dispatch" and story.number == 7):
            return None
        text = "".join(f"<p>{escape(each)}</p>" for each in story.paragraphs)
        byline = f"<p>By {escape(story.author)}.</p>" if paper.layout == "cards" else ""
        notice = "<p>This is a paid notice.</p>" if paper.layout == "notices" and story.notice else ""
        tags = "".join(f'<a class="tag">{escape(tag)}</a>' for tag in story.tags)
        day = _written(paper, story.date)
        return (
            f"<html><head><title>{escape(paper.title)}</title></head><body><h1>{escape(story.title)}</h1>"
            f"<time>{day}</time><div class='text'><script>track()</script>{byline}{text}{notice}</div>{tags}"
            "</body></html>"
        )


def _page(stories: list[Story], number: int) -> list[Story]:
    return stories[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]


def _story_path(paper: Paper, story: Story) -> str:
    return f"/{paper.key}/story/{story.number}-{story.slug}"


def _written(paper: Paper, day: dt.date) -> str:
    if paper.layout == "french":
        return f"Publié le {day.day} {_FRENCH_MONTHS[day.month - 1]} {day.year}"
    return f"{day:%d %B %Y}"


def _api(paper: Paper, stories: list[Story], request: StandInRequest) -> str:
    size = int(request.query.get("size", PAGE_SIZE))
    first = int(request.query["offset"]) if "offset" in request.query else (int(request.query["page"]) - 1) * size
    posts = [
        {
            "id": story.number,
            "slug": story.slug,
            "link": _story_path(paper, story),
            "title": {"rendered": story.title},
            "date": f"{story.date}T08:00:00",
            "meta": {"section": story.section},
            "content": {"rendered": "".join(f"<p>{escape(each)}</p>" for each in story.paragraphs)},
            "categories": [{"name": tag} for tag in story.tags],
        }
        for story in stories[first : first + size]
    ]
    return json.dumps({"data": {"posts": posts, "total": len(stories)}})


def archive_begin() -> dt.date:
    """The first day of the archives."""
    return NEWEST - dt.timedelta(days=ARCHIVE_DAYS)


if __name__ == "__main__":
    sys.exit(main(NewspaperSites))
