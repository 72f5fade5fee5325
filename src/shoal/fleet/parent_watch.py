"""What a parent runs as its child: `shoal`, tied to it by its standard input.

The parent holds the other end and never writes. When it is gone, however it went, the end of input says so, and the
child drains as if it had been told to stop. One that cannot, because a handler blocks it, is killed after a while with
all that it has started: nobody is left who would enforce its limits.
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
