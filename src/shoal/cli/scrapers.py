"""Options and helpers of the commands that load a scraper."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from shoal.cli.render.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.feeds.url_file import UrlFile
    from shoal.model.run import Run
    from shoal.service.work import MetricsAddress

Target = Annotated[
    str, typer.Argument(metavar="SCRAPER", help="A file (books.py, x.yaml), module:scraper, or a name of shoal.toml.")
]
UrlsFile = Annotated[
    str | None, typer.Option("--urls-file", metavar="FILE", help="URLs to enqueue, one a line; - reads stdin.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the last run, finished or not.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start a new run; an unfinished one is paused.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "-j", min=1, max=10_000, help="Items worked on at once.")
]

Least = Annotated[int | None, typer.Option("--min", min=1, max=10_000, help="Items at once, at least; needs --max.")]
Most = Annotated[
    int | None,
    typer.Option("--max", min=1, max=10_000, help="Items at once, at most: as work and machine allow (excludes -j)."),
]

MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65_535, metavar="PORT", help="Export the worker's metrics for Prometheus here; 0 takes a free port."
    ),
]
MetricsHost = Annotated[str, typer.Option(metavar="ADDRESS", help="The address for --metrics-port.")]
LOOPBACK = "127.0.0.1"


# What was said for a run and holds for its rest too, by the names of the parameters.
KEPT_OPTIONS = (
    "concurrency",
    "least",
    "most",
    "sequential",
    "store",
    "from_store",
    "max_dead",
    "since",
    "until",
    "from_scratch",
    "output",
    "log_dir",
    "metrics_port",
    "metrics_host",
    "set",
)


IdempotencyKey = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Create one run for this key; resume that run when it is given again."),
]


def metrics_address(port: int | None, host: str) -> MetricsAddress | None:
    """Where to export metrics. Raises UsageError when the library for it is missing."""
    if port is None:
        return None
    from shoal.observe.exposition import check_prometheus_client
    from shoal.service.work import MetricsAddress

    check_prometheus_client()
    return MetricsAddress(port, host)


def check_alone(idempotency_key: str | None, *, resume: bool, fresh: bool, dry_run: bool = False) -> None:
    if idempotency_key is not None and (resume or fresh or dry_run):
        which = "--resume" if resume else "--fresh" if fresh else "--dry-run"
        raise typer.BadParameter(f"it excludes {which}.", param_hint="--idempotency-key")
    if idempotency_key is not None and not idempotency_key.strip():
        raise typer.BadParameter("it must not be empty.", param_hint="--idempotency-key")


class Folder(NamedTuple):
    """A collection: its name, where it lies, and whether a configuration file knows it by that name."""

    name: str
    path: Path
    registered: bool


def load(
    session: Session, target: str, *, name: str | None = None, uses_ledger: bool = True, **overrides: object | None
) -> tuple[Scraper, Settings]:
    """The scraper and its settings. `overrides` are settings that options of the command gave.

    `uses_ledger`: False for a command that works without one. `name` replaces the scraper's own: its runs, its settings
    and its lock are those of that name.
    """
    import msgspec

    from shoal.service.lookup import load_configured

    overrule(session, overrides)
    scraper, settings = load_configured(target, session.settings, name=name, uses_ledger=uses_ledger)
    session.settings = msgspec.structs.replace(session.settings, hidden=scraper.secrets)
    return scraper, settings


def load_code_of_run(session: Session, target: str | None, run: Run) -> tuple[Scraper, Settings]:
    """The code that a run was made with: `target`, a name of the configuration, or the file with the scraper's name."""
    from shoal.service.lookup import find_code_of_run

    return load(session, target or find_code_of_run(session.settings, run), name=run.scraper)


def check_bounds(least: int | None, most: int | None, fixed: bool, fixed_by: str) -> None:
    """--min and --max belong together and exclude a fixed number."""
    if most is None and least is not None:
        raise typer.BadParameter("say with --max how far it may go.", param_hint="--min")
    if most is not None and fixed:
        raise typer.BadParameter(f"give --min and --max, or {fixed_by}.", param_hint="--max")
    if most is not None and (least or 1) > most:
        raise typer.BadParameter(f"{least} is more than --max {most}.", param_hint="--min")


def overrule(session: Session, overrides: Mapping[str, object | None]) -> None:
    """Settings that options of the command gave outrank all others. To be called before the settings are read."""
    given = {name: str(value) for name, value in overrides.items() if value is not None}
    session.flags, session.own_options = {**session.flags, **given}, frozenset(given)


def folder_meant(session: Session, target: str) -> Folder | None:
    """The collection that the target names, if it names one. A name of the configuration outranks a folder."""
    import os

    from shoal.define.yaml_scraper import slug

    # Read apart: the session's own settings are read once, and options are still to come.
    settings = session.read_settings()
    table = settings.scrapers.get(target)
    if table is not None and table.target is not None:
        is_folder = table.target.endswith("/")
        return Folder(table.name, Path(settings.in_project(table.target)), registered=True) if is_folder else None
    if target.endswith("/") or os.path.isdir(target):
        folder = Path(target)
        return Folder(slug(folder.resolve().name) or "folder", folder, registered=False)
    return None


def choice_of(resume: bool, fresh: bool) -> str:
    if resume and fresh:
        raise typer.BadParameter("give one of --resume and --fresh.", param_hint="--resume")
    return "resume" if resume else "fresh" if fresh else "auto"


def check_can_resume(scraper: Scraper, settings: Settings, choice: str) -> None:
    """Opening a SQLite ledger makes it; --resume must not make one only to find nothing in it."""
    if choice != "resume":
        return
    from shoal.service.begin import nothing_to_resume
    from shoal.wiring import sqlite_path

    file = sqlite_path(settings.ledger)
    if file is not None and not file.exists():
        raise nothing_to_resume(scraper, settings.shown()["ledger"])


def url_file(scraper: Scraper, path: str | None, stage: str | None) -> UrlFile | None:
    """The file of URLs, its lines made items by the stage they are for."""
    if path is None:
        if stage is not None:
            from shoal.service.lookup import check_stage_names

            check_stage_names(scraper, [stage])
            raise typer.BadParameter("it says which stage the URLs of --urls-file are for.", param_hint="--stage")
        return None
    from shoal.service.lookup import url_file as make_url_file

    return make_url_file(scraper, path, stage)


def ledger_flag(settings: Settings, *, elsewhere: bool = False) -> str:
    """What a suggested command needs to find the same ledger, when a flag named it. Its password is left out.

    `elsewhere`: the command may be typed in another terminal or on another machine, where neither the variables nor the
    files of this one are.
    """
    from shoal.model.ledger_url import without_password

    origin = settings.origins["ledger"]
    if origin.kind == "flag" or (elsewhere and origin.kind != "default"):
        return f" --ledger {shlex.quote(without_password(settings.ledger))}"
    return ""


def command_line() -> str:
    """How Shoal was called, for the commands it suggests."""
    import os
    import shutil

    called = Path(sys.argv[0])
    if called.name != "shoal":
        return "python -m shoal"
    if shutil.which("shoal") is not None:
        return "shoal"
    relative = os.path.relpath(called)
    return str(called.absolute()) if relative.startswith("..") else relative
