"""`shoal try`: one item through one stage, without a ledger."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import DIM, Session
from shoal.cli.scrapers import load
from shoal.errors import NotFound, UnknownStage, UsageError
from shoal.model.redaction import redacted
from shoal.observe.formatting import pluralize

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.define.stage import AnyStage
    from shoal.fetch.page import Page
    from shoal.model.item import ClaimedItem, NewItem, PreparedItem
    from shoal.model.outcome import FinishedAttempt

SHOWN_ITEMS = 20


@with_options
def try_(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A file (books.py, x.yaml), file.py:stage, module:scraper, or a name."),
    ],
    url: Annotated[str | None, typer.Argument(metavar="URL", help="The item's URL; --key makes one without.")] = None,
    stage: Annotated[str | None, typer.Option(help="The stage; the first by default.")] = None,
    key: Annotated[str | None, typer.Option(help="The item's key.")] = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="The item's payload, a JSON object.")] = None,
    egress: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go out through [egress.NAME] in place of the stage's own.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save the pages it fetches for tests, such as in tests/pages.")
    ] = None,
) -> None:
    """Put one item through one stage and print its records, one a line. Nothing but downloads is stored.

    Further items that it yields go to stderr; with --json everything is on stdout, distinguished by "kind". An attempt
    that does not succeed: exit 1. With --save, the lines of a test with the saved page go to stderr.
    """
    scraper, settings, chosen = _find_stage(session, target, stage)
    scraper.from_scratch = True  # what earlier runs have is shown too
    if url is None and key is None:
        raise UsageError("There is no item to try.", remedy="Give a URL, or a --key.")
    if egress is not None:
        chosen.policy = chosen.policy.replace(egress=egress)
    new = chosen.item(url, key=key, payload=_payload(payload))
    fetched: list[Page] = []
    finished = session.wait(_attempt(scraper, settings, _claimed(new, chosen), fetched))
    _print_records(session, finished)
    _print_items(session, finished)
    _print_outcome(session, chosen, finished)
    if save is not None:
        _save(session, chosen, finished, save, fetched)
    if finished.decision.outcome.value != "done":
        raise typer.Exit(1)


def _find_stage(session: Session, target: str, name: str | None) -> tuple[Scraper, Settings, AnyStage]:
    """The scraper, and the stage that `--stage` or the end of the target names."""
    try:
        scraper, settings = load(session, target, uses_ledger=False)
    except NotFound:
        place, colon, after = target.rpartition(":")
        if not colon or name is not None:
            raise
        # What comes after the colon is no scraper; it may be a stage of the only one there is.
        scraper, settings = load(session, f"{place}:", uses_ledger=False)
        if after not in scraper.stages:
            raise
        name = after
    if name is None:
        return scraper, settings, scraper.first_stage
    if name not in scraper.stages:
        raise UnknownStage(f"{scraper.name} has no stage {name!r}.", remedy=f"Name one of {', '.join(scraper.stages)}.")
    return scraper, settings, scraper.stages[name]


def _payload(text: str | None) -> dict[str, Any] | None:
    import msgspec

    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as problem:
        raise UsageError(
            f"--payload is not a JSON object: {problem}.", remedy="""Write it like --payload '{"page": 2}'."""
        ) from None


def _claimed(new: NewItem, stage: AnyStage) -> ClaimedItem:
    """The item as a worker would get it, checked as the ledger would check it."""
    from shoal.model.item import ClaimedItem, prepare

    item = prepare(new, stage.name)
    return ClaimedItem(
        item=0,
        epoch=1,
        run_no=0,
        run_id="try",
        stage=item.stage,
        partition=item.partition,
        priority=item.priority,
        url=item.url,
        key=item.key,
        payload_json=item.payload,
        lane=item.lane,
        tries=0,
        rescues=0,
        request_json=item.request,
        max_attempts=2,  # with only one, an error would be reported as the last of several
    )


async def _attempt(scraper: Scraper, settings: Settings, claimed: ClaimedItem, fetched: list[Page]) -> FinishedAttempt:
    """Run one attempt; `fetched` gets the pages that the site sent."""
    import time

    from shoal.observe.logs import open_logs
    from shoal.testing.saved_pages import RecordingFetcher
    from shoal.wiring import build_attempts, build_fetcher

    if scraper.stages[claimed.stage].client == "browser":
        from shoal.fetch.chromium import check_browser

        await check_browser(settings.chromium)
    logs = open_logs(
        format=settings.log_format, level=settings.log_level, file=None, stream=sys.stderr, secrets=settings.secrets()
    )
    fetcher = RecordingFetcher(build_fetcher(settings), fetched)
    attempts = build_attempts(scraper, fetcher, settings, log=logs.log)
    try:
        await attempts.start()
        finished, _ = await attempts.run(claimed, time.monotonic())
        return finished
    finally:
        await attempts.close()
        await fetcher.close()
        logs.close()


def _save(session: Session, stage: AnyStage, finished: FinishedAttempt, folder: Path, fetched: list[Page]) -> None:
    from shoal.testing.saved_pages import example_test, save_page

    if not fetched:
        session.complain("There is no page to save: no response came.")
    files = [save_page(page, folder) for page in fetched]
    lines = example_test(stage, files, finished) if files else []
    if session.json:
        for page, file in zip(fetched, files, strict=True):
            session.record({"kind": "saved", "file": str(file), "url": redacted(page.requested_url)})
        return
    for file in files:
        session.note(f"Saved: {file}")
    if lines:
        session.note("\nA test with it:\n")
        for line in lines:
            session.note(line)


def _print_records(session: Session, finished: FinishedAttempt) -> None:
    import json

    for record in finished.records:
        if session.json:
            session.json_text(f'{{"kind":"record","record":{record}}}')
        elif sys.stdout.isatty():
            session.json_text(json.dumps(json.loads(record), indent=2, ensure_ascii=False))
        else:
            session.json_text(record)


def _print_items(session: Session, finished: FinishedAttempt) -> None:
    items: list[PreparedItem] = list(finished.follow_ups)  # type: ignore[arg-type]  # attempts check what they hand out
    if session.json:
        for item in items:
            session.record({"kind": "item", **_shown(item)})
        return
    shown = items if session.verbose else _some_of_each_stage(items)
    for item in shown:
        facts = {**_shown(item), **({"payload": item.payload} if item.payload else {})}
        extra = "".join(f"  {name}={value}" for name, value in facts.items() if name not in ("stage", "url"))
        session.note(f"-> {item.stage}  {item.url or ''}{extra}")
    if len(items) > len(shown):
        session.note(f"   and {len(items) - len(shown)} more; -v shows all.")


def _some_of_each_stage(items: list[PreparedItem]) -> list[PreparedItem]:
    """The first few in their order, and of every stage at least one: `next page` often comes last."""
    first_of_stage = {item.stage: position for position, item in reversed(list(enumerate(items)))}.values()
    others = (position for position in range(len(items)) if position not in first_of_stage)
    rest = max(0, SHOWN_ITEMS - len(first_of_stage))
    return [items[position] for position in sorted([*first_of_stage, *islice(others, rest)])]


def _shown(item: PreparedItem) -> dict[str, Any]:
    import msgspec

    facts = {
        "stage": item.stage,
        "url": item.url,
        "key": item.key,
        "payload": msgspec.json.decode(item.payload) if item.payload else None,
        "partition": item.partition or None,
        "priority": item.priority or None,
        "delay": item.delay or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _print_outcome(session: Session, stage: AnyStage, finished: FinishedAttempt) -> None:
    decision = finished.decision
    if session.json:
        facts = {"stage": stage.name, "outcome": decision.outcome, "error": decision.error}
        session.record({"kind": "outcome", **facts, "seconds": round(finished.seconds, 4), "detail": finished.detail})
    elif decision.outcome.value == "done":
        made = f"{pluralize(len(finished.records), 'record')}, {pluralize(len(finished.follow_ups), 'item')}"
        session.note(session.styled(f"{stage.name}: {made} in {finished.seconds:.2f} s", DIM, sys.stderr))
    else:
        session.complain(f"{stage.name}: {decision.outcome.value} after {finished.seconds:.2f} s: {decision.error}")
