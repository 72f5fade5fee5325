"""A folder of newspapers: one template in Python that many small YAML files feed, and what the site saw of each."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.support.project import Command, Project
from tests.support.site import Site, Visit

TEMPLATE = """
    from dataclasses import dataclass

    @dataclass
    class Where:
        urls: list[str]

    paper = Scraper("paper", settings=Where, robots=False)

    @paper.stage(retries=0, concurrency=100)
    async def article(page: Page):
        yield {"paper": paper.name, "url": page.url}

    paper.start(lambda: [article.item(url) for url in paper.settings.urls])
"""


def set_up(project: Project) -> None:
    project.write(TEMPLATE, "template.py")


def add(project: Project, key: str, *urls: str, **keys: Any) -> Path:
    """A member that fetches these pages."""
    country, newspaper = key.split("/")
    file = project.folder / "configs" / country / f"{newspaper}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    # JSON is YAML.
    file.write_text(json.dumps({"scraper": "template.py:paper", "urls": list(urls), **keys}))
    return file


def slow(site: Site, key: str, seconds: float, pages: int = 1) -> list[str]:
    """Pages of a member that take so long each; the site's log tells by the path whose they are."""
    return [f"{site.url}/slow/{seconds:g}/{key}/{number}" for number in range(pages)]


def by_member(visits: list[Visit]) -> dict[str, list[Visit]]:
    """What the site saw of each member: /slow/SECONDS/COUNTRY/NEWSPAPER/N."""
    found: dict[str, list[Visit]] = defaultdict(list)
    for visit in visits:
        parts = visit.path.split("/")
        if parts[1] == "slow":
            found[f"{parts[3]}/{parts[4]}"].append(visit)
    return dict(found)


def span(visits: list[Visit]) -> tuple[float, float]:
    """From the first request to the end of the last."""
    return min(visit.start for visit in visits), max(visit.end or float("inf") for visit in visits)


def reports(command: Command) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """What `--json` printed: every member, and the totals."""
    lines = [json.loads(line) for line in command.stdout.splitlines()]
    return {line["member"]: line for line in lines[:-1]}, lines[-1]
