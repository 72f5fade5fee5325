"""What a run found, as it goes and as Markdown at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Line(NamedTuple):
    """A result; `good` is None for a figure."""

    section: str
    text: str
    detail: str
    good: bool | None


class Report:
    """Checks and figures by section, printed when they are known."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._section = ""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """What goes wrong inside is a miss of this section, and the next one goes on."""
        self._section = name
        print(f"\n## {name}", flush=True)
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            self.check("goes to its end", False, f"{type(error).__name__}: {error}")
        self.seconds[name] = time.monotonic() - began

    def check(self, text: str, good: bool, detail: str = "") -> None:
        self._add(Line(self._section, text, detail, good))

    def figure(self, text: str, value: object) -> None:
        self._add(Line(self._section, text, str(value), None))

    def _add(self, line: Line) -> None:
        self.lines.append(line)
        mark = {True: "ok  ", False: "MISS", None: "    "}[line.good]
        print(f"{mark} {line.text}" + (f": {line.detail}" if line.detail else ""), flush=True)

    @property
    def misses(self) -> list[Line]:
        return [line for line in self.lines if line.good is False]

    def markdown(self) -> str:
        """A table for each section."""
        out = []
        for name, seconds in self.seconds.items():
            out += [f"## {name}", "", f"{seconds:.0f} s.", "", "| | | |", "|---|---|---|"]
            for line in (each for each in self.lines if each.section == name):
                mark = {True: "ok", False: "**miss**", None: ""}[line.good]
                detail = line.detail.replace("|", "\\|").replace("\n", " ")
                out.append(f"| {line.text} | {detail} | {mark} |")
            out.append("")
        return "\n".join(out)
