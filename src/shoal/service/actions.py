"""What an operator changes, each with a preview, a sentence and the command that does the same.

The control plane calls these; the changes themselves are those of the command line (`steer`, `egress`, `pool`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import NotFound, UsageError
from shoal.model.item import OPEN_STATES, RETRYABLE_STATES
from shoal.model.lane import parse_rate
from shoal.model.run import RunState
from shoal.model.views import ItemFilter
from shoal.observe.formatting import format_duration, pluralize
from shoal.observe.snapshot import live_workers
from shoal.service import records, steer
from shoal.service.alerts import send_test_message
from shoal.service.commands import Commands
from shoal.service.egress import check_exit
from shoal.service.events import Host
from shoal.service.failures import mute_failure, read_failure_group, unmute_failure
from shoal.service.local_pools import project_scrapers
from shoal.service.lookup import find_code_of_run, find_run, find_run_id, load_configured
from shoal.service.pool import count_pool_workers, scale_pools_on
from shoal.service.replay import check_can_fetch, preview_replay, replay_items
from shoal.service.stored_settings import put_stored, read_version

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger, OnProgress
    from shoal.model.egress import ExitView
    from shoal.model.run import Run

Delay = str | tuple[float, float]


class ActionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did, or would do. `items`: how many it touches, None when that cannot be counted.

    `fields`: what else there is to say, by name.
    """

    text: str
    items: int | None = None
    items_is_at_least: bool = False
    command: str = ""
    fields: Mapping[str, Any] = {}


class Actions:
    """Changes of one operator. With `preview` nothing is changed, and the reports say what would be.

    `run` is a name as for `lookup.find_run`. `on_progress` gets the number of items that were changed so far.
    """

    def __init__(
        self, ledger: Ledger, settings: Settings, *, by: str, preview: bool = False, on_progress: OnProgress = int
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._by = by
        self._preview = preview
        self._on_progress = on_progress
        self._commands = Commands(settings)

    # Runs

    async def pause_run(self, run: str) -> ActionReport:
        found = await find_run(self._ledger, run)
        open_items = (await self._ledger.reads.stats(found.id)).remaining
        command = self._commands.runs("pause", found.id)
        if self._preview:
            text = f"To be paused: run {found.id} of {found.scraper}, with {pluralize(open_items, 'open item')}."
            return ActionReport(text=text, items=open_items, command=command)
        changed = await steer.pause_run(self._ledger, found.id, by=self._by)
        text = f"Run {found.id} is {changed.state}. Its items are no longer claimed; running attempts end."
        return ActionReport(text=text, items=open_items, command=command, fields=_run_fields(changed))

    async def resume_run(self, run: str) -> ActionReport:
        found = await find_run(self._ledger, run)
        open_items = (await self._ledger.reads.stats(found.id)).remaining
        command = self._commands.runs("resume", found.id)
        if self._preview:
            text = f"To be resumed: run {found.id} of {found.scraper}, with {pluralize(open_items, 'open item')}."
            return ActionReport(text=text, items=open_items, command=command)
        resumed = await steer.resume_run(self._ledger, found.id, by=self._by)
        what = "It accepts items again." if resumed.had_ended else "Workers claim its items again."
        text = f"Run {found.id} is {resumed.run.state}. {what}"
        return ActionReport(text=text, items=open_items, command=command, fields=_run_fields(resumed.run))

    async def seal_run(self, run: str) -> ActionReport:
        found = await find_run(self._ledger, run)
        command = self._commands.runs("seal", found.id)
        if self._preview:
            text = f"To be sealed: run {found.id} of {found.scraper}. It then finishes when no item is open."
            return ActionReport(text=text, command=command)
        changed = await steer.seal_run(self._ledger, found.id, by=self._by)
        text = f"Run {found.id} gets no more items from outside and finishes when none is open."
        return ActionReport(text=text, command=command, fields=_run_fields(changed))

    async def cancel_run(self, run: str) -> ActionReport:
        found = await find_run(self._ledger, run)
        command = self._commands.runs("cancel", found.id)
        if self._preview:
            open_items = (await self._ledger.reads.stats(found.id)).remaining
            text = f"To be cancelled: {pluralize(open_items, 'open item')} of run {found.id} ({found.scraper})."
            return ActionReport(text=text, items=open_items, command=command)
        count = await steer.cancel_run(self._ledger, found.id, by=self._by, on_progress=self._on_progress)
        changed = await self._ledger.runs.get(found.id)
        text = f"Run {found.id} is cancelled, and with it {pluralize(count, 'item')}."
        return ActionReport(text=text, items=count, command=command, fields=_run_fields(changed))

    async def remove_run(self, run: str) -> ActionReport:
        found = await find_run(self._ledger, run)
        counts = await self._ledger.reads.stats(found.id)
        command = self._commands.runs("rm", found.id)
        contents = f"{pluralize(counts.total, 'item')} and {pluralize(counts.results, 'record')}"
        if self._preview:
            text = f"To be deleted permanently: run {found.id} ({found.scraper}) with {contents}."
            return ActionReport(text=text, items=counts.total, command=command)
        await steer.remove_run(self._ledger, found.id, by=self._by, on_progress=self._on_progress)
        text = f"Run {found.id} is removed, and with it {contents}."
        fields = {"run_id": found.id, "state": "removed"}
        return ActionReport(text=text, items=counts.total, command=command, fields=fields)

    # Items

    async def retry_items(self, run: str, which: ItemFilter, *, limit: int | None = None) -> ActionReport:
        """Queue dead items again, or others that the filter names, at most `limit`."""
        if self._preview:
            return self._selected(
                "retry", "retried", await steer.preview_retry(self._ledger, run, which, limit=limit), limit
            )
        found, which = await steer.resolve_items(
            self._ledger, run, which, None, steer.RETRY_STATES, named=RETRYABLE_STATES
        )
        count = await steer.retry_items(
            self._ledger, found.id, which, limit=limit, by=self._by, on_progress=self._on_progress
        )
        report = await self._changed("retry", "Retried", found, which, limit, count)
        hint = await explain_unserved(self._ledger, self._settings, found.id) if count else ""
        return msgspec.structs.replace(report, text=f"{report.text} {hint}".strip())

    async def cancel_items(self, run: str, which: ItemFilter, *, limit: int | None = None) -> ActionReport:
        """End open items as cancelled, leased ones too, at most `limit`."""
        if self._preview:
            return self._selected(
                "cancel", "cancelled", await steer.preview_cancel(self._ledger, run, which, limit=limit), limit
            )
        found, which = await steer.resolve_items(self._ledger, run, which, None, OPEN_STATES)
        count = await steer.cancel_items(
            self._ledger, found.id, which, limit=limit, by=self._by, on_progress=self._on_progress
        )
        return await self._changed("cancel", "Cancelled", found, which, limit, count)

    async def retry_failure(self, run: str, failure: int, *, limit: int | None = None) -> ActionReport:
        """Queue the items of a group of failures again, at most `limit`."""
        group = await read_failure_group(self._ledger, run, failure)
        report = await self.retry_items(run, ItemFilter(failure=group.id), limit=limit)
        return msgspec.structs.replace(report, fields={**report.fields, "failure_id": group.id})

    async def mute_failure(self, run: str, failure: int, *, muted: bool) -> ActionReport:
        """Hide a group of failures in lists, or show it again."""
        group = await read_failure_group(self._ledger, run, failure)
        what = "muted" if muted else "shown again"
        if self._preview:
            many = pluralize(group.items, "item")
            return ActionReport(text=f"To be {what}: {many} that failed with {group.shape!r}.", items=group.items)
        change = mute_failure if muted else unmute_failure
        changed = await change(self._ledger, run, failure, by=self._by)
        fields = {"failure": records.failure_group_record(changed)}
        return ActionReport(text=f"{group.shape!r} is {what}.", items=group.items, fields=fields)

    async def replay_item(
        self, run: str, item: int, *, egress: str | None = None, follow_ups: bool = True
    ) -> ActionReport:
        """Run the handler of an item again and replace its records; `egress`: on a page that is fetched anew."""
        found = await find_run(self._ledger, run)
        which = ItemFilter(ids=(item,))
        command = self._commands.replay(found.id, item, egress=egress)
        if self._preview:
            chosen = await preview_replay(self._ledger, found.id, which)
            how = "on its stored page" if egress is None else f"on its page, fetched anew through {egress}"
            text = f"To be replayed: {pluralize(chosen.count, 'item')} of run {found.id}, {how}."
            return ActionReport(text=text, items=chosen.count, command=command)
        check_can_fetch(which, None, self._settings, egress)
        target = find_code_of_run(self._settings, found)
        code, settings = await asyncio.to_thread(load_configured, target, self._settings, name=found.scraper)
        host = Host(handles_signals=False)
        summary = await replay_items(
            *(self._ledger, code, settings, host, found.id, which), follow_ups=follow_ups, egress=egress, by=self._by
        )
        text = f"Replayed: {pluralize(summary.replayed, 'item')}, with {pluralize(summary.records, 'record')}."
        if summary.failures:
            text = f"It failed again, and its records stay: {summary.failures[0].error}"
        fields = records.replay_record(summary)
        return ActionReport(text=text, items=summary.replayed, command=command, fields=fields)

    def _selected(self, verb: str, done: str, chosen: steer.ItemSelection, limit: int | None) -> ActionReport:
        many = pluralize(chosen.count, "item") if chosen.exact else f"{chosen.count} or more items"
        return ActionReport(
            text=f"To be {done}: {many} of run {chosen.run.id}.",
            items=chosen.count,
            items_is_at_least=not chosen.exact,
            command=self._commands.items(verb, chosen.run.id, chosen.which, limit=limit),
        )

    async def _changed(
        self, verb: str, done: str, run: Run, which: ItemFilter, limit: int | None, count: int
    ) -> ActionReport:
        return ActionReport(
            text=f"{done}: {pluralize(count, 'item')} of run {run.id}.",
            items=count,
            command=self._commands.items(verb, run.id, which, limit=limit),
            fields=_run_fields(await self._ledger.runs.get(run.id)),
        )

    # Lanes

    async def set_lane(
        self,
        lane: str,
        *,
        run: str | None = None,
        limit: int | None = None,
        delay: Delay | None = None,
        paused: bool | None = None,
    ) -> ActionReport:
        """Change a shared lane, or with `run` one of that run. `delay`: a pace such as `2/s`, or seconds from .. to."""
        if limit is None and delay is None and paused is None:
            raise UsageError("Nothing to change was given.", remedy="Give limit, delay or paused.")
        run_id = await find_run_id(self._ledger, run)
        spread = _spread(delay)
        command = self._commands.set_lane(lane, run=run_id, limit=limit, delay=spread, paused=paused)
        changes = [
            *([f"{limit} at once"] if limit is not None else []),
            *([_delay_text(spread)] if spread is not None else []),
            *(["paused" if paused else "not paused"] if paused is not None else []),
        ]
        if self._preview:
            waiting = await self._waiting_in_lane(lane, run_id)
            text = f"To be set: lane {lane}, {', '.join(changes)}; {pluralize(waiting, 'item')} wait for it now."
            return ActionReport(text=text, items=waiting, command=command)
        changed = await steer.set_lane(
            self._ledger, lane, run=run_id, limit=limit, delay=spread, paused=paused, by=self._by
        )
        text = f"Lane {lane} is set for all workers: {', '.join(changes)}."
        fields = {"lane": records.lane_record(changed)}
        return ActionReport(text=text, items=changed.waiting, command=command, fields=fields)

    async def block_lane(self, lane: str, *, seconds: float, why: str, run: str | None = None) -> ActionReport:
        """No item of the lane starts for so many seconds; 0 lifts a block. Raises NotFound for an unknown lane."""
        run_id = await find_run_id(self._ledger, run)
        command = self._commands.block_lane(lane, run=run_id, seconds=seconds, why=why)
        if self._preview:
            waiting = await self._waiting_in_lane(lane, run_id)
            many = f"{pluralize(waiting, 'item')} wait for it now."
            what = f"To be blocked for {format_duration(seconds)}" if seconds else "To be no longer blocked"
            return ActionReport(text=f"{what}: lane {lane}; {many}", items=waiting, command=command)
        changed = await steer.block_lane(self._ledger, lane, seconds, why=why, run=run_id, by=self._by)
        what = f"is blocked for {format_duration(seconds)}" if seconds else "is no longer blocked"
        fields = {"lane": records.lane_record(changed)}
        return ActionReport(text=f"Lane {lane} {what}.", items=changed.waiting, command=command, fields=fields)

    async def _waiting_in_lane(self, lane: str, run_id: str | None) -> int:
        try:
            return (await self._ledger.lanes.get(lane, run_id=run_id)).waiting
        except NotFound:
            if run_id is not None:
                raise
            return 0  # a shared lane is created when it is set

    # Workers

    async def drain_worker(self, worker: str) -> ActionReport:
        command = self._commands.stop_worker(worker)
        if self._preview:
            view = await steer.find_worker(self._ledger, worker)
            text = f"To be drained: worker {worker}, which finishes its {pluralize(view.leased, 'item')} first."
            return ActionReport(text=text, items=view.leased, command=command)
        await steer.drain_worker(self._ledger, worker, by=self._by)
        text = f"Worker {worker} drains: it finishes its running items, then exits."
        return ActionReport(text=text, command=command, fields={"workers": [worker]})

    async def drain_run(self, run: str) -> ActionReport:
        found = await find_run(self._ledger, run)
        command = self._commands.stop_workers(found.id)
        if self._preview:
            workers = await steer.workers_of_run(self._ledger, found)
            text = f"To be drained: {pluralize(len(workers), 'worker')} of run {found.id}."
            leased = sum(worker.leased for worker in workers)
            return ActionReport(text=text, items=leased, command=command)
        drained = await steer.drain_workers_of_run(self._ledger, found.id, by=self._by)
        text = f"{pluralize(len(drained), 'worker')} of run {found.id} drain: they finish their running items and exit."
        return ActionReport(text=text, command=command, fields={"workers": drained})

    async def scale(self, scraper: str, workers: int | None) -> ActionReport:
        """Set the number of workers of the running pools of a scraper; None lets pools with bounds choose."""
        command = self._commands.scale(scraper, workers)
        what = "choose by themselves" if workers is None else f"go to {pluralize(workers, 'worker')}"
        if self._preview:
            present = await count_pool_workers(self._ledger, scraper)
            return ActionReport(text=f"Pools of {scraper} would {what}; running now: {present}.", command=command)
        present = await scale_pools_on(self._ledger, scraper, workers, by=self._by)
        fields = {"scraper": scraper, "workers": workers, "present": present}
        return ActionReport(text=f"Pools of {scraper} {what}; running now: {present}.", command=command, fields=fields)

    # Egress

    async def rest_exit(self, pool: str, key: str, *, seconds: float | None) -> ActionReport:
        found = await self._ledger.exits.get(pool, key)
        command = self._commands.change_exit("rest", pool, key, found.kind, seconds=seconds)
        if self._preview:
            return ActionReport(text=f"To be rested {_lasting(seconds)}: {found.label} of {pool}.", command=command)
        changed = await self._ledger.exits.rest(pool, key, seconds, by=self._by)
        return _exit_report(f"{found.label} of {pool} rests {_lasting(seconds)}.", changed, command)

    async def ban_exit(self, pool: str, key: str, *, seconds: float | None, why: str) -> ActionReport:
        found = await self._ledger.exits.get(pool, key)
        command = self._commands.change_exit("ban", pool, key, found.kind, seconds=seconds, why=why)
        if self._preview:
            return ActionReport(text=f"To be banned {_lasting(seconds)}: {found.label} of {pool}.", command=command)
        changed = await self._ledger.exits.ban(pool, key, seconds, why, by=self._by)
        return _exit_report(f"{found.label} of {pool} is banned {_lasting(seconds)}.", changed, command)

    async def free_exit(self, pool: str, key: str) -> ActionReport:
        found = await self._ledger.exits.get(pool, key)
        command = self._commands.change_exit("free", pool, key, found.kind)
        if self._preview:
            return ActionReport(text=f"To be freed: {found.label} of {pool}, now {found.state}.", command=command)
        changed = await self._ledger.exits.free(pool, key, by=self._by)
        return _exit_report(f"{found.label} of {pool} is used again, at every host.", changed, command)

    async def test_exit(self, pool: str, key: str, *, url: str | None = None) -> ActionReport:
        """Try one proxy from this machine; the ledger gets no report of its health, only an event."""
        found = await self._ledger.exits.get(pool, key)
        command = self._commands.check_proxies(pool, url) if found.kind == "proxies" else ""
        if self._preview:
            return ActionReport(text=f"To be tested from this machine: {found.label} of {pool}.", command=command)
        check = await check_exit(self._settings, found, url=url)
        detail = {"ok": check.ok, "text": check.text}
        await self._ledger.runs.record_event(None, "exit.tested", f"{pool}/{key}", detail, by=self._by)
        fields = {"pool": pool, "exit": key, "label": found.label, "ok": check.ok, "seconds": check.seconds}
        verdict = "works" if check.ok else "does not work"
        return ActionReport(text=f"{found.label} {verdict}: {check.text}.", command=command, fields=fields)

    # Alerts

    async def test_alerts(self) -> ActionReport:
        command = self._commands.test_alerts()
        if self._preview:
            return ActionReport(text="A test message would be sent to every address of `notify`.", command=command)
        tested = await send_test_message(self._settings)
        accepted = sum(each.reason is None for each in tested)
        detail = {"addresses": len(tested), "accepted": accepted}
        await self._ledger.runs.record_event(None, "alerts.tested", "notify", detail, by=self._by)
        text = f"{accepted} of {pluralize(len(tested), 'address', 'addresses')} accepted the test message."
        return ActionReport(text=text, command=command, fields={"addresses": msgspec.to_builtins(tested)})

    # Settings

    async def put_settings(self, scope: str, value: Mapping[str, Any], *, version: int | None = None) -> ActionReport:
        """Store a new version of the settings of a scope. Raises WrongState unless `version` is the newest one."""
        if self._preview:
            newest = await read_version(self._ledger, scope)
            return ActionReport(text=f"To be stored: settings of {scope}; the newest version is {newest}.")
        stored = await put_stored(self._ledger, scope, value, version=version, by=self._by)
        fields = {"scope": scope, "version": stored}
        return ActionReport(text=f"The settings of {scope} are stored as version {stored}.", fields=fields)


async def explain_unserved(ledger: Ledger, settings: Settings, run_id: str) -> str:
    """Why nobody works on the open items of a run, and the command that changes that; empty when a worker serves it."""
    run, commands = await ledger.runs.get(run_id), Commands(settings)
    if run.state is RunState.PAUSED:
        return f"The run is paused: `{commands.runs('resume', run.id)}` resumes it."
    if live_workers(await ledger.workers.list(), run):
        return ""
    target = (await asyncio.to_thread(project_scrapers, settings)).get(run.scraper)
    if target is None:
        return "No live worker serves the run: start one with `shoal worker` or `shoal run` and its file or name."
    newest = await ledger.runs.latest(run.scraper)
    is_newest = newest is not None and newest.id == run.id
    return f"No live worker serves the run: `{commands.work(target, run=None if is_newest else run.id)}` works on it."


def _run_fields(run: Run) -> dict[str, Any]:
    return {"run_id": run.id, "state": run.state}


def _exit_report(text: str, view: ExitView, command: str) -> ActionReport:
    return ActionReport(text=text, command=command, fields={"exit": records.exit_record(view)})


def _lasting(seconds: float | None) -> str:
    return "until it is freed" if seconds is None else f"for {format_duration(seconds)}"


def _spread(delay: Delay | None) -> tuple[float, float] | None:
    if not isinstance(delay, str):
        return delay
    pause = parse_rate(delay)
    return pause, pause


def _delay_text(delay: tuple[float, float]) -> str:
    low, high = delay
    if not high:
        return "no delay"
    return f"{low:g} s between two starts" if low == high else f"{low:g} to {high:g} s between two starts"
