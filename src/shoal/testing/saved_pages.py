"""Pages saved for tests: one readable file each, with the URL, the status, the headers and the body.

GET https://shop.example/garden
-> https://shop.example/garden/      one line for each redirect
200
Content-Type: text/html; charset=utf-8

<html>...                            the body, byte for byte
"""

from __future__ import annotations

import mimetypes
import re
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from multidict import CIMultiDict

from shoal.errors import InvalidItem, NotFound, UsageError
from shoal.fetch.page import Page
from shoal.fetch.session import jars_of
from shoal.model.redaction import HIDDEN, is_secret_name, redacted
from shoal.model.url_key import url_key

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from shoal.define.stage import AnyStage
    from shoal.fetch.page import Fetcher, Identity, Request, RequestGate, ResponseStream
    from shoal.fetch.redirects import CookieJars
    from shoal.model.outcome import FinishedAttempt

SUFFIX = ".http"
# About the transfer, which is over; the body is stored as it was decoded.
_LEFT_OUT = {"connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding"}
_MAX_NAME = 80


def save_page(page: Page, folder: Path, name: str | None = None) -> Path:
    """Save a page for tests and return its file. A page of the same URL is replaced, other files are kept.

    Cookies and secrets in URLs and headers are left out: such files are committed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = name or _name_of(page)
    number, file = 1, folder / f"{wanted}{SUFFIX}"
    while file.exists() and not _is_of(file, redacted(page.requested_url)):
        number += 1
        file = folder / f"{wanted}-{number}{SUFFIX}"
    steps = [f"{page.method} {redacted(page.requested_url)}"]
    if page.history or page.url != page.requested_url:
        steps += [f"-> {redacted(url)}" for url in (*page.history[1:], page.url)]
    headers = [
        f"{header}: {redacted(value)}"
        for header, value in page.headers.items()
        if header.lower() not in _LEFT_OUT and not is_secret_name(header)
    ]
    head = "\n".join([*steps, str(page.status), *headers])
    file.write_bytes(head.encode("utf-8", "replace") + b"\n\n" + page.body)
    return file


def load_page(file: Path | str, *, url: str | None = None) -> Page:
    """A page from a file that `save_page` or `shoal try --save` wrote.

    Any other file is a body; its type follows from its name, and `url` says where it is from.
    """
    file = Path(file)
    content = file.read_bytes()
    if file.suffix != SUFFIX:
        if url is None:
            raise UsageError(f"{file} is a body without an address.", remedy="Give its url=.")
        media = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return Page.of(url, content, headers={"Content-Type": media})
    head, separator, body = content.partition(b"\n\n")
    if b"\r\n\r\n" in content and (not separator or content.index(b"\r\n\r\n") < len(head)):
        head, _, body = content.partition(b"\r\n\r\n")  # an editor has changed its line ends
    try:
        first, *lines = head.decode().splitlines()
        method, requested = first.split(" ", 1)
        steps = [line.removeprefix("-> ") for line in lines if line.startswith("-> ")]
        status, *headers = lines[len(steps) :]
        pairs = [(name, value) for name, _, value in (line.partition(": ") for line in headers)]
        page = Page(
            url or (steps[-1] if steps else requested),
            status=int(status),
            headers=CIMultiDict(pairs),
            body=body,
            requested_url=requested,
            method=method,
            history=tuple([requested, *steps[:-1]] if steps else ()),
        )
    except (ValueError, IndexError):
        raise UsageError(
            f"{file} is not a saved page.", remedy="Save it again with `shoal try FILE URL --save FOLDER`."
        ) from None
    return page


def find_page(name: str, folders: list[Path], *, url: str | None = None) -> Page:
    """The page that a test names: a file in one of the folders, its name without the suffix, or the URL of a page."""
    is_url = "://" in name
    for folder in folders:
        if is_url:
            for file in sorted(folder.glob(f"*{SUFFIX}")):
                if _is_of(file, name):
                    return load_page(file)
        else:
            for file in (folder / name, folder / f"{name}{SUFFIX}"):
                if file.is_file():
                    return load_page(file, url=url)
    there = sorted({file.name for folder in folders if folder.is_dir() for file in folder.iterdir()})
    places = ", ".join(map(str, folders))
    raise NotFound(
        f"There is no saved page {name!r} in {places}; there are: {', '.join(there) or 'none'}.",
        remedy=f"Save it with `shoal try FILE {name if is_url else 'URL'} --save {folders[0]}`.",
    )


class RecordingFetcher:
    """Passes requests on, and keeps the pages that come back in `fetched`, but for robots.txt, logins and downloads."""

    def __init__(self, fetcher: Fetcher, fetched: list[Page]) -> None:
        self._fetcher = fetcher
        self._fetched = fetched

    @property
    def jars(self) -> CookieJars | None:
        return jars_of(self._fetcher)

    async def fetch(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        max_body: int | None = None,
        identity: Identity | None = None,
    ) -> Page:
        page = await self._fetcher.fetch(request, gate=gate, jar=jar, max_body=max_body, identity=identity)
        if urlsplit(request.url).path != "/robots.txt" and not request.private:
            self._fetched.append(page)
        return page

    def stream(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
    ) -> AbstractAsyncContextManager[ResponseStream]:
        return self._fetcher.stream(request, gate=gate, jar=jar, identity=identity)

    async def close(self) -> None:
        await self._fetcher.close()


def example_test(stage: AnyStage, files: list[Path], finished: FinishedAttempt) -> list[str]:
    """The lines of a test of a stage with its saved pages; none for an attempt that failed, or a stage without a name
    that a test could import.
    """
    function = stage.function
    module, name = sys.modules.get(function.__module__), getattr(function, "__name__", "")
    if module is None or getattr(module, name, None) is not stage or finished.decision.error is not None:
        return []
    imports, given, pages = "yielded_by", f'shoal_page("{files[0].stem}")', []
    if not stage.fetches:
        imports, given = "FakeHttp, yielded_by", "FakeHttp(pages)"
        loaded = ", ".join(f'shoal_page("{file.stem}")' for file in files)
        pages = [f"    pages = {{page.requested_url: page for page in [{loaded}]}}"]
    # Links that are followed, and records that hooks drop, are not what the handler itself yields.
    is_whole = stage.follow is None and stage.hooks is None and not finished.detail
    first = f"  # the first record: {redacted(str(finished.records[0]))[:80]}" if finished.records else ""
    count = len(finished.records) + len(finished.follow_ups)
    return [
        f"from shoal.testing import {imports}",
        "",
        f"from {function.__module__} import {name}",
        "",
        "",
        f"def test_{name}(shoal_page):",
        *pages,
        f"    found = yielded_by({name}, {given})",
        f"    assert len(found) == {count}{first}" if is_whole else f"    assert found{first}",
    ]


def _is_of(file: Path, url: str) -> bool:
    """Whether a file has the page of this URL."""
    try:
        page = load_page(file)
        return url_key(url) in (url_key(page.requested_url), url_key(page.url))
    except (UsageError, InvalidItem, OSError):
        return False


def _name_of(page: Page) -> str:
    """A file name from the path and the query of a URL."""
    rest = redacted(page.requested_url).partition("://")[2].replace(HIDDEN, "x")
    path = rest.partition("/")[2] or "index"
    words = re.findall(r"[A-Za-z0-9_.]+", path)
    name = "-".join(words)[:_MAX_NAME].strip(".-") or "index"
    return re.sub(r"\.(html?|json|xml|php|aspx?)$", "", name)
