"""A command whose processes work: a pool, a schedule, a collection. What they find, and how signals reach them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

from shoal.cli.session import Session
from shoal.cli.working import INTERRUPTED
from shoal.config.settings import ENV_PREFIX, NAMES

_STDERR = 2


def environment_of_children(session: Session, *, ledger: str | None, own: Container[str] = ()) -> dict[str, str]:
    """Our own environment and, as variables, what our flags said; `own` names settings that were meant for us alone.

    `ledger`: the one that they must use; None leaves it to their settings. Passwords on a command line could be seen by
    everybody on the machine.
    """
    said = {
        name: value for name, value in session.flags.items() if value is not None and name in NAMES and name not in own
    }
    if ledger is not None:
        said["ledger"] = ledger
    return {
        **os.environ,
        **{ENV_PREFIX + name.upper(): value for name, value in said.items()},
        ENV_PREFIX + "LOG_DIR": "",  # each has a file of its own already
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def passing_signals_on(
    stop: Callable[[], None], tell: Callable[[str], None], reload: Callable[[], None] | None = None
) -> Iterator[None]:
    """The first SIGINT or SIGTERM drains, the second gives back what runs: `stop` is called for each. A third ends this
    process where it stands. SIGHUP calls `reload`, unless it says that the terminal is gone: then it is a `stop`.
    """
    loop = asyncio.get_running_loop()
    count, on_terminal = 0, os.isatty(_STDERR)

    def on_stop() -> None:
        nonlocal count
        count += 1
        if count == 1:
            tell("Stopping: what runs is finished, the rest goes back. Press Ctrl-C again to give up at once.")
        elif count == 2:
            tell("Giving back what runs.")
        else:
            # Those that we have started see that we are gone, and leave.
            os._exit(INTERRUPTED)
        stop()

    def on_hangup() -> None:
        if reload is None or (on_terminal and not os.isatty(_STDERR)):
            stop()
        else:
            reload()

    handlers = {signal.SIGINT: on_stop, signal.SIGTERM: on_stop, signal.SIGHUP: on_hangup}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
