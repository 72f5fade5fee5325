"""Demos of recipes: a real project of the recipe, run by its own commands against a stand-in of its site.

The commands are child processes that share the terminal, so a demo shows what a user sees. At the end the stand-in
says, from its log, what was asked, how often, and how close together; the demo compares that with the ledger.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import IO, Any, ClassVar

import msgspec

from shoal.config.settings import ENV_PREFIX
from shoal.demo.stand_in import RunningStandIn, StandIn, Visit
from shoal.errors import EXIT_INTERRUPTED
from shoal.fleet.parent_watch import FOREGROUND
from shoal.service.client import Fleet

# A background command gets this long to end after the last step, then it is killed.
_STOP_SECONDS = 45.0


class DemoStep(msgspec.Struct, frozen=True):
    """A command of a demo: `("shoal", ...)` or `("python", FILE, ...)`, in the folder of the project.

    `background`: the demo goes on at once, and stops it after the last step. `prepares`: the dashboard starts after it.
    `exit_codes` are those it may end with.
    """

    command: tuple[str, ...]
    about: str = ""
    background: bool = False
    prepares: bool = False
    exit_codes: tuple[int, ...] = (0,)

    @property
    def shown(self) -> str:
        """The command as it is typed."""
        return shlex.join(self.command) + (" &" if self.background else "")

    def arguments(self, pipe: int) -> list[str]:
        """The arguments of the process, with the Python of this environment.

        A `shoal` stops when the other end of the pipe is closed; scripts of a project end soon by themselves.
        """
        program, *rest = self.command
        if program != "shoal":
            return [sys.executable, *rest]
        # The script, where there is one, so that the commands that it advises begin with its name.
        script = Path(sys.executable).with_name("shoal")
        name = str(script) if script.exists() else "-m"
        watch = (sys.executable, "-m", "shoal.fleet.parent_watch", str(_STOP_SECONDS), FOREGROUND, str(pipe))
        return [*watch, name, *rest]


class SiteReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the stand-in's log and the ledger say together: sentences, deviations, and figures by name.

    `unreached`: what is a deviation unless the demo was interrupted.
    """

    lines: Sequence[str]
    problems: Sequence[str] = ()
    unreached: Sequence[str] = ()
    figures: Mapping[str, Any] = {}


def closest_line(visits: Iterable[Visit], whose: Callable[[Visit], str], of: str, *, asked_for: float = 0.0) -> str:
    """How close together requests of one sender began, by the log: `whose` names the sender, `of` says what it is.

    Only requests to the same host are compared. `asked_for`: the seconds that there should be between two, as they are
    sent; they are not equally long on their way.
    """
    starts: dict[tuple[str, str], list[float]] = {}
    for visit in visits:
        starts.setdefault((visit.host, whose(visit)), []).append(visit.at)
    gaps = [later - earlier for each in starts.values() for earlier, later in pairwise(sorted(each))]
    closest = f"{min(gaps):.3f} s apart" if gaps else "there were none"
    is_closer = bool(gaps) and min(gaps) < asked_for
    wanted = f" ({asked_for:g} s asked for; the difference arose on the way)" if is_closer else ""
    return f"the two closest requests {of}: {closest}{wanted}"


class RecipeDemo(ABC):
    """How a recipe is shown. `about`: one line that is printed first."""

    name: ClassVar[str]
    about: ClassVar[str]

    @abstractmethod
    def stand_in(self) -> StandIn:
        """The site that the demo scrapes, not yet served."""

    @contextmanager
    def serving(self, folder: Path) -> Iterator[RunningStandIn[Any]]:
        """Serve the site, and what is between it and the scraper, such as proxies. `folder` is the project's."""
        with self.stand_in().serving() as site:
            yield site

    @abstractmethod
    def environment(self, site: RunningStandIn[Any]) -> Mapping[str, str]:
        """The lines of the project's `.env`: at least the address of the site."""

    @abstractmethod
    def steps(self, site: RunningStandIn[Any]) -> Sequence[DemoStep]:
        """The commands, in their order."""

    def next_commands(self) -> Sequence[str]:
        """What the user may do with the project after the demo, as arguments of `shoal`."""
        return ("status", "serve")

    @abstractmethod
    async def site_report(self, site: RunningStandIn[Any], fleet: Fleet) -> SiteReport:
        """Compare the site's log with the ledger, after the last command."""


class StepResult(msgspec.Struct, frozen=True):
    """How a command ended: its exit code, negative for a signal."""

    step: DemoStep
    code: int

    @property
    def failed(self) -> bool:
        return self.code not in self.step.exit_codes


def write_environment(folder: Path, values: Mapping[str, str]) -> None:
    """Write the project's `.env`."""
    lines = [f"{name}={shlex.quote(value) if value else ''}\n" for name, value in values.items()]
    (folder / ".env").write_text("".join(lines), encoding="utf-8")


def child_environment(environ: Mapping[str, str], ledger: str | None, texts: Mapping[str, str]) -> dict[str, str]:
    """The environment of the commands: without settings, secrets and databases of this shell, and without its proxies.

    The site is on this machine, and the demo has settings of its own, in `.env`, which the environment would overrule.
    `texts`: the files of the project, which name its settings. `ledger`: one that was named for the demo.
    """
    settings = _settings_named_in(texts)
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith((ENV_PREFIX, "DB_", "PG", "POSTGRES_"))
        and not name.upper().endswith("_PROXY")
        and not any(fnmatchcase(name, pattern) for pattern in settings)
    }
    for name in ("SHOAL_CHROMIUM", "SHOAL_TOR", "SHOAL_BROWSER_SANDBOX"):  # programs of this machine
        if name in environ:
            kept[name] = environ[name]
    if ledger is not None:
        kept[f"{ENV_PREFIX}LEDGER"] = ledger
    return kept


def _settings_named_in(texts: Mapping[str, str]) -> set[str]:
    """The variables that a project reads, those of token pools as patterns."""
    example = re.findall(r"^#? ?([A-Z][A-Z0-9_]*)=", texts.get(".env.example", ""), re.MULTILINE)
    used = re.findall(r"\$\{([A-Z][A-Z0-9_]*)", texts["shoal.toml"])
    pools = tomllib.loads(texts["shoal.toml"]).get("egress", {}).values()
    tokens = [pattern for pool in pools for pattern in pool.get("env", ())]
    return {*example, *used, *tokens}


def run_steps(
    steps: Sequence[DemoStep],
    folder: Path,
    environ: Mapping[str, str],
    *,
    announce: Callable[[DemoStep], None],
    output: IO[Any] | int | None = None,
) -> list[StepResult]:
    """Run the commands one after another; the first that fails or is interrupted ends the demo.

    `output`: where their standard output goes instead of this process's own. Ctrl-C reaches the command itself, which
    shares the terminal; SIGTERM and SIGHUP are passed on to it as an interruption. If this process is killed, commands
    of `shoal` notice that and stop.
    """
    results: list[StepResult] = []
    background: list[tuple[DemoStep, subprocess.Popen[bytes]]] = []
    with _Interrupts() as interrupts, _parent_pipe() as pipe:
        try:
            for step in steps:
                announce(step)
                child = subprocess.Popen(
                    step.arguments(pipe), cwd=folder, env=dict(environ), stdout=output, pass_fds=(pipe,)
                )
                if step.background:
                    background.append((step, child))
                    continue
                results.append(StepResult(step, interrupts.wait(child)))
                if results[-1].failed or interrupts.seen:
                    break
        finally:
            for step, child in reversed(background):
                results.append(StepResult(step, _stop(child)))
    return results


def was_interrupted(results: Sequence[StepResult]) -> bool:
    return any(result.code in (EXIT_INTERRUPTED, -signal.SIGINT) for result in results if not result.step.background)


def _stop(child: subprocess.Popen[bytes]) -> int:
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
    try:
        return child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


@contextmanager
def _parent_pipe() -> Iterator[int]:
    """The end for children of a pipe whose other end closes with this process, however it ends."""
    theirs, ours = os.pipe()
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)


class _Interrupts:
    """Signals while commands run. `seen`: one has come.

    Ctrl-C is for the command, which has the terminal. SIGTERM and SIGHUP reach only this process; the command that it
    waits for gets SIGINT for them, also one that starts after them.
    """

    def __init__(self) -> None:
        self.seen = False
        self._is_passed_on = False
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGINT:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def wait(self, child: subprocess.Popen[bytes]) -> int:
        """The exit code of a command."""
        self._child = child
        if self._is_passed_on:
            child.send_signal(signal.SIGINT)
        try:
            return child.wait()
        finally:
            self._child = None

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.seen = True
        if number != signal.SIGINT:
            self._is_passed_on = True
            if self._child is not None:
                self._child.send_signal(signal.SIGINT)
