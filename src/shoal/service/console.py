"""Shows events on stderr: a progress display on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from shoal.fleet.process import DRAINING
from shoal.observe.breakpoints import Breakpoints
from shoal.observe.progress import TerminalDisplay, open_display
from shoal.service.events import Event, FeedProgress, Host, RunEnded, RunProgress, StopRequest

_SHOW_CURSOR = "\x1b[?25h"  # a progress display hides it


class Console:
    """A listener for events, to be used in a `with` block. `quiet` shows nothing but why the process ends itself.

    `print_note` writes one plain line; `print_error` one that is shown even when quiet. Both may be called from any
    thread.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        print_note: Callable[[str], None] | None = None,
        print_error: Callable[[str], None] | None = None,
    ) -> None:
        self._quiet = quiet
        self._print_note = print_note or _print_to_stderr
        self._print_error = print_error or _print_to_stderr
        self._display: TerminalDisplay | None = None
        self._closing = ExitStack()
        self._stop = StopRequest()
        self._breakpoints: Breakpoints | None = None
        self._suspended = 0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._breakpoints = Breakpoints(on_quit=self._quit_debugger)
            self._breakpoints.on_prompt(self._suspend, self._resume)
            self._breakpoints.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._breakpoints is not None:
            self._breakpoints.__exit__(kind, error, traceback)
        self._close_display()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunProgress):
            self._open_display(event).update(event.reading)
        elif isinstance(event, FeedProgress):
            if self._display is not None:
                self._display.show_note(event.line)
        elif isinstance(event, RunEnded):
            self._close_display()
        elif event.text:
            self.print_line(event.text)

    def print_line(self, text: str) -> None:
        """Print one line, above the progress display if there is one."""
        if self._quiet:
            return
        if self._display is not None:
            self._display.print_line(text)
        else:
            self._print_note(text)

    def host(self, *, handles_signals: bool = True, ends_hung_process: bool = True) -> Host:
        """The host of an operation whose events and log lines this console shows.

        On a terminal, where progress is shown, only warnings are logged unless the settings choose a level.
        """
        on_terminal = sys.stderr.isatty()
        return Host(
            on_event=self,
            log_stream=None if self._quiet else (self.print_line if on_terminal else sys.stderr),
            log_level="warning" if on_terminal else None,
            stop=self._stop,
            handles_signals=handles_signals,
            end_process=self._end_process if ends_hung_process else None,
            shows_failures=on_terminal and not self._quiet,
            breakpoints=self._breakpoints,
        )

    def _open_display(self, event: RunProgress) -> TerminalDisplay:
        if self._display is None:
            run = event.reading.snapshot.run
            display = open_display(self._print_note, quiet=self._quiet, title=f"{run.scraper} {run.id}")
            self._display = self._closing.enter_context(display)
            for _ in range(self._suspended):
                self._display.suspend()
        return self._display

    def _close_display(self) -> None:
        self._display = None
        self._closing.close()

    def _suspend(self) -> None:
        self._suspended += 1
        if self._display is not None:
            self._display.suspend()

    def _resume(self) -> None:
        self._suspended -= 1
        if self._display is not None:
            self._display.resume()

    def _quit_debugger(self) -> None:
        self._stop.request()
        self.print_line(f"The debugger was left. {DRAINING}")

    def _end_process(self, code: int, why: str) -> None:
        if self._quiet:  # otherwise the log has just said it
            self._print_error(f"This process exits: {why}.")
        if sys.stderr.isatty():
            sys.stderr.write(_SHOW_CURSOR)
            sys.stderr.flush()
        os._exit(code)


def _print_to_stderr(text: str) -> None:
    from shoal.model.redaction import redacted

    print(redacted(text), file=sys.stderr, flush=True)
