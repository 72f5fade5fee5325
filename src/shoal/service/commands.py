"""The command line that does what the dashboard shows or changes: "copy as command". A test parses each of them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.model.ledger_url import without_password

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.model.egress import PoolKind
    from shoal.model.views import ItemFilter

_FILTER_FLAGS = ("stage", "partition", "lane", "outcome", "error", "failure", "text")


class Commands:
    """Commands for the ledger of these settings; they can be typed in another terminal or on another machine.

    An empty text means that no command does it. Passwords are left out.
    """

    def __init__(self, settings: Settings) -> None:
        default = settings.origins["ledger"].kind == "default"
        self._ledger = () if default else ("--ledger", without_password(settings.ledger))

    def _line(self, verb: str, *names: str, flags: Sequence[str] = ()) -> str:
        words = ["shoal", *verb.split()]
        if any(name.startswith("-") for name in names):  # it would be read as an option
            return shlex.join([*words, *flags, *self._ledger, "--", *names])
        return shlex.join([*words, *names, *flags, *self._ledger])

    def runs(self, verb: str, run: str) -> str:
        """show, pause, resume, seal, cancel or rm."""
        return self._line(f"runs {verb}", run)

    def list_runs(self, *, scraper: str | None = None, state: str | None = None) -> str:
        return self._line("runs ls", flags=_flags(scraper=scraper, state=state))

    def compare(self, first: str, second: str) -> str:
        return self._line("runs compare", first, second, flags=["--no-records"])

    def status(self, run: str | None = None) -> str:
        return self._line("status", *([] if run is None else [run]))

    def items(self, verb: str, run: str, which: ItemFilter, *, limit: int | None = None) -> str:
        """ls, retry or cancel. Empty for several items that are named one by one."""
        if len(which.ids) > 1:
            return ""
        states = [word for state in which.states for word in ("--state", state.value)]
        flags = _flags(**{name: getattr(which, name) for name in _FILTER_FLAGS}, limit=limit)
        return self._line(f"items {verb}", run, *map(str, which.ids), flags=[*states, *flags])

    def item(self, verb: str, run: str, item: int) -> str:
        """show, why, retry or cancel."""
        return self._line(f"items {verb}", run, str(item))

    def replay(self, run: str, item: int, *, egress: str | None = None) -> str:
        return self._line("items replay", run, str(item), flags=_flags(egress=egress))

    def why(self, run: str) -> str:
        return self._line("items why", run)

    def list_lanes(self, run: str | None) -> str:
        return self._line("lanes ls", flags=_flags(run=run))

    def set_lane(
        self,
        lane: str,
        *,
        run: str | None,
        limit: int | None = None,
        delay: tuple[float, float] | None = None,
        paused: bool | None = None,
    ) -> str:
        """One command, or two when a lane is changed and paused."""
        lines = []
        if limit is not None or delay is not None:
            low_high = None if delay is None else "-".join(f"{each:g}" for each in dict.fromkeys(delay))
            lines.append(self._line("lanes set", lane, flags=_flags(limit=limit, delay=low_high, run=run)))
        if paused is not None:
            lines.append(self._line(f"lanes {'pause' if paused else 'resume'}", lane, flags=_flags(run=run)))
        return " && ".join(lines)

    def block_lane(self, lane: str, *, run: str | None, seconds: float, why: str) -> str:
        return self._line("lanes block", lane, flags=_flags(**{"for": _lasting(seconds), "why": why, "run": run}))

    def workers(self, *, present: bool = True) -> str:
        return self._line("workers ls", flags=[] if present else ["--all"])

    def stop_worker(self, worker: str) -> str:
        return self._line("workers stop", worker)

    def stop_workers(self, run: str) -> str:
        return self._line("workers stop", flags=_flags(run=run))

    def work(self, target: str, *, run: str | None = None) -> str:
        """Work on the unfinished run of a scraper, or on `run`. `target`: the scraper as commands take it."""
        if run is None:
            return self._line("run", target)
        return self._line("worker", target, flags=_flags(**{"run-id": run}))

    def start_pool(self, target: str, workers: int, *, run: str | None = None) -> str:
        """`target`: the scraper as commands take it."""
        return self._line("pool start", target, flags=_flags(**{"workers": workers, "run-id": run}))

    def scale(self, scraper: str, workers: int | None) -> str:
        return self._line("pool scale", scraper, "auto" if workers is None else str(workers))

    def list_exits(self, pool: str, kind: PoolKind, state: str | None = None) -> str:
        return self._line(f"{_exits_verb(kind)} ls", flags=_flags(pool=pool, state=state))

    def show_exit(self, pool: str, key: str, kind: PoolKind) -> str:
        return self._line(f"{_exits_verb(kind)} show", f"{pool}/{key}")

    def change_exit(
        self, verb: str, pool: str, key: str, kind: PoolKind, *, seconds: float | None = None, why: str | None = None
    ) -> str:
        """rest, ban or free; tokens have no such commands."""
        if kind == "tokens":
            return ""
        lasting = None if seconds is None else _lasting(seconds)
        return self._line(f"proxies {verb}", f"{pool}/{key}", flags=_flags(**{"for": lasting, "why": why}))

    def check_proxies(self, pool: str, url: str | None = None) -> str:
        return self._line("proxies test", flags=_flags(pool=pool, url=url))

    def sample(self, run: str, *, stage: str | None = None) -> str:
        return self._line("results sample", run, flags=_flags(stage=stage))

    def coverage(self, run: str, *, stage: str | None = None) -> str:
        return self._line("results coverage", run, flags=_flags(stage=stage))

    def export(self, run: str, file: str, *, stage: str | None = None) -> str:
        return self._line("export", run, flags=_flags(output=file, stage=stage))

    def alerts(self, run: str | None = None) -> str:
        return self._line("alerts ls", *([] if run is None else [run]))

    def test_alerts(self) -> str:
        return self._line("alerts test")

    def run_collection(self, folder: str) -> str:
        return self._line("run", folder, flags=["--all"])

    def schedule(self, verb: str, name: str | None = None) -> str:
        """ls, next or now."""
        return self._line(f"schedule {verb}", *([] if name is None else [name]))

    def show_config(self) -> str:
        return self._line("config show", flags=["--origin"])


def _flags(**values: object) -> list[str]:
    """`--name value` of those that are given; in one word where the value could be read as an option."""
    words: list[str] = []
    for name, value in values.items():
        if value is not None:
            text = str(value)
            words += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return words


def _lasting(seconds: float) -> str:
    """Whole seconds, at least one unless it is zero."""
    return f"{math.ceil(seconds)}s"


def _exits_verb(kind: PoolKind) -> str:
    return "tokens" if kind == "tokens" else "proxies"
