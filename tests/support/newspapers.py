"""Pages of made-up newspapers, and YAML files that declare them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.site import Site


def story(number: int, *, day: str = "", body: str = "", tags: Iterable[str] = ()) -> str:
    text = body or f"<p>Story {number} begins.</p><script>hide()</script><p>It ends<br>here.</p>"
    links = "".join(f'<a class="tag">{tag}</a>' for tag in tags)
    return (
        f'<html><head><title>{number}</title></head><body><h1>Story {number}</h1><time datetime="{day}">{day}</time>'
        f'<div class="text">{text}</div>{links}</body></html>'
    )


def cards(numbers: Iterable[int], *, day: str = "5 June 2024") -> str:
    """A listing page: a card for each story."""
    boxes = "".join(
        f'<li class="card"><h2><a href="/story/{number}">Story <b>{number}</b></a></h2><i>{day}</i></li>'
        for number in numbers
    )
    return f"<html><body><h1>News</h1><ul>{boxes}</ul></body></html>"


def paged(pages: int, each: int = 2, *, prefix: str = "/news/") -> dict[str, str]:
    """Listing pages from 1 on, and the stories on them."""
    listing = {f"{prefix}{page}": cards(range((page - 1) * each + 1, page * each + 1)) for page in range(1, pages + 1)}
    return {**listing, **{f"/story/{number}": story(number) for number in range(1, pages * each + 1)}}


SELECTORS: dict[str, Any] = {
    "thumbnail": {"container": ".card", "title": "h2", "url": "h2 a::attr(href)", "date": "i::text"},
    "article": {"body": ".text p", "date": "time::attr(datetime)", "tags": ".tag::text"},
}


def write_paper(
    folder: Path, base_url: str, listing: Mapping[str, Any], path: str = "configs/fiji/times.yaml", **more: Any
) -> str:
    """A newspaper's file; its path, to be given to a command. JSON is YAML too."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    paper = {"base_url": base_url, "listing": listing, "selectors": SELECTORS, "rate_limit": 0, **more}
    file.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in paper.items()))
    return path


def paths(site: Site, prefix: str) -> list[str]:
    """What was asked of the site below this path, in order."""
    return [visit.path for visit in site.visits() if visit.path.startswith(prefix)]
