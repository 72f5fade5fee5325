"""One call of the command line: its flags, its settings and its output.

stdout carries data and nothing else; notes and errors go to stderr. Secrets are redacted from all output.
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
from shoal.project import find_project

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.service.console import Console

T = TypeVar("T")
BOLD, DIM, RED, RESET = "\x1b[1m", "\x1b[2m", "\x1b[1;31m", "\x1b[0m"


class Session:
    """Created before the arguments are parsed and filled in by them, so that errors follow the output options."""

    def __init__(self) -> None:
        self.flags: Mapping[str, str | None] = {}
        self.own_options: frozenset[str] = frozenset()  # settings given by options of this command
        self.options_typed: Mapping[str, str] = {}  # every option that was typed, by parameter name
        self.json = False
        self.quiet = False
        self.verbose = False
        self.no_input = False
        self.stubborn = False  # a task ignored its cancellation: the process must be ended

    @cached_property
    def settings(self) -> Settings:
        """The settings, read once on first use."""
        return self.read_settings()

    def read_settings(self) -> Settings:
        """Read the settings from flags, environment variables and files again."""
        from shoal.config import load_settings

        return load_settings(self.flags, environ=os.environ, folder=Path.cwd(), own_options=self.own_options)

    def wait(self, work: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
        """Run a coroutine to its end; `fast` uses uvloop, which takes longer to load."""
        import asyncio

        factory = None
        if fast:
            from shoal.wiring import event_loop_factory

            factory = event_loop_factory()
        runner = asyncio.Runner(loop_factory=factory)
        runner.get_loop().set_exception_handler(lambda _, context: self._report_leftover(context))
        try:
            return runner.run(work)
        finally:
            if self._cancel_tasks(runner.get_loop()):
                runner.close()

    def console(self) -> Console:
        """What shows the events of an operation as this command's flags ask for."""
        from shoal.service.console import Console

        return Console(quiet=self.quiet, print_note=self.note, print_error=self.complain)

    def with_ledger(self, work: Callable[[Ledger], Coroutine[Any, Any, T]], *, create: bool = False) -> T:
        """Open the ledger and run this with it. It must exist; with `create` a SQLite one is made on first use."""

        async def open_and_run() -> T:
            from shoal.service.lookup import ledger_named_in_errors
            from shoal.wiring import ledger_context

            async with ledger_context(self.settings, migrate=None if create else False) as ledger:
                with ledger_named_in_errors(self.settings):
                    return await work(ledger)

        return self.wait(open_and_run())

    def _cancel_tasks(self, loop: AbstractEventLoop) -> bool:
        """Cancel what is left and return whether all of it ended; a task that ignores it for a second did not."""
        import asyncio

        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            _, left = loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        self.stubborn = bool(left)
        return not left

    def typed(self, *names: str) -> str:
        """Those of these options that were typed, as arguments of another command: ` -o data/ -j 4`."""
        return "".join(f" {self.options_typed[name]}" for name in names if name in self.options_typed)

    def note(self, text: str) -> None:
        """Write a message to stderr unless `-q` was given."""
        if not self.quiet:
            self._say(text, "info")

    def progress(self, text: str, *, every: float = 2.0) -> Callable[[int], None]:
        """Return a callback that notes `text`, with {} for its number, at most every so many seconds."""
        import time

        next_at = time.monotonic() + every

        def report(number: int) -> None:
            nonlocal next_at
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + every
                self.note(text.format(f"{number:,}"))

        return report

    def complain(self, text: str) -> None:
        """Write an error to stderr."""
        self._say(text, "error")

    def _say(self, text: str, level: str) -> None:
        # Keeps the order of data and messages where both go to the same file.
        with suppress(OSError, OutputFailed):  # reported when the command ends
            sys.stdout.flush()
        if (event := getattr(sys.stderr, "event", None)) is not None:  # a JsonStream
            event(level, self.redacted(text))
            return
        print(self.redacted(text), file=sys.stderr, flush=True)

    def data(self, text: str) -> None:
        """Write text to stdout."""
        print(self.redacted(text))

    def record(self, value: Any) -> None:
        """Write one JSON value on one line, without secrets."""
        import msgspec

        from shoal.model.redaction import redacted_value

        plain = redacted_value(msgspec.to_builtins(value, str_keys=True), self.secrets)
        self.json_text(msgspec.json.encode(plain).decode())

    def json_text(self, text: str) -> None:
        """Write a line of JSON such as a stored record unchanged, without redaction."""
        if not takes_unicode() and not text.isascii():
            import json

            text = json.dumps(json.loads(text))
        print(text)

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> None:
        """Write columns with headers, numbers to the right; the same text to a terminal and to a pipe."""
        cells = [[_cell(value) for value in row] for row in rows]
        numeric = [bool(column) and all(_is_number(value) for value in column) for column in zip(*cells, strict=True)]
        widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
        for number, line in enumerate([list(headers), *cells]):
            text = indent + "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric or [False] * len(headers), strict=True)
            )
            self.data(self.styled(text.rstrip(), DIM) if number == 0 else text.rstrip())

    def _report_leftover(self, context: Mapping[str, Any]) -> None:
        """Report what asyncio found at the end, such as a connection that broke after its last use; only with -v."""
        if self.verbose:
            self.complain(f"{context['message']}: {context.get('exception')!r}")

    def styled(self, text: str, style: str, stream: TextIO | None = None) -> str:
        """The text with a style, when the stream shows colours."""
        return f"{style}{text}{RESET}" if has_colour(stream or sys.stdout) else text

    def redacted(self, text: str) -> str:
        """The text without secrets."""
        from shoal.model.redaction import redacted

        return redacted(text, self.secrets)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not be printed; none before the settings were read."""
        known = self.__dict__.get("settings")
        return known.secrets() if known is not None else ()


@contextmanager
def json_stderr_if_configured(arguments: Sequence[str]) -> Iterator[None]:
    """With `log_format = json`, make every line on stderr JSON for the length of a block."""
    if sys.stderr is None or not _may_configure_log_format(arguments):
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


def _may_configure_log_format(arguments: Sequence[str]) -> bool:
    """Whether reading the settings is worth its time: most projects do not configure logs."""
    if any("log" in text for text in arguments) or "SHOAL_LOG_FORMAT" in os.environ:
        return True
    folder = find_project(Path(), os.environ)
    for name in (".env", "shoal.toml", "pyproject.toml"):
        with suppress(OSError):
            if b"log_format" in (folder / name).read_bytes().lower():
                return True
    return False


def has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _cell(value: object) -> str:
    text = "-" if value is None or value == "" else str(value)
    # Keys and errors contain text of sites, which must not control the terminal.
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit() or text == "-"
