"""Pages of made-up newspapers, and YAML files that declare them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

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


class ChangingSite:
    """A site whose pages a test may change while it is up. `asked` are the paths that were asked for, in order.

    `errors`: the status of pages that fail.
    """

    def __init__(self, pages: Mapping[str, str], errors: Mapping[str, int] | None = None) -> None:
        self.pages = dict(pages)
        self.errors = dict(errors or {})
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                body = site.pages.get(self.path)
                self.send_response(site.errors.get(self.path, 404 if body is None else 200))
                self.send_header("Content-Length", str(len((body or "").encode())))
                self.end_headers()
                self.wfile.write((body or "").encode())

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def stories(self) -> list[str]:
        """The numbers of the stories that were asked for, sorted."""
        return sorted(path.removeprefix("/story/") for path in self.asked if path.startswith("/story/"))

    def listed(self) -> list[str]:
        """The other pages that were asked for."""
        return [path for path in self.asked if not path.startswith(("/story/", "/robots.txt"))]
