"""Entry point of background children: runs `shoal` and stops it when the parent process is gone.

The parent holds the other end of the child's standard input and never writes to it. The end of input means that the
parent has ended: the child drains as after SIGTERM and is killed after the given seconds, with all processes that it
has started, because nobody is left to enforce its limits.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from runpy import run_module

_STDIN = 0


def _stop_when_parent_exits(stop_timeout: float) -> None:
    while os.read(_STDIN, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(stop_timeout)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    seconds = float(sys.argv.pop(1))
    threading.Thread(target=_stop_when_parent_exits, args=(seconds,), name="shoal-parent-watch", daemon=True).start()
    run_module("shoal", run_name="__main__", alter_sys=True)
