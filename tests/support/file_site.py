"""A file on a raw site: with validators, ranges, and connections that break where a test wants it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from tests.support.raw_site import Seen


class ServedFile:
    """Answers with `content`, as a site.answers function.

    `break_after`: how many bytes of each answer are sent before the connection breaks; then whole ones. `ranges`: obey
    Range and If-Range. `headers`: more of them. `etag`, `last_modified`: its validators; None sends none. `hold`: wait
    for `released` before the first byte behind `hold` bytes.
    """

    def __init__(
        self,
        content: bytes,
        *,
        etag: str | None = '"v1"',
        last_modified: str | None = None,
        break_after: tuple[int, ...] = (),
        ranges: bool = True,
        if_range: bool = True,
        headers: dict[str, str] | None = None,
        pause: Callable[[int], float] | None = None,
    ) -> None:
        self.content = content
        self.etag = etag
        self.last_modified = last_modified
        self.break_after = list(break_after)
        self.ranges = ranges
        self.if_range = if_range
        self.headers = headers or {}
        self.pause = pause
        self.asked: list[tuple[str | None, str | None]] = []

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        wanted, condition = seen.headers.get("range"), seen.headers.get("if-range")
        self.asked.append((wanted, condition))
        headers = dict(self.headers)
        if self.etag:
            headers["ETag"] = self.etag
        if self.last_modified:
            headers["Last-Modified"] = self.last_modified
        if (known := seen.headers.get("if-none-match")) is not None and known == self.etag:
            writer.write(_head(304, headers))
            await writer.drain()
            return
        start, status = 0, 200
        if wanted and self.ranges and (not self.if_range or condition in (self.etag, self.last_modified)):
            found = re.fullmatch(r"bytes=(\d+)-", wanted)
            assert found, wanted
            start, status = int(found[1]), 206
            if start >= len(self.content):
                writer.write(_head(416, {"Content-Range": f"bytes */{len(self.content)}", "Content-Length": "0"}))
                await writer.drain()
                return
            headers.setdefault("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        body = self.content[start:]
        headers.setdefault("Content-Length", str(len(body)))
        writer.write(_head(status, headers))
        limit = self.break_after.pop(0) if self.break_after else len(body)
        for position in range(0, limit, 65_536):
            writer.write(body[position : min(position + 65_536, limit)])
            await writer.drain()
            if self.pause is not None:
                await asyncio.sleep(self.pause(position))
        if limit < len(body):
            await asyncio.sleep(0.05)  # what was written arrives before the connection ends


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
