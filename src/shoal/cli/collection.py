"""`shoal run FOLDER`: many small scrapers, each in a process."""

from __future__ import annotations

from shoal.cli.idempotency_key import print_already_ended, print_busy
from shoal.cli.render.collection import print_members, print_plan, stopped_exit_code
from shoal.cli.render.session import Session
from shoal.service.begin import RunAlreadyEnded, RunBusy
from shoal.service.collection import CollectionRequest, collection_settings, preview_collection, run_collection
from shoal.service.console import Console


def run_folder(session: Session, request: CollectionRequest, *, dry_run: bool) -> int:
    """Returns the exit code."""
    settings = collection_settings(session.settings, request.name)
    if dry_run:
        plan = session.wait(preview_collection(settings, request))
        print_plan(session, plan, request.folder, settings.concurrency)
        return 1 if any(member.broken for member in plan.members) else 0
    with Console(quiet=session.quiet, print_note=session.note, print_error=session.complain) as console:
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
