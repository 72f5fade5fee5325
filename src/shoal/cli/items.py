"""`shoal items`: find items, explain why they are not running, retry, cancel and replay them."""

from __future__ import annotations

import difflib
import inspect as python_inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace as msgspec_replace

from shoal.cli.render.options import (
    ItemId,
    ItemKey,
    LatestRunName,
    RunName,
    Yes,
    confirm,
    parse_item_id,
    run_and_item,
    with_options,
)
from shoal.cli.render.session import BOLD, Session
from shoal.cli.render.tables import print_facts, print_items, reason_text
from shoal.cli.scrapers import command_line, ledger_flag, overrule
from shoal.model.item import ItemState
from shoal.model.views import ItemFilter
from shoal.observe.formatting import pluralize, printable
from shoal.service import inspect, records, steer
from shoal.service.lookup import LATEST, find_run, operator

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.views import CursorPage, ItemView
    from shoal.service.replay import ReplaySummary

app = typer.Typer()

ItemIds = Annotated[
    list[int] | None,
    typer.Argument(metavar="[ITEM]...", help="The items' numbers.", show_default=False, parser=parse_item_id),
]
Stage = Annotated[str | None, typer.Option(help="The stage of the item named by --key.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many: try a few first.")]


def _parse_state(text: str) -> ItemState:
    try:
        return ItemState(text.strip().lower())
    except ValueError:
        near = difflib.get_close_matches(text.lower(), list(ItemState), n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(ItemState)}."
        raise typer.BadParameter(f"{text!r} is no state of an item; {hint}") from None


_FILTER_OPTIONS: dict[str, Any] = {
    "states": Annotated[
        list[ItemState],
        typer.Option(
            "--state",
            metavar=f"[{'|'.join(ItemState)}]",
            parser=_parse_state,
            help="Only in this state; may be repeated.",
        ),
    ],
    "stage": Annotated[str | None, typer.Option(help="Only of this stage.")],
    "partition": Annotated[str | None, typer.Option(help="Only of this partition.")],
    "lane": Annotated[str | None, typer.Option(help="Only of this lane (a host, or a group).")],
    "outcome": Annotated[str | None, typer.Option(help="Only if the last attempt ended so, as `permanent`.")],
    "error": Annotated[str | None, typer.Option(help="Only if the last error has this text in it.")],
    "failure": Annotated[
        int | None,
        typer.Option(metavar="ID", min=1, help="Only of this group of failures, as `shoal status RUN` numbers them."),
    ],
    "text": Annotated[str | None, typer.Option(help="Only with this text in their key or URL.")],
}


def with_filter(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select items to a command; it gets them as its parameter `which`."""
    signature = python_inspect.signature(function, eval_str=True)

    def command(session: Session, **given: Any) -> None:
        chosen = {name: given.pop(name) for name in _FILTER_OPTIONS}
        chosen["states"] = tuple(chosen["states"] or ())
        function(session, which=ItemFilter(**chosen), **given)

    keyword = python_inspect.Parameter.KEYWORD_ONLY
    filters = [
        python_inspect.Parameter(name, keyword, default=None, annotation=annotation)
        for name, annotation in _FILTER_OPTIONS.items()
    ]
    own = [parameter for name, parameter in signature.parameters.items() if name != "which"]
    keywords = [parameter.replace(kind=keyword) for parameter in own[1:]]
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = python_inspect.Signature([own[0], *keywords, *filters])  # type: ignore[attr-defined]
    return command


@app.command()
@with_options
@with_filter
def ls(
    session: Session,
    which: ItemFilter,
    run: LatestRunName = LATEST,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue where the last list ended.")] = None,
) -> None:
    """List a run's items in the order they were enqueued."""
    found, page = session.with_ledger(lambda ledger: _list_items(ledger, run, which, cursor=cursor, limit=limit))
    if run == LATEST:
        session.note(f"Items of run {found.id} of {found.scraper}, the newest:")
    print_items(session, page.rows, run_id=found.id)
    if page.cursor is not None:
        session.note(f"More may follow: use --cursor {page.cursor}.")
    elif not page.rows:
        session.note("No item matches.")


@app.command()
@with_options
def show(
    session: Session, run: LatestRunName = LATEST, item: ItemId = None, key: ItemKey = None, stage: Stage = None
) -> None:
    """Show everything about one item: its facts, its attempts, and why it is not running."""
    run, item = run_and_item(run, item)
    _check_one_name(item, key)
    detail = session.with_ledger(lambda ledger: inspect.read_item(ledger, run, id=item, key=key, stage=stage))
    if session.json:
        session.record(records.item_detail_record(detail))
    else:
        _print_item(session, detail)


@app.command()
@with_options
def why(
    session: Session, run: LatestRunName = LATEST, item: ItemId = None, key: ItemKey = None, stage: Stage = None
) -> None:
    """Explain why an item is not running, and since when. Without an item: what limits the run."""
    run, item = run_and_item(run, item)
    if item is None and key is None:
        explanation = session.with_ledger(lambda ledger: inspect.explain_run(ledger, run))
    else:
        _check_one_name(item, key)
        explanation = session.with_ledger(
            lambda ledger: inspect.explain_item(ledger, run, id=item, key=key, stage=stage)
        )
    if session.json:
        for record in records.reason_records(explanation.reasons):
            session.record(record)
        return
    for reason in explanation.reasons:
        session.data(reason_text(reason))
    if not explanation.reasons:
        session.note("Nothing holds it back.")
    if explanation.item is not None and explanation.can_retry:
        names = f"{explanation.run.id} {explanation.item.id}"
        session.note(f"Retry it with: {command_line()} items retry {names}{ledger_flag(session.settings)}")


@app.command()
@with_options
@with_filter
def retry(
    session: Session,
    which: ItemFilter,
    run: LatestRunName = LATEST,
    item: ItemId = None,
    key: ItemKey = None,
    limit: Limit = None,
    yes: Yes = False,
) -> None:
    """Queue dead items again as if new; others with --state skipped or cancelled. --limit tries a few first."""
    run, item = run_and_item(run, item)
    which = _with_item(which, item, key)
    preview = session.with_ledger(lambda ledger: steer.preview_retry(ledger, run, which, key=key, limit=limit))
    _confirm(session, preview, "retried", yes=yes)
    progress = session.progress("Retried so far: {} items. If this is interrupted, the same command continues.")
    count = session.with_ledger(
        lambda ledger: steer.retry_items(
            ledger, preview.run.id, preview.which, limit=limit, by=operator(), on_progress=progress
        )
    )
    _print_changed(session, preview, "retried", count)
    if count:
        from shoal.service.actions import explain_unserved

        hint = session.with_ledger(lambda ledger: explain_unserved(ledger, session.settings, preview.run.id))
        if hint:
            session.note(hint)


@app.command()
@with_options
@with_filter
def cancel(
    session: Session,
    run: RunName,
    which: ItemFilter,
    item: ItemId = None,
    key: ItemKey = None,
    limit: Limit = None,
    yes: Yes = False,
) -> None:
    """End open items as cancelled, leased ones too."""
    which = _with_item(which, item, key)
    preview = session.with_ledger(lambda ledger: steer.preview_cancel(ledger, run, which, key=key, limit=limit))
    _confirm(session, preview, "cancelled", yes=yes)
    progress = session.progress("Cancelled so far: {} items. If this is interrupted, the same command continues.")
    count = session.with_ledger(
        lambda ledger: steer.cancel_items(
            ledger, preview.run.id, preview.which, limit=limit, by=operator(), on_progress=progress
        )
    )
    _print_changed(session, preview, "cancelled", count)


@app.command()
@with_options
@with_filter
def replay(
    session: Session,
    which: ItemFilter,
    run: LatestRunName = LATEST,
    items: ItemIds = None,
    key: ItemKey = None,
    scraper: Annotated[
        str | None, typer.Option(metavar="SCRAPER", help="Its code: a file, module:scraper, or a name of shoal.toml.")
    ] = None,
    store: Annotated[str | None, typer.Option(help="The folder that the run kept its pages in.")] = None,
    follow_ups: Annotated[
        bool, typer.Option("--follow-ups/--no-follow-ups", help="Enqueue items that the handlers yield and are new.")
    ] = True,
    egress: Annotated[
        str | None,
        typer.Option(metavar="POOL", help="Fetch the pages of named items anew through this pool, or direct."),
    ] = None,
    limit: Limit = None,
    yes: Yes = False,
) -> None:
    """Run handlers of done items again on their stored pages and replace their results.

    No site is visited, unless --egress says through which pool to fetch the pages anew.

    Dead items are replayed when they are named one by one, or with --state dead. An item whose handler fails, or whose
    page is not stored, keeps its state and its results: exit 1.
    """
    from shoal.cli.scrapers import load_code_of_run
    from shoal.service.replay import check_can_fetch, check_can_replay, preview_replay, replay_items

    run, first = run_and_item(run, items[0] if items else None)
    items = items or ([] if first is None else [first])
    if items:
        if key is not None:
            raise typer.BadParameter("name items by their numbers or one by --key.", param_hint="ITEM")
        which = msgspec_replace(which, ids=tuple(items))
    overrule(session, {"store": store})
    preview = session.with_ledger(lambda ledger: preview_replay(ledger, run, which, key=key, limit=limit))
    code, settings = load_code_of_run(session, scraper, preview.run)
    check_can_fetch(which, key, settings, egress)
    check_can_replay(code, settings, preview.run, from_store=egress is None)
    _confirm(session, preview, "replayed", yes=yes)
    progress = session.progress("Replayed so far: {} items. If this is interrupted, the rest keeps its results.")
    with session.console() as console:
        summary = session.with_ledger(
            lambda ledger: replay_items(
                *(ledger, code, settings, console.host(), preview.run.id, preview.which),
                limit=limit,
                follow_ups=follow_ups,
                egress=egress,
                by=operator(),
                on_progress=progress,
            )
        )
    _print_replay(session, summary)
    if summary.failed:
        raise typer.Exit(1)


def _print_replay(session: Session, summary: ReplaySummary) -> None:
    run = summary.run
    if session.json:
        session.record(records.replay_record(summary))
        return
    dropped = f" ({summary.dropped_records} dropped as duplicates)" if summary.dropped_records else ""
    session.data(
        f"Replayed: {pluralize(summary.replayed, 'item')} of run {run.id}, with {pluralize(summary.records, 'record')}"
        f"{dropped}."
    )
    if summary.skipped:
        session.data(f"  {pluralize(summary.skipped, 'item')} changed meanwhile and kept their results.")
    if summary.failed:
        session.complain(f"{pluralize(summary.failed, 'item')} failed; the old results stay:")
    for failure in summary.failures:
        session.complain(f"  {failure.item} {failure.name}: {failure.error}")
    if summary.failed > len(summary.failures):
        session.complain(f"  and {summary.failed - len(summary.failures)} more")
    if summary.enqueued:
        session.note(
            f"New items were enqueued: {summary.enqueued}. Continue with: {command_line()} run SCRAPER --resume"
            f"{ledger_flag(session.settings)}"
        )


async def _list_items(
    ledger: Ledger, run: str, which: ItemFilter, *, cursor: str | None, limit: int
) -> tuple[Run, CursorPage[ItemView]]:
    found = await find_run(ledger, run)
    return found, await inspect.list_items(ledger, found.id, which, cursor=cursor, limit=limit)


def _check_one_name(item: int | None, key: str | None) -> None:
    if (item is None) == (key is None):
        raise typer.BadParameter("name the item by its number or by --key, one of the two.", param_hint="ITEM")


def _with_item(which: ItemFilter, item: int | None, key: str | None) -> ItemFilter:
    if item is None:
        return which
    _check_one_name(item, key)
    return msgspec_replace(which, ids=(item,))


def _confirm(session: Session, preview: steer.ItemSelection, action: str, *, yes: bool) -> None:
    """Ask before the items of the preview are changed; exit when there are none."""
    if not preview.count:
        if session.json:
            session.record({"run_id": preview.run.id, action: 0})
        else:
            session.note(f"No item of run {preview.run.id} matches; nothing was {action}.")
        raise typer.Exit(0)
    count = pluralize(preview.count, "item") if preview.exact else f"{preview.count} or more items"
    confirm(session, f"To be {action}: {count} of run {preview.run.id}.", yes=yes)


def _print_changed(session: Session, preview: steer.ItemSelection, action: str, count: int) -> None:
    if session.json:
        session.record({"run_id": preview.run.id, action: count})
    else:
        session.data(f"{action.capitalize()}: {pluralize(count, 'item')} of run {preview.run.id}.")


def _print_item(session: Session, detail: inspect.ItemDetail) -> None:
    import msgspec

    from shoal.observe.formatting import format_time

    item = detail.item
    facts: dict[str, Any] = {name: getattr(item, name) for name in item.__struct_fields__}
    facts |= {"since": format_time(item.since), "due_at": format_time(item.due_at)}
    facts["payload"] = None if item.payload is None else msgspec.json.encode(item.payload).decode()
    print_facts(session, facts)
    if detail.attempts:
        by_egress = any("egress" in (attempt.detail or {}) for attempt in detail.attempts)
        session.data("\n" + session.styled("Attempts", BOLD))
        session.table(
            ["EPOCH", "CLAIMED", "SECONDS", "OUTCOME", "WORKER", *(["EGRESS"] if by_egress else []), "ERROR"],
            [
                (
                    *(a.epoch, format_time(a.claimed_at), f"{a.seconds:.2f}", a.outcome, a.worker),
                    *([(a.detail or {}).get("egress", "")] if by_egress else []),
                    a.error,
                )
                for a in detail.attempts
            ],
        )
        for attempt in detail.attempts:
            for hook, dropped in (attempt.detail or {}).get("dropped_records", {}).items():
                count, first = pluralize(dropped["count"], "record"), printable(dropped["first"])
                session.data(f"Attempt {attempt.epoch}: {count} dropped by {hook}, the first: {first}")
    session.data("\n" + session.styled("Why it is not running", BOLD))
    for reason in detail.reasons:
        session.data(reason_text(reason))
