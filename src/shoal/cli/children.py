"""A command whose processes work: a pool, a schedule, a collection. What they find, and how signals reach them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager

from shoal.cli.render.session import Session
from shoal.cli.working import INTERRUPTED
from shoal.config.settings import ENV_PREFIX, NAMES

_STDERR = 2
GIVING_BACK = "Giving back what runs."


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
    orders = iter(
        ("Stopping: what runs is finished, the rest goes back. Press Ctrl-C again to give up at once.", GIVING_BACK)
    )
    on_terminal = os.isatty(_STDERR)

    def on_hangup() -> None:
        if reload is None or (on_terminal and not os.isatty(_STDERR)):
            stop()
        else:
            reload()

    on_stop = _telling(orders, stop, tell)
    with _handling({signal.SIGINT: on_stop, signal.SIGTERM: on_stop, signal.SIGHUP: on_hangup}):
        yield


@contextmanager
def giving_up_on_signals(hurry: Callable[[], None], tell: Callable[[str], None]) -> Iterator[None]:
    """While those that were told to stop are waited for: one more SIGINT or SIGTERM calls `hurry`, the next ends us."""
    on_stop = _telling(iter((GIVING_BACK,)), hurry, tell)
    with _handling({signal.SIGINT: on_stop, signal.SIGTERM: on_stop}):
        yield


def _telling(orders: Iterator[str], obey: Callable[[], None], tell: Callable[[str], None]) -> Callable[[], None]:
    def on_stop() -> None:
        text = next(orders, None)
        if text is None:
            # Those that we have started see that we are gone, and leave.
            os._exit(INTERRUPTED)
        tell(text)
        obey()

    return on_stop


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
