"""What a pool runs as its child: `shoal`, tied to the pool by its standard input.

The pool holds the other end and never writes. When the pool is gone, however it went, the end of input says so, and
the worker drains as if it had been told to stop.
"""

from __future__ import annotations

import os
import signal
import threading
from runpy import run_module

_STDIN = 0


def _leave_with_the_pool() -> None:
    while os.read(_STDIN, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_leave_with_the_pool, name="shoal-tether", daemon=True).start()
    run_module("shoal", run_name="__main__", alter_sys=True)
