"""`shoal run`: a scraper, or a folder of them, from its start to its end, here and now."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.run import print_already_ended, print_busy
from shoal.cli.render.session import Session
from shoal.cli.scrapers import (
    KEPT_OPTIONS,
    LOOPBACK,
    Concurrency,
    Fresh,
    IdempotencyKey,
    Least,
    MetricsHost,
    MetricsPort,
    Most,
    Resume,
    Target,
    UrlsFile,
    check_alone,
    check_bounds,
    check_can_resume,
    choice_of,
    command_line,
    folder_meant,
    ledger_flag,
    load,
    metrics_address,
    overrule,
    url_file,
)
from shoal.observe.formatting import pluralize

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.errors import ShoalError
    from shoal.service.collection import CollectionRequest
    from shoal.service.run import RunReport, RunRequest


@with_options
def run(
    session: Session,
    target: Target,
    urls_file: UrlsFile = None,
    stage: Annotated[str | None, typer.Option(help="The stage that the URLs of --urls-file are for.")] = None,
    resume: Resume = False,
    fresh: Fresh = False,
    idempotency_key: IdempotencyKey = None,
    concurrency: Concurrency = None,
    least: Least = None,
    most: Most = None,
    sequential: Annotated[bool, typer.Option("--sequential", help="One at a time, for debugging.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many items; continue later.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Stop after so many seconds, exit 124.")] = None,
    store: Annotated[str | None, typer.Option(help="Keep pages in this folder; ask only for changed ones.")] = None,
    from_store: Annotated[bool, typer.Option("--from-store", help="Parse kept pages again, fetch nothing.")] = False,
    max_dead: Annotated[str | None, typer.Option(help="More dead items than this: exit 1 (1%, 25).")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Export to this file, or folder.")] = None,
    since: Annotated[str | None, typer.Option(metavar="DAY", help="Of an archive: from this day, 2024-06-01.")] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Of an archive: up to this day.")] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Read again what earlier runs have (newspapers).")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    name: Annotated[str | None, typer.Option(help="Run under this name instead of the scraper's own.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Of a folder: run all that is in it.")] = False,
    where: Annotated[
        list[str], typer.Option(metavar="LABEL=VALUE", help="Of a folder: only with this label; may be repeated.")
    ] = [],  # noqa: B006
    country: Annotated[
        list[str], typer.Option(help="Of a folder: the same as --where country=...; may be repeated.")
    ] = [],  # noqa: B006
    include: Annotated[
        list[str], typer.Option(metavar="PATTERN", help="Of a folder: only such as fiji/*; may be repeated.")
    ] = [],  # noqa: B006
    exclude: Annotated[
        list[str], typer.Option(metavar="PATTERN", help="Of a folder: none such as *times; may be repeated.")
    ] = [],  # noqa: B006
    failed: Annotated[bool, typer.Option("--failed", help="Of a folder: those that failed last time, again.")] = False,
    log_dir: Annotated[Path, typer.Option(metavar="DIR", help="Of a folder: where its log files go.")] = Path("logs"),
    serve: Annotated[bool, typer.Option("--serve", help="Serve the dashboard while it runs; print its link.")] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Run a scraper to its end, or a folder of scrapers. An interrupted or killed run can be resumed.

    An unfinished run is resumed; --fresh starts a new one instead.
    """
    check_alone(idempotency_key, resume=resume or failed, fresh=fresh, dry_run=dry_run)
    jobs = 1 if sequential else concurrency
    check_bounds(least, most, jobs is not None, "-j or --sequential")
    overrides: dict[str, Any] = {"concurrency": most or jobs, "max_dead": max_dead}
    overrides |= {"since": since, "until": until, "from_scratch": "yes" if from_scratch else None}
    for_one = {"--urls-file": urls_file, "--stage": stage, "--limit": limit, "--store": store, "--name": name}
    for_one |= {"--from-store": from_store, "--metrics-port": metrics_port is not None}
    for_many = {"--where": where, "--country": country, "--include": include, "--exclude": exclude, "--failed": failed}
    choice = choice_of(resume or failed, fresh)
    at_first = None if most is None else least or 1
    import msgspec

    from shoal.service.begin import RunChoice
    from shoal.service.run import RunRequest

    request = RunRequest(
        choice=RunChoice(choice),
        idempotency_key=idempotency_key,
        min_concurrency=at_first,
        limit=limit,
        timeout=timeout,
        from_store=from_store,
        output=output,
        metrics=metrics_address(metrics_port, metrics_host),
    )
    if (collection := folder_meant(session, target)) is None:
        _refuse({"--all": everything, **for_many}, f"{target} is no folder of scrapers.")
        overrides["store"] = store
        scraper, settings = load(session, target, name=name, **overrides)
        request = msgspec.structs.replace(request, urls=url_file(scraper, urls_file, stage))
        code = run_loaded(session, scraper, settings, request, target, name=name, dry_run=dry_run, serve=serve)
    else:
        _refuse(for_one, f"{target} is a folder of scrapers.")
        from shoal.fleet.collection.members import MemberFilter
        from shoal.service.collection import CollectionRequest

        overrule(session, {**overrides, "member_output": output})
        folder = CollectionRequest(
            name=collection.name,
            target=target,
            folder=collection.path,
            logs=log_dir.expanduser(),
            all=everything or resume or collection.registered,
            members=MemberFilter(
                where=_labels([*where, *(f"country={name}" for name in country)]), include=include, exclude=exclude
            ),
            failed=failed,
            sequential=sequential,
            overrides=session.flags,
            run=msgspec.structs.replace(request, output=None),
        )
        code = _run_folder(session, folder, dry_run=dry_run, serve=serve)
    if code:
        raise typer.Exit(code)


def run_loaded(
    session: Session,
    scraper: Scraper,
    settings: Settings,
    request: RunRequest,
    target: str,
    *,
    name: str | None = None,
    dry_run: bool = False,
    serve: bool = False,
) -> int:
    """Run a scraper in this process to its end, with progress and summary. Returns the exit code.

    `target` and `name`: what it was loaded by, for the command that resumes it.
    """
    from shoal.cli.render.run import exit_code, print_summary
    from shoal.service.begin import RunBusy
    from shoal.service.run import check_output, run_scraper

    check_output(scraper, request.output)
    check_can_resume(scraper, settings, request.choice)
    if dry_run:
        from shoal.cli.render.run import print_plan

        print_plan(session, scraper, settings, request.choice, request.urls, least=request.min_concurrency)
        return 0
    with _dashboard(session, settings, serve), session.console() as console:
        try:
            report = session.wait(run_scraper(scraper, settings, request, console.host()), fast=True)
        except RunBusy as busy:
            print_busy(session, busy)
            raise
    if report.folder is not None:
        session.note(f"{pluralize(report.folder_records, 'new record')} in {report.folder}/.")
    if report.work is None:
        print_already_ended(session, report.run)
        return 0
    if report.export is not None:
        session.note(f"Wrote {pluralize(report.export.records, 'record')} to {request.output}.")
    resume_arguments = _resume_arguments(session, target, request, name, report)
    print_summary(session, report, resume_arguments, exported=request.output is not None)
    if report.export_error is not None:
        raise _with_remedy(report, report.export_error, request.output or "")
    return exit_code(report)


def _run_folder(session: Session, request: CollectionRequest, *, dry_run: bool, serve: bool) -> int:
    """Returns the exit code."""
    from shoal.cli.render.collection import print_members, print_plan, stopped_exit_code
    from shoal.service.begin import RunAlreadyEnded, RunBusy
    from shoal.service.collection import collection_settings, preview_collection, run_collection

    settings = collection_settings(session.settings, request.name)
    if dry_run:
        plan = session.wait(preview_collection(settings, request))
        print_plan(session, plan, request.folder, settings.concurrency)
        return 1 if any(member.broken for member in plan.members) else 0
    with _dashboard(session, settings, serve), session.console() as console:
        try:
            report = session.wait(run_collection(settings, request, console.host()), fast=True)
        except RunAlreadyEnded as ended:
            print_already_ended(session, ended.run)
            return 0
        except RunBusy as busy:
            print_busy(session, busy)
            raise
    print_members(session, report, request.target)
    return report.summary.exit_code(stopped_exit_code(report)) or int(report.refused > 0)


def _dashboard(session: Session, settings: Settings, serve: bool) -> AbstractContextManager[object]:
    if not serve:
        return nullcontext()
    from shoal.cli.serve import serving_beside

    return serving_beside(session, settings, hint="while the run goes on; `shoal serve` shows all runs at any time")


def _resume_arguments(session: Session, target: str, request: RunRequest, name: str | None, report: RunReport) -> str:
    """What `shoal run` needs to resume the run: a list that was not stored to its end is needed again."""
    urls = request.urls
    again = f" --urls-file {shlex.quote(urls.name)}" if urls is not None and not report.list_is_stored else ""
    key = request.idempotency_key
    which = "--resume" if key is None else f"--idempotency-key {shlex.quote(key)}"
    named = "" if name is None else f" --name {shlex.quote(name)}"
    return f"{shlex.quote(target)}{named} {which}{again}{session.typed(*KEPT_OPTIONS)}"


def _with_remedy(report: RunReport, error: ShoalError, output: str) -> ShoalError:
    done = "complete" if report.finished else "stored as far as it went"
    again = f"{command_line()} export {report.run_id} -o {shlex.quote(output)}{ledger_flag(report.settings)}"
    error.remedy = f"The run is {done}; export it with: {again}"
    return error


def _labels(texts: Sequence[str]) -> dict[str, list[str]]:
    """`country=fiji` and so on: the values that each label may have."""
    found: dict[str, list[str]] = {}
    for text in texts:
        label, equals, value = text.partition("=")
        if not (label and equals and value):
            raise typer.BadParameter(f"{text!r} is not LABEL=VALUE, such as country=fiji.", param_hint="--where")
        found.setdefault(label, []).append(value)
    return found


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Options that mean nothing for what is run."""
    for option, value in options.items():
        if value not in (None, False, []):
            raise typer.BadParameter(f"it means nothing here: {why}", param_hint=option)
