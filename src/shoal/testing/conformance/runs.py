"""Runs: create, list, pause, resume, cancel, finish, remove."""

from __future__ import annotations

import asyncio
import re

import pytest

from shoal.errors import InvalidSetting, NotFound, WrongState
from shoal.model.lane import LanePolicy
from shoal.model.run import RunSpec, RunState, StageSpec
from shoal.testing.harness import LedgerHarness, done


class RunsConformance:
    async def test_a_run_has_notes(self, harness: LedgerHarness) -> None:
        run, other = await harness.run(), await harness.run()
        assert await harness.ledger.runs.get_note(run.id, "list") is None
        await harness.ledger.runs.put_note(run.id, "list", {"complete": False})
        await harness.ledger.runs.put_note(run.id, "list", {"complete": True})
        assert await harness.ledger.runs.get_note(run.id, "list") == {"complete": True}
        assert await harness.ledger.runs.get_note(other.id, "list") is None
        await harness.ledger.runs.remove(run.id)
        with pytest.raises(NotFound):
            await harness.ledger.runs.get_note(run.id, "list")

    async def test_acquire_once_succeeds_for_one_caller(self, harness: LedgerHarness) -> None:
        run, other = await harness.run(), await harness.run()
        second = await harness.open_again()
        try:
            askers = [harness.ledger, second] * 5
            taken = await asyncio.gather(*(ledger.runs.acquire_once(run.id, "finish") for ledger in askers))
        finally:
            await second.close()
        assert sorted(taken) == [False] * 9 + [True]
        assert await harness.ledger.runs.acquire_once(other.id, "finish")
        assert await harness.ledger.runs.acquire_once(run.id, "another")

    async def test_there_is_one_run_for_one_idempotency_key(self, harness: LedgerHarness) -> None:
        spec = RunSpec(scraper="india", stages=(StageSpec("found"),), idempotency_key="nightly 2026-11-16")
        second = await harness.open_again()
        try:
            made = await asyncio.gather(*(ledger.runs.create(spec) for ledger in [harness.ledger, second] * 4))
        finally:
            await second.close()
        assert len({run.id for run in made}) == 1
        assert made[0].idempotency_key == "nightly 2026-11-16"
        assert await harness.ledger.runs.by_idempotency_key("nightly 2026-11-16") == made[0]
        assert await harness.ledger.runs.by_idempotency_key("nightly 2026-11-17") is None
        assert len((await harness.ledger.runs.list()).rows) == 1
        await harness.ledger.runs.remove(made[0].id)
        assert await harness.ledger.runs.by_idempotency_key("nightly 2026-11-16") is None
        assert (await harness.ledger.runs.create(spec)).no != made[0].no

    async def test_an_event_is_recorded_with_a_run(self, harness: LedgerHarness) -> None:
        run, other = await harness.run(), await harness.run()
        await harness.ledger.runs.record_event(run.id, "scaled", "pool", {"from": 2, "to": 4}, by="somebody")
        event = (await harness.ledger.reads.events(run_id=run.id)).rows[0]
        assert (event.action, event.subject, event.actor) == ("scaled", "pool", "somebody")
        assert event.detail == {"from": 2, "to": 4}
        assert "scaled" not in [event.action for event in (await harness.ledger.reads.events(run_id=other.id)).rows]

    async def test_a_run_id_is_the_time_and_gets_a_suffix_when_taken(self, harness: LedgerHarness) -> None:  # S1.5
        runs = [await harness.run() for _ in range(3)]
        assert len({run.id for run in runs}) == 3
        for run in runs:
            assert re.fullmatch(r"\d{8}_\d{6}(_\d+)?", run.id)

    async def test_a_run_keeps_a_snapshot_of_what_it_was_made_from(self, harness: LedgerHarness) -> None:
        spec = RunSpec(
            scraper="india", stages=(StageSpec("found"), StageSpec("profile")), settings={"rate": 2}, code_version="abc"
        )
        made = await harness.ledger.runs.create(spec)
        read = await harness.ledger.runs.get(made.id)
        assert (read.scraper, read.stages, dict(read.settings), read.code_version) == (
            "india",
            ("found", "profile"),
            {"rate": 2},
            "abc",
        )
        assert read.state is RunState.ACTIVE
        assert not read.sealed

    @pytest.mark.parametrize(
        "spec",
        [
            RunSpec(scraper="", stages=(StageSpec("a"),)),
            RunSpec(scraper="x", stages=()),
            RunSpec(scraper="x", stages=(StageSpec("a"), StageSpec("a"))),
            RunSpec(scraper="x", stages=(StageSpec("a", lane=LanePolicy(limit=-1)),)),
            RunSpec(scraper="x", stages=(StageSpec("a", lane=LanePolicy(delay_min=2, delay_max=1)),)),
            RunSpec(scraper="x", stages=(StageSpec("a", lane=LanePolicy(ordered=True, shared=True)),)),
            RunSpec(scraper="x", stages=(StageSpec("a"),), max_attempts=0),
            RunSpec(scraper="x", stages=(StageSpec("a"),), settings={"f": object()}),
        ],
    )
    async def test_an_invalid_run_is_refused(self, harness: LedgerHarness, spec: RunSpec) -> None:
        with pytest.raises(InvalidSetting):
            await harness.ledger.runs.create(spec)
        assert (await harness.ledger.runs.list()).rows == ()

    async def test_runs_are_listed_newest_first_in_pages(self, harness: LedgerHarness) -> None:
        made = [(await harness.run(scraper=name)).id for name in ("a", "b", "a")]
        first = await harness.ledger.runs.list(limit=2)
        rest = await harness.ledger.runs.list(limit=2, cursor=first.cursor)
        assert [run.id for run in (*first.rows, *rest.rows)] == made[::-1]
        assert [run.id for run in (await harness.ledger.runs.list(scraper="b")).rows] == [made[1]]
        latest = await harness.ledger.runs.latest("a")
        assert latest is not None
        assert latest.id == made[2]
        assert await harness.ledger.runs.latest("c") is None

    async def test_a_sealed_run_finishes_when_nothing_remains(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        await harness.finish(worker, await harness.claim(worker))
        await harness.ledger.upkeep.run_once()
        assert (await harness.ledger.runs.get(run.id)).state is RunState.ACTIVE, "more items may come"
        await harness.ledger.runs.seal(run.id)
        assert (await harness.ledger.upkeep.run_once()).finished == (run.id,)
        read = await harness.ledger.runs.get(run.id)
        assert read.state is RunState.FINISHED
        assert read.finished_at is not None

    async def test_a_run_with_delayed_or_leased_items_is_not_finished(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "leased")
        await harness.put(run, "later", delay=1000.0)
        worker = await harness.worker()
        claimed = await harness.claim(worker)
        await harness.ledger.runs.seal(run.id)
        assert (await harness.ledger.upkeep.run_once()).finished == ()
        await harness.finish(worker, claimed)
        assert (await harness.ledger.upkeep.run_once()).finished == ()

    async def test_a_paused_run_gives_no_items_until_resumed(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker = await harness.worker()
        held = await harness.claim(worker, 1)
        await harness.ledger.runs.pause(run.id, by="me")
        assert await harness.claim(worker) == []
        assert (await harness.finish(worker, held)).committed == 1, "what was leased may end"
        await harness.ledger.runs.resume(run.id, by="me")
        assert await harness.claim_keys(worker) == ["b"]
        await harness.check()

    async def test_pausing_one_run_leaves_the_other_alone(self, harness: LedgerHarness) -> None:
        first, second = await harness.run(), await harness.run()
        await harness.put(first, "a")
        await harness.put(second, "b")
        await harness.ledger.runs.pause(first.id)
        worker = await harness.worker()
        assert await harness.claim_keys(worker) == ["b"]

    async def test_a_paused_run_releases_its_slots_in_shared_lanes(self, harness: LedgerHarness) -> None:
        first, second = await harness.run(), await harness.run()
        await harness.put(first, *(f"a{n}" for n in range(5)), lane="host")
        await harness.put(second, "b", lane="host")
        worker = await harness.worker()
        await harness.ledger.runs.pause(first.id)
        assert await harness.claim_keys(worker) == ["b"]
        await harness.check()
        await harness.ledger.runs.resume(first.id)
        await harness.check()

    async def test_a_paused_run_releases_its_slots_when_another_run_waits(self, harness: LedgerHarness) -> None:
        """No item moves before another run waits for the lane; then all slots are released."""
        first = await harness.run()
        await harness.put(first, "a0", "a1", lane="host")
        await harness.ledger.runs.pause(first.id)
        assert await harness.state(first, "a0") == "ready"
        second = await harness.run()
        await harness.put(second, "b", lane="host")
        worker = await harness.worker()
        await harness.advance_clock(6)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(worker) == ["b"]
        await harness.check()
        await harness.ledger.runs.resume(first.id)
        assert await harness.claim_keys(worker) == [], "the lane has one slot"
        await harness.check()

    async def test_returned_items_of_a_paused_run_release_the_shared_lane(self, harness: LedgerHarness) -> None:
        first, second = await harness.run(), await harness.run()
        await harness.put(first, "a", lane="host")
        worker = await harness.worker()
        held = await harness.claim(worker)
        await harness.put(second, "b", lane="host")
        await harness.ledger.runs.pause(first.id)
        await harness.ledger.claims.return_leases(worker, [item.lease for item in held])
        assert await harness.claim_keys(worker) == ["b"]
        await harness.check()

    async def test_cancelling_ends_every_open_item(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "leased", priority=-1)
        await harness.put(run, "ready")
        await harness.put(run, "later", delay=100.0)
        await harness.put(run, "lane1", "lane2", "lane3", lane="l")
        worker = await harness.worker()
        held = await harness.claim(worker, 1)
        assert await harness.ledger.runs.cancel(run.id, by="me") == 6
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.cancelled, counts.remaining) == (6, 0)
        assert (await harness.finish(worker, held)).lost == (held[0].item,)
        assert (await harness.ledger.runs.get(run.id)).state is RunState.CANCELLED
        assert (await harness.ledger.lanes.get("l")).taken == 0
        await harness.check()
        with pytest.raises(WrongState):
            await harness.ledger.intake.enqueue(run.id, ["https://example.com/"])

    async def test_a_finished_run_takes_items_again_only_after_resume(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.ledger.runs.seal(run.id)
        await harness.ledger.upkeep.run_once()
        with pytest.raises(WrongState, match="finished"):
            await harness.ledger.intake.enqueue(run.id, ["https://example.com/"])
        await harness.ledger.runs.resume(run.id)
        assert (await harness.ledger.intake.enqueue(run.id, ["https://example.com/"])).enqueued == 1

    async def test_a_removed_run_is_gone_and_others_are_untouched(self, harness: LedgerHarness) -> None:
        doomed, kept = await harness.run(), await harness.run()
        for run in (doomed, kept):
            await harness.put(run, "a", "b", "c", lane="host")
            worker = await harness.worker()
            claimed = await harness.claim(worker, scope=None)
            await harness.commit(worker, *(done(item, '{"n": 1}') for item in claimed))
        await harness.ledger.runs.remove(doomed.id, by="me")
        with pytest.raises(NotFound):
            await harness.ledger.runs.get(doomed.id)
        with pytest.raises(NotFound):
            await harness.ledger.reads.stats(doomed.id)
        assert [run.id for run in (await harness.ledger.runs.list()).rows] == [kept.id]
        assert (await harness.ledger.reads.stats(kept.id)).total == 3
        await harness.check()

    async def test_removing_the_only_run_leaves_a_usable_ledger(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b", lane="host")
        await harness.ledger.runs.remove(run.id)
        await harness.check()
        again = await harness.run()
        await harness.put(again, "a", lane="host")
        assert await harness.claim_keys(await harness.worker()) == ["a"]

    async def test_unknown_runs_are_not_found(self, harness: LedgerHarness) -> None:
        for call in (
            harness.ledger.runs.get("nope"),
            harness.ledger.runs.pause("nope"),
            harness.ledger.runs.seal("nope"),
            harness.ledger.reads.stats("nope"),
            harness.ledger.intake.enqueue("nope", []),
        ):
            with pytest.raises(NotFound, match="nope"):
                await call

    async def test_every_change_of_a_run_leaves_an_event(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.ledger.runs.pause(run.id, by="operator-1")
        await harness.ledger.runs.resume(run.id, by="operator-2")
        await harness.ledger.runs.seal(run.id, by="operator-1")
        await harness.ledger.upkeep.run_once()
        events = (await harness.ledger.reads.events(run_id=run.id)).rows
        assert [(event.action, event.actor) for event in reversed(events)] == [
            ("run.created", ""),
            ("run.paused", "operator-1"),
            ("run.active", "operator-2"),
            ("run.sealed", "operator-1"),
            ("run.finished", "ledger"),
        ]

    async def test_a_pause_says_who_and_why(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        reads, runs = harness.ledger.reads, harness.ledger.runs
        assert await reads.last_pause(run) is None
        await runs.pause(run.id, by="operator-1", because="a new run replaces it")
        paused = await reads.last_pause(await runs.get(run.id))
        assert paused is not None
        assert (paused.actor, paused.detail) == ("operator-1", {"from": "active", "because": "a new run replaces it"})
        item = (await reads.items(run.id)).rows[0].id
        for reasons in (await reads.why_run(run.id), await reads.why_item(run.id, item)):
            assert "is paused by operator-1: a new run replaces it;" in reasons[0].text
        await runs.resume(run.id)
        await runs.pause(run.id, by="operator-2")
        paused = await reads.last_pause(await runs.get(run.id))
        assert paused is not None
        assert (paused.actor, paused.detail) == ("operator-2", {"from": "active"})
        assert "is paused by operator-2;" in (await reads.why_run(run.id))[0].text
