"""Lists of lanes with the items of a run, the slowest ones, and what ran in them; the matrix of exits and hosts."""

from __future__ import annotations

import pytest

from shoal.errors import InvalidSetting, UsageError
from shoal.model.egress import ExitReport, ExitSpec, HealthRules, HostReport
from shoal.model.lane import LanePolicy, LaneProgress, lane_eta
from shoal.testing.harness import LedgerHarness, dead, done, retry


class LaneListsConformance:
    async def test_lanes_of_a_run_by_name_with_its_items(self, harness: LedgerHarness) -> None:
        shared = LanePolicy(limit=1)
        run, other = await harness.run(lane=shared), await harness.run(lane=shared)
        own = await harness.run(lane=LanePolicy(limit=1, shared=False, ordered=True))
        for name in ("b.example", "a.example", "c.example"):
            await harness.put(run, f"{name} 1", f"{name} 2", f"{name} 3", lane=name)
        await harness.put(other, "o1", "o2", lane="a.example")
        await harness.put(other, "o3", lane="z.example")
        await harness.put(own, "g1", "g2", lane="group")

        async def lanes(run_id: str | None, **which: object) -> list[LaneProgress]:
            found: list[LaneProgress] = []
            cursor = None
            while True:
                page = await harness.ledger.lanes.progress(run_id=run_id, cursor=cursor, limit=2, **which)  # type: ignore[arg-type]
                found += page.rows
                if (cursor := page.cursor) is None:
                    return found

        of_run = await lanes(run.id)
        assert [row.lane.key for row in of_run] == ["a.example", "b.example", "c.example"]
        assert [(row.waiting, row.leased, row.ended) for row in of_run] == [(2, 0, 0)] * 3
        assert not any(row.waiting_is_at_least or row.ended_is_at_least for row in of_run)
        assert [row.lane.key for row in await lanes(own.id)] == ["group"]
        assert [row.lane.key for row in await lanes(None)] == ["a.example", "b.example", "c.example", "z.example"]
        assert ((all_runs := (await lanes(None))[0]).waiting, all_runs.ended) == (4, None), "of all runs"
        assert [row.lane.key for row in await lanes(run.id, prefix="b")] == ["b.example"]
        assert [row.lane.key for row in await lanes(None, prefix="z.")] == ["z.example"]
        assert await lanes(run.id, prefix="z") == []

        worker = await harness.worker()
        claimed = {item.name: item for item in await harness.claim(worker)}
        await harness.commit(
            worker,
            done(claimed["a.example 1"]),
            dead(claimed["b.example 1"]),
            retry(claimed["c.example 1"], delay=900),
        )
        counts = {row.lane.key: (row.waiting, row.leased, row.ended) for row in await lanes(run.id)}
        # Whoever comes next in a.example may be an item of the other run.
        assert counts["a.example"][2] in (0, 1)
        assert counts["b.example"] == (1, 0, 1)
        assert counts["c.example"] == (1, 0, 0), "an item that waits for its next try has not ended"
        with pytest.raises(UsageError):
            await harness.ledger.lanes.progress(run_id=run.id, cursor="x")

    async def test_the_slowest_lanes_first(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        sizes = {"few.example": 4, "many.example": 40, "slow.example": 8, "empty.example": 1}
        for name, size in sizes.items():
            await harness.put(run, *(f"{name} {n}" for n in range(size)), lane=name)
        await harness.ledger.lanes.set("slow.example", delay=(30.0, 30.0))
        lanes = harness.ledger.lanes

        async def names() -> list[str]:
            found, cursor = [], None
            while True:
                page = await lanes.progress(run_id=run.id, slowest=True, cursor=cursor, limit=2)
                found += [row.lane.key for row in page.rows]
                if (cursor := page.cursor) is None:
                    return found

        assert await names() == ["slow.example", "many.example", "few.example"]
        # Ranked again by upkeep, after a change.
        await lanes.set("few.example", delay=(3_000.0, 3_000.0))
        await harness.advance_clock(11)
        await harness.ledger.upkeep.run_once()
        assert (await names())[0] == "few.example"
        shared = await lanes.progress(slowest=True, prefix="m")
        assert [row.lane.key for row in shared.rows] == ["many.example"]
        other = await harness.run()
        assert (await lanes.progress(run_id=other.id, slowest=True)).rows == ()
        (first,) = (await lanes.progress(run_id=run.id, slowest=True, limit=1)).rows
        eta = lane_eta(first.lane, 1.0)
        assert eta is not None
        assert eta[1] == pytest.approx(3_000 * first.waiting, rel=0.6)
        await harness.check()

    async def test_what_ran_in_the_lanes(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, *(f"a{n}" for n in range(6)), lane="a")
        await harness.put(run, "b0", lane="b")
        worker = await harness.worker(lease_seconds=86_400)
        for n in range(3):
            claimed = {item.name: item for item in await harness.claim(worker)}
            await harness.advance_clock(10)
            await harness.commit(worker, retry(claimed["a1"], delay=0) if n == 1 else done(claimed[f"a{n}"]))
            await harness.ledger.upkeep.run_once()
        running = [item.name for item in await harness.claim(worker)]
        assert running == ["a1"]
        spans = await harness.ledger.lanes.timeline(run.id, ["a", "b", "none"])
        assert [(span.name, span.outcome) for span in spans["a"]] == [
            ("a0", "done"),
            ("a1", "transient"),
            ("a2", "done"),
            ("a1", None),
        ]
        assert [(span.name, span.outcome, span.end) for span in spans["b"]] == [("b0", None, None)]
        assert spans["none"] == ()
        for before, after in zip(spans["a"], spans["a"][1:], strict=False):
            assert before.begin <= (before.end or before.begin) <= after.begin
            assert before.end is not None
        few = await harness.ledger.lanes.timeline(run.id, ["a"], spans=2)
        assert [span.name for span in few["a"]] == ["a2", "a1"], "the newest"
        await harness.advance_clock(7_200)
        late = await harness.ledger.lanes.timeline(run.id, ["a"], minutes=60)
        assert [span.name for span in late["a"]] == ["a1"]
        with pytest.raises(InvalidSetting):
            await harness.ledger.lanes.timeline(run.id, [f"l{n}" for n in range(31)])

    async def test_the_matrix_of_exits_and_hosts(self, harness: LedgerHarness) -> None:
        worker = await harness.worker()
        exits = harness.ledger.exits
        await exits.register(worker, "pool", "proxies", [ExitSpec(f"k{n}", f"proxy {n}") for n in range(4)])
        rules = HealthRules()

        async def block(exit_key: str, host: str, times: int) -> None:
            report = HostReport(host=host, blocked=times, blocks_in_row=times, error="403")
            await exits.report(worker, "pool", [ExitReport(key=exit_key, hosts=(report,))], rules)

        await block("k1", "hard.example", 3)
        await block("k2", "hard.example", 1)
        await block("k2", "soft.example", 3)
        matrix = await exits.matrix("pool")
        assert (matrix.hosts, matrix.complete) == (("hard.example", "soft.example"), True)
        assert [row.label for row in matrix.exits] == ["proxy 1", "proxy 2"], "others are not blocked"
        cells = {
            (row.label, cell.host): (cell.blocked, cell.until is not None) for row in matrix.exits for cell in row.cells
        }
        assert cells == {
            ("proxy 1", "hard.example"): (3, True),
            ("proxy 2", "hard.example"): (1, False),
            ("proxy 2", "soft.example"): (3, True),
        }
        small = await exits.matrix("pool", hosts=1, exits=1)
        assert (small.hosts, len(small.exits), small.complete) == (("hard.example",), 1, False)
        assert (await exits.matrix("none")).exits == ()
