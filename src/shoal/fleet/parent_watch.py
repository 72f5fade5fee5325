"""Entry point of child processes: runs `shoal` and stops it when the parent process is gone.

The parent holds the other end of a pipe and never writes to it: of the child's standard input, or in the foreground of
another descriptor. The end of input means that the parent has ended: the child drains as after SIGTERM and is killed
after the given seconds, because nobody is left to enforce its limits; one in the background with all processes that it
has started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from runpy import run_module

# What follows it: the descriptor of the pipe, and the name that the command was called by.
FOREGROUND = "--foreground"
_STDIN = 0


def _stop_when_parent_exits(pipe: int, stop_timeout: float, kill: Callable[[], None]) -> None:
    while os.read(pipe, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(stop_timeout)
    kill()


def _kill_session() -> None:
    os.killpg(0, signal.SIGKILL)


def _kill_self() -> None:
    """In the foreground the process group is that of whoever has started the parent."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    seconds = float(sys.argv.pop(1))
    is_foreground = sys.argv[1:2] == [FOREGROUND]
    watched = (int(sys.argv[2]), seconds, _kill_self) if is_foreground else (_STDIN, seconds, _kill_session)
    threading.Thread(target=_stop_when_parent_exits, args=watched, name="shoal-parent-watch", daemon=True).start()
    if is_foreground:
        sys.argv = sys.argv[3:]
        sys.path[0] = os.path.dirname(sys.argv[0])
    run_module("shoal", run_name="__main__", alter_sys=not is_foreground)
