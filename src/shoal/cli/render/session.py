"""One use of the command line: its flags, its settings, and what it says where.

stdout carries data and nothing else; notes and errors go to stderr. Whatever is said is redacted first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from shoal.cli.render.streams import takes_unicode
from shoal.errors import OutputFailed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from shoal.config import Settings

T = TypeVar("T")
BOLD, DIM, RED, RESET = "\x1b[1m", "\x1b[2m", "\x1b[1;31m", "\x1b[0m"


class Session:
    """Made before the arguments are read and filled in by them, so that errors can be told the way they ask for."""

    def __init__(self) -> None:
        self.flags: Mapping[str, str | None] = {}
        self.own_options: frozenset[str] = frozenset()  # settings that options of this very command gave
        self.options_typed: Mapping[str, str] = {}  # every option that was typed, by its parameter's name
        self.json = False
        self.quiet = False
        self.verbose = False
        self.no_input = False
        self.stubborn = False  # something still runs that cannot be ended in a friendly way

    @cached_property
    def settings(self) -> Settings:
        """Read on first use, once."""
        return self.read_settings()

    def read_settings(self) -> Settings:
        """The settings as flags, variables and files say now."""
        from shoal.config import load_settings

        return load_settings(self.flags, environ=os.environ, folder=Path.cwd(), own_options=self.own_options)

    def wait(self, work: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
        """Run something asynchronous to its end; `fast` takes the faster loop, which takes longer to load."""
        import asyncio

        runner = asyncio.Runner(loop_factory=_fast_loop() if fast else None)
        runner.get_loop().set_exception_handler(lambda _, context: self._afterthought(context))
        try:
            return runner.run(work)
        finally:
            if self._ended(runner.get_loop()):
                runner.close()

    def _ended(self, loop: AbstractEventLoop) -> bool:
        """Whether nothing runs any more. What ignores being cancelled for a second would keep the process for ever."""
        import asyncio

        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            _, left = loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        self.stubborn = bool(left)
        return not left

    def typed(self, *names: str) -> str:
        """Those of these options that were typed, as they would be typed again behind a command: ` -o data/ -j 4`."""
        return "".join(f" {self.options_typed[name]}" for name in names if name in self.options_typed)

    def note(self, text: str) -> None:
        """Something for the person at the terminal, left out with `-q`."""
        if not self.quiet:
            self._say(text, "info")

    def progress(self, text: str, *, every: float = 2.0) -> Callable[[int], None]:
        """Says now and then how far something is that takes long: `text` with {} for the number."""
        import time

        next_at = time.monotonic() + every

        def told(number: int) -> None:
            nonlocal next_at
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + every
                self.note(text.format(f"{number:,}"))

        return told

    def complain(self, text: str) -> None:
        """An error: always said."""
        self._say(text, "error")

    def _say(self, text: str, level: str) -> None:
        # Data that was written before comes before it also where both go to the same file.
        with suppress(OSError, OutputFailed):  # told of at the end
            sys.stdout.flush()
        if (event := getattr(sys.stderr, "event", None)) is not None:  # a JsonStream
            event(level, self.redacted(text))
            return
        print(self.redacted(text), file=sys.stderr, flush=True)

    def data(self, text: str) -> None:
        print(self.redacted(text))

    def record(self, value: Any) -> None:
        """One JSON value on one line, without secrets."""
        import msgspec

        from shoal.model.redaction import redacted_value

        plain = redacted_value(msgspec.to_builtins(value, str_keys=True), self.secrets)
        self.json_text(msgspec.json.encode(plain).decode())

    def json_text(self, text: str) -> None:
        """A line of JSON that somebody asked for, such as a stored record: it is data, and written as it is."""
        if not takes_unicode() and not text.isascii():
            import json

            text = json.dumps(json.loads(text))
        print(text)

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> None:
        """Columns with their headers, numbers to the right. The same text on a terminal and in a pipe."""
        cells = [[_cell(value) for value in row] for row in rows]
        numeric = [bool(column) and all(_is_number(value) for value in column) for column in zip(*cells, strict=True)]
        widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
        for number, line in enumerate([list(headers), *cells]):
            text = indent + "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric or [False] * len(headers), strict=True)
            )
            self.data(self.styled(text.rstrip(), DIM) if number == 0 else text.rstrip())

    def _afterthought(self, context: Mapping[str, Any]) -> None:
        """What asyncio finds left over, such as a connection that broke while nobody waited for it any more."""
        if self.verbose:
            self.complain(f"{context['message']}: {context.get('exception')!r}")

    def styled(self, text: str, style: str, stream: TextIO | None = None) -> str:
        """The text in a style, where the stream shows one."""
        return f"{style}{text}{RESET}" if has_colour(stream or sys.stdout) else text

    def redacted(self, text: str) -> str:
        """The text without passwords."""
        from shoal.model.redaction import redacted

        return redacted(text, self.secrets)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be printed. Only settings that were read can have put it into a message."""
        known = self.__dict__.get("settings")
        return known.secrets() if known is not None else ()


@contextmanager
def stderr_as_asked(arguments: Sequence[str]) -> Iterator[None]:
    """S0.26: with JSON logs every line on stderr is JSON, whoever writes it."""
    if sys.stderr is None or not _speaks_of_json(arguments):
        yield
        return
    from shoal.config.load import find_log_format
    from shoal.observe.log_text import JsonStream

    if find_log_format(arguments, environ=os.environ, folder=Path()) != "json":
        yield
        return
    before = sys.stderr
    sys.stderr = JsonStream(before)
    try:
        yield
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        sys.stderr = before


def _speaks_of_json(arguments: Sequence[str]) -> bool:
    """Whether a look at the settings is worth its time: most projects have none about logs."""
    if any("log" in text for text in arguments) or "SHOAL_LOG_FORMAT" in os.environ:
        return True
    for name in (".env", "shoal.toml", "pyproject.toml"):
        with suppress(OSError):
            if b"log_format" in Path(name).read_bytes().lower():
                return True
    return False


def _fast_loop() -> Callable[[], AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    return uvloop.new_event_loop


def has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _cell(value: object) -> str:
    text = "-" if value is None or value == "" else str(value)
    # What a site put into a key or an error must not steer the terminal.
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit() or text == "-"
