"""A command on a terminal of its own: what it shows, and keys for it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from types import TracebackType
from typing import IO, Self

from tests.support.fork_server import COMMAND
from tests.support.project import Project, clean_environment

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
_PATIENCE = 60.0


class Terminal:
    """`shoal` in a project, on a terminal that controls it; used as a context, and killed at its end if need be.

    `stdout`: a file that standard output goes to instead.
    """

    def __init__(self, project: Project, *arguments: str, columns: int = 80, stdout: IO[str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        size = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24"}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=project.folder,
            env=clean_environment(project.folder, SHOAL_LEDGER=project.ledger, **size),
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - it is one system call
        )
        os.close(theirs)
        self.raw = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    @property
    def text(self) -> str:
        """All that was written, in order, without the codes that move the cursor."""
        return ESCAPE.sub("", self.raw)

    def type(self, text: str, *, end: str = "\n") -> None:
        os.write(self._ours, f"{text}{end}".encode())

    def wait_for(self, text: str, *, after: int = 0) -> int:
        """Read until the text appears behind the position `after` of `text`; return the position behind it."""
        deadline = time.monotonic() + _PATIENCE
        while (found := self.text.find(text, after)) < 0:
            assert self._read(deadline), f"{text!r} did not appear in {self.text}"
        return found + len(text)

    def wait(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + _PATIENCE
        while self._read(deadline):
            pass
        return self.process.wait(timeout=_PATIENCE)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            chunk = os.read(self._ours, 65_536)
        except OSError:  # how Linux says that the other end was closed
            return False
        self.raw += chunk.decode(errors="replace")
        return bool(chunk)
