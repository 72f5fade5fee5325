"""Serves the built dashboard: its files, and `index.html` for every path of a page, so that each view has a URL.

`web/` is built into `static/`. Names under `assets/` contain a hash of their content, so browsers keep them for ever.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shoal.control.answers import error_response

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
BASE = b'<base href="/">'
# Paths of the API and of other programs: an unknown one is an error, not a page.
NOT_PAGES = ("api", "jobs", "metrics", "healthz", "readyz", "assets")
FOR_EVER = "public, max-age=31536000, immutable"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
NOT_BUILT = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Shoal</title>
<h1>The dashboard was not built</h1>
<p>This is a checkout of the source: <code>make setup</code> builds the dashboard. Packages contain it.</p>
<p>The API works without it: <code>/api/v1/openapi.json</code> describes it.</p>
</html>
"""


class StaticFile(msgspec.Struct, frozen=True):
    """A file with its precompressed forms by their content encoding."""

    path: Path
    encoded: dict[str, Path]


class Dashboard:
    """The files of a folder. They are listed once, so no request can name another file."""

    def __init__(self, folder: Path, root_path: str) -> None:
        self._folder = folder
        self._root_path = root_path
        self._files: dict[str, StaticFile] = {}
        self._listed_at = 0.0

    def respond(self, path: str, headers: Headers) -> Response | None:
        """The answer to a GET; None when there is no such page or file."""
        self._list_files()
        name = path.strip("/")
        if name and name != INDEX and (found := self._files.get(name)) is not None:
            return self._file(name, found, headers)
        is_page = name in ("", INDEX) or (
            name.partition("/")[0] not in NOT_PAGES and "text/html" in headers.get("accept", "")
        )
        if not is_page:
            return None
        if INDEX not in self._files:
            return Response(NOT_BUILT, 404, media_type=TYPES[".html"])
        return self._index(headers)

    def _index(self, headers: Headers) -> Response:
        content = self._files[INDEX].path.read_bytes()
        content = content.replace(BASE, f'<base href="{self._root_path}/">'.encode(), 1)
        tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
        given = {"etag": tag, "cache-control": "no-cache"}
        if headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=given)
        return Response(content, headers=given, media_type=TYPES[".html"])

    def _file(self, name: str, found: StaticFile, headers: Headers) -> Response:
        accepted = {each.partition(";")[0].strip() for each in headers.get("accept-encoding", "").split(",")}
        encoding = next((each for each in ("br", "gzip") if each in accepted and each in found.encoded), None)
        content = (found.path if encoding is None else found.encoded[encoding]).read_bytes()
        given = {
            "cache-control": FOR_EVER if name.startswith("assets/") else "no-cache",
            "etag": f'"{hashlib.sha256(content).hexdigest()[:24]}"',
            "vary": "Accept-Encoding",
        }
        if headers.get("if-none-match") == given["etag"]:
            return Response(status_code=304, headers=given)
        if encoding is not None:
            given["content-encoding"] = encoding
        media_type = TYPES.get(found.path.suffix, "application/octet-stream")
        return Response(content, headers=given, media_type=media_type)

    def _list_files(self) -> None:
        """Again when `index.html` has changed: a build replaces all files."""
        try:
            changed_at = (self._folder / INDEX).stat().st_mtime
        except OSError:
            changed_at = 0.0
        if changed_at == self._listed_at:
            return
        names = {path.relative_to(self._folder).as_posix(): path for path in self._folder.rglob("*") if path.is_file()}
        self._files = {
            name: StaticFile(
                path,
                {
                    encoding: names[name + suffix]
                    for encoding, suffix in (("br", ".br"), ("gzip", ".gz"))
                    if name + suffix in names
                },
            )
            for name, path in names.items()
            if path.suffix not in (".br", ".gz")
        }
        self._listed_at = changed_at


def install(app: FastAPI, root_path: str = "", folder: Path = STATIC) -> None:
    """Answer paths that no route has: a file, a page, or a 404."""
    dashboard = Dashboard(folder, root_path)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            path = scope["path"].removeprefix(root_path) if root_path else scope["path"]
            response = dashboard.respond(path, Headers(scope=scope))
            if response is not None:
                await response(scope, receive, send)
                return
        response = error_response(404, "not_found", "There is nothing at this address.", "See /api/v1/openapi.json.")
        await response(scope, receive, send)

    app.router.default = answer
