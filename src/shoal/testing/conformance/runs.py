"""Runs: create, list, pause, resume, cancel, finish, remove."""

from __future__ import annotations

import asyncio
import re

import pytest

from shoal.errors import InvalidSetting, NotFound, WrongState
from shoal.model.lane import LanePolicy
from shoal.model.run import RunSpec, RunState, StageSpec
from shoal.testing.lab import Lab, done


class RunsConformance:
    async def test_something_is_noted_about_a_run(self, lab: Lab) -> None:
        run, other = await lab.run(), await lab.run()
        assert await lab.ledger.runs.noted(run.id, "list") is None
        await lab.ledger.runs.note(run.id, "list", {"complete": False})
        await lab.ledger.runs.note(run.id, "list", {"complete": True})
        assert await lab.ledger.runs.noted(run.id, "list") == {"complete": True}
        assert await lab.ledger.runs.noted(other.id, "list") is None
        await lab.ledger.runs.remove(run.id)
        with pytest.raises(NotFound):
            await lab.ledger.runs.noted(run.id, "list")

    async def test_one_caller_takes_a_name_of_a_run(self, lab: Lab) -> None:
        run, other = await lab.run(), await lab.run()
        second = await lab.another()
        try:
            askers = [lab.ledger, second] * 5
            taken = await asyncio.gather(*(ledger.runs.take(run.id, "finish") for ledger in askers))
        finally:
            await second.close()
        assert sorted(taken) == [False] * 9 + [True]
        assert await lab.ledger.runs.take(other.id, "finish")
        assert await lab.ledger.runs.take(run.id, "another")

    async def test_there_is_one_run_for_one_occasion(self, lab: Lab) -> None:
        spec = RunSpec(scraper="india", stages=(StageSpec("found"),), occasion="nightly 2026-11-16")
        second = await lab.another()
        try:
            made = await asyncio.gather(*(ledger.runs.create(spec) for ledger in [lab.ledger, second] * 4))
        finally:
            await second.close()
        assert len({run.id for run in made}) == 1
        assert made[0].occasion == "nightly 2026-11-16"
        assert await lab.ledger.runs.of_occasion("nightly 2026-11-16") == made[0]
        assert await lab.ledger.runs.of_occasion("nightly 2026-11-17") is None
        assert len((await lab.ledger.runs.list()).rows) == 1
        await lab.ledger.runs.remove(made[0].id)
        assert await lab.ledger.runs.of_occasion("nightly 2026-11-16") is None
        assert (await lab.ledger.runs.create(spec)).no != made[0].no

    async def test_what_happened_to_a_run_is_told(self, lab: Lab) -> None:
        run, other = await lab.run(), await lab.run()
        await lab.ledger.runs.tell(run.id, "scaled", "pool", {"from": 2, "to": 4}, by="somebody")
        event = (await lab.ledger.reads.events(run_id=run.id)).rows[0]
        assert (event.action, event.subject, event.actor) == ("scaled", "pool", "somebody")
        assert event.detail == {"from": 2, "to": 4}
        assert "scaled" not in [event.action for event in (await lab.ledger.reads.events(run_id=other.id)).rows]

    async def test_a_run_id_is_the_time_and_gets_a_suffix_when_taken(self, lab: Lab) -> None:  # S1.5
        runs = [await lab.run() for _ in range(3)]
        assert len({run.id for run in runs}) == 3
        for run in runs:
            assert re.fullmatch(r"\d{8}_\d{6}(_\d+)?", run.id)

    async def test_a_run_keeps_a_snapshot_of_what_it_was_made_from(self, lab: Lab) -> None:
        spec = RunSpec(
            scraper="india", stages=(StageSpec("found"), StageSpec("profile")), settings={"rate": 2}, code_version="abc"
        )
        made = await lab.ledger.runs.create(spec)
        read = await lab.ledger.runs.get(made.id)
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
    async def test_a_senseless_run_is_refused(self, lab: Lab, spec: RunSpec) -> None:
        with pytest.raises(InvalidSetting):
            await lab.ledger.runs.create(spec)
        assert (await lab.ledger.runs.list()).rows == ()

    async def test_runs_are_listed_newest_first_in_pages(self, lab: Lab) -> None:
        made = [(await lab.run(scraper=name)).id for name in ("a", "b", "a")]
        first = await lab.ledger.runs.list(limit=2)
        rest = await lab.ledger.runs.list(limit=2, cursor=first.cursor)
        assert [run.id for run in (*first.rows, *rest.rows)] == made[::-1]
        assert [run.id for run in (await lab.ledger.runs.list(scraper="b")).rows] == [made[1]]
        latest = await lab.ledger.runs.latest("a")
        assert latest is not None
        assert latest.id == made[2]
        assert await lab.ledger.runs.latest("c") is None

    async def test_a_sealed_run_finishes_when_nothing_remains(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker()
        await lab.finish(worker, await lab.claim(worker))
        await lab.ledger.upkeep.tend()
        assert (await lab.ledger.runs.get(run.id)).state is RunState.ACTIVE, "more items may come"
        await lab.ledger.runs.seal(run.id)
        assert (await lab.ledger.upkeep.tend()).finished == (run.id,)
        read = await lab.ledger.runs.get(run.id)
        assert read.state is RunState.FINISHED
        assert read.finished_at is not None

    async def test_a_run_with_delayed_or_leased_items_is_not_finished(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "leased")
        await lab.put(run, "later", delay=1000.0)
        worker = await lab.worker()
        claimed = await lab.claim(worker)
        await lab.ledger.runs.seal(run.id)
        assert (await lab.ledger.upkeep.tend()).finished == ()
        await lab.finish(worker, claimed)
        assert (await lab.ledger.upkeep.tend()).finished == ()

    async def test_a_paused_run_hands_out_nothing_until_resumed(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a", "b")
        worker = await lab.worker()
        held = await lab.claim(worker, 1)
        await lab.ledger.runs.pause(run.id, by="me")
        assert await lab.claim(worker) == []
        assert (await lab.finish(worker, held)).committed == 1, "what was leased may end"
        await lab.ledger.runs.resume(run.id, by="me")
        assert await lab.claim_keys(worker) == ["b"]
        await lab.check()

    async def test_pausing_one_run_leaves_the_other_alone(self, lab: Lab) -> None:
        first, second = await lab.run(), await lab.run()
        await lab.put(first, "a")
        await lab.put(second, "b")
        await lab.ledger.runs.pause(first.id)
        worker = await lab.worker()
        assert await lab.claim_keys(worker) == ["b"]

    async def test_a_paused_run_gives_up_its_places_in_shared_lanes(self, lab: Lab) -> None:
        first, second = await lab.run(), await lab.run()
        await lab.put(first, *(f"a{n}" for n in range(5)), lane="host")
        await lab.put(second, "b", lane="host")
        worker = await lab.worker()
        await lab.ledger.runs.pause(first.id)
        assert await lab.claim_keys(worker) == ["b"]
        await lab.check()
        await lab.ledger.runs.resume(first.id)
        await lab.check()

    async def test_a_run_paused_alone_gives_up_its_places_when_another_comes(self, lab: Lab) -> None:
        """Nothing is moved before somebody else waits for the lane, and nothing is kept then."""
        first = await lab.run()
        await lab.put(first, "a0", "a1", lane="host")
        await lab.ledger.runs.pause(first.id)
        assert await lab.state(first, "a0") == "ready"
        second = await lab.run()
        await lab.put(second, "b", lane="host")
        worker = await lab.worker()
        await lab.jump(6)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(worker) == ["b"]
        await lab.check()
        await lab.ledger.runs.resume(first.id)
        assert await lab.claim_keys(worker) == [], "the lane has one place"
        await lab.check()

    async def test_items_given_back_to_a_paused_run_leave_the_shared_lane_free(self, lab: Lab) -> None:
        first, second = await lab.run(), await lab.run()
        await lab.put(first, "a", lane="host")
        worker = await lab.worker()
        held = await lab.claim(worker)
        await lab.put(second, "b", lane="host")
        await lab.ledger.runs.pause(first.id)
        await lab.ledger.claims.give_back(worker, [item.lease for item in held])
        assert await lab.claim_keys(worker) == ["b"]
        await lab.check()

    async def test_cancelling_ends_every_open_item(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "leased", priority=-1)
        await lab.put(run, "ready")
        await lab.put(run, "later", delay=100.0)
        await lab.put(run, "lane1", "lane2", "lane3", lane="l")
        worker = await lab.worker()
        held = await lab.claim(worker, 1)
        assert await lab.ledger.runs.cancel(run.id, by="me") == 6
        counts = await lab.ledger.reads.stats(run.id)
        assert (counts.cancelled, counts.remaining) == (6, 0)
        assert (await lab.finish(worker, held)).lost == (held[0].item,)
        assert (await lab.ledger.runs.get(run.id)).state is RunState.CANCELLED
        assert (await lab.ledger.lanes.get("l")).taken == 0
        await lab.check()
        with pytest.raises(WrongState):
            await lab.ledger.intake.enqueue(run.id, ["https://example.com/"])

    async def test_a_finished_run_takes_items_again_only_after_resume(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.ledger.runs.seal(run.id)
        await lab.ledger.upkeep.tend()
        with pytest.raises(WrongState, match="finished"):
            await lab.ledger.intake.enqueue(run.id, ["https://example.com/"])
        await lab.ledger.runs.resume(run.id)
        assert (await lab.ledger.intake.enqueue(run.id, ["https://example.com/"])).enqueued == 1

    async def test_a_removed_run_is_gone_and_others_are_untouched(self, lab: Lab) -> None:
        doomed, kept = await lab.run(), await lab.run()
        for run in (doomed, kept):
            await lab.put(run, "a", "b", "c", lane="host")
            worker = await lab.worker()
            claimed = await lab.claim(worker, scope=None)
            await lab.commit(worker, *(done(item, '{"n": 1}') for item in claimed))
        await lab.ledger.runs.remove(doomed.id, by="me")
        with pytest.raises(NotFound):
            await lab.ledger.runs.get(doomed.id)
        with pytest.raises(NotFound):
            await lab.ledger.reads.stats(doomed.id)
        assert [run.id for run in (await lab.ledger.runs.list()).rows] == [kept.id]
        assert (await lab.ledger.reads.stats(kept.id)).total == 3
        await lab.check()

    async def test_removing_the_only_run_leaves_a_usable_ledger(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a", "b", lane="host")
        await lab.ledger.runs.remove(run.id)
        await lab.check()
        again = await lab.run()
        await lab.put(again, "a", lane="host")
        assert await lab.claim_keys(await lab.worker()) == ["a"]

    async def test_unknown_runs_are_not_found(self, lab: Lab) -> None:
        for call in (
            lab.ledger.runs.get("nope"),
            lab.ledger.runs.pause("nope"),
            lab.ledger.runs.seal("nope"),
            lab.ledger.reads.stats("nope"),
            lab.ledger.intake.enqueue("nope", []),
        ):
            with pytest.raises(NotFound, match="nope"):
                await call

    async def test_every_change_of_a_run_leaves_an_event(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.ledger.runs.pause(run.id, by="operator-1")
        await lab.ledger.runs.resume(run.id, by="operator-2")
        await lab.ledger.runs.seal(run.id, by="operator-1")
        await lab.ledger.upkeep.tend()
        events = (await lab.ledger.reads.events(run_id=run.id)).rows
        assert [(event.action, event.actor) for event in reversed(events)] == [
            ("run.created", ""),
            ("run.paused", "operator-1"),
            ("run.active", "operator-2"),
            ("run.sealed", "operator-1"),
            ("run.finished", "ledger"),
        ]
