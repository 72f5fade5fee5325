"""`breakpoint()` in an author's code, while a display uses the terminal and timeouts watch the code."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Any, Self

Callback = Callable[[], None]
TERMINAL = "/dev/tty"


class Breakpoints:
    """Makes `breakpoint()` give a prompt on the terminal, inside a `with` block.

    What was passed to `on_prompt` is called before the prompt appears and after the code continues: displays make way,
    timeouts wait. One thread has a prompt at a time. Leaving the debugger (`q`, Ctrl-D) calls `on_quit`; the code goes
    on, and later breakpoints are ignored. The debugger that `PYTHONBREAKPOINT` names is used instead, and keeps the
    terminal, as nobody says when it is left. A hook that another program has installed stays in place.
    """

    def __init__(self, on_quit: Callback) -> None:
        self._on_quit = on_quit
        self._callbacks: list[tuple[Callback, Callback]] = []
        self._turn = threading.RLock()
        self._quitting = threading.Event()
        self._installed = False

    def on_prompt(self, enter: Callback, leave: Callback) -> None:
        self._callbacks.append((enter, leave))

    def __enter__(self) -> Self:
        chosen = os.environ.get("PYTHONBREAKPOINT", "")
        self._installed = sys.breakpointhook is sys.__breakpointhook__ and chosen != "0"
        if self._installed:
            sys.breakpointhook = self._hand_over if chosen else self._stop_here
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._installed:
            sys.breakpointhook = sys.__breakpointhook__

    def _stop_here(self, *args: Any, **options: Any) -> None:
        if self._quitting.is_set():
            return
        self._enter()
        if self._quitting.is_set():  # by the code that had its turn before
            self._leave()
        else:
            _debugger()(self._enter, self._leave, self._quit).set_trace(sys._getframe(1))

    def _hand_over(self, *args: Any, **options: Any) -> Any:
        if not self._quitting.is_set():
            self._quitting.set()
            for enter, _ in self._callbacks:
                enter()
        return sys.__breakpointhook__(*args, **options)

    def _enter(self) -> None:
        self._turn.acquire()
        for enter, _ in self._callbacks:
            enter()

    def _leave(self) -> None:
        for _, leave in reversed(self._callbacks):
            leave()
        self._turn.release()

    def _quit(self) -> None:
        self._quitting.set()
        self._leave()
        self._on_quit()


@cache
def _debugger() -> type[Any]:
    """Python's debugger is imported when it is needed: it is large."""
    import pdb

    class Debugger(pdb.Pdb):
        """Python's debugger, created after the display has made way. It leaves SIGINT alone: Ctrl-C stops the run."""

        def __init__(self, enter: Callback, leave: Callback, quit_: Callback) -> None:
            self._files = () if sys.stdin.isatty() and sys.stdout.isatty() else _open_terminal()
            streams: dict[str, Any] = dict(zip(("stdin", "stdout"), self._files, strict=False))
            super().__init__(nosigint=True, **streams)
            if self._files:
                self.use_rawinput = False
            self._enter, self._leave, self._quit = enter, leave, quit_
            self._has_terminal = True

        def interaction(self, *args: Any, **options: Any) -> None:
            if not self._has_terminal:  # a breakpoint that was set at an earlier prompt
                self._has_terminal = True
                self._enter()
            super().interaction(*args, **options)

        def set_continue(self) -> None:
            super().set_continue()
            self._give_back(self._leave)

        def set_quit(self) -> None:
            """Instead of raising BdbQuit, which would count as an error of the handler."""
            self.clear_all_breaks()
            super().set_continue()
            self._give_back(self._quit)

        def _give_back(self, callback: Callback) -> None:
            if self._has_terminal:
                self._has_terminal = False
                if not self.get_all_breaks():
                    for file in self._files:
                        file.close()
                callback()

    return Debugger


def _open_terminal() -> tuple[Any, ...]:
    """The terminal itself, for when standard input or output is something else; nothing when there is none."""
    with suppress(OSError):
        return open(TERMINAL, encoding="utf-8"), open(TERMINAL, "w", encoding="utf-8")
    return ()
