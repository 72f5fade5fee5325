"""Targets of redirects: each page is visited by one item, whichever links lead to it."""

from __future__ import annotations

import asyncio

from shoal.model.item import ClaimedItem, ItemState, NewItem, prepare
from shoal.model.lane import LanePolicy
from shoal.model.outcome import RedirectReply, RedirectVisit, VisitDecision
from shoal.model.run import Run
from shoal.model.views import ItemFilter, ItemView
from shoal.testing.harness import LedgerHarness, dead, done, retry, skipped

VISIT, DUPLICATE, WAIT, LOST = VisitDecision.VISIT, VisitDecision.DUPLICATE, VisitDecision.WAIT, VisitDecision.LOST


def url(name: str) -> str:
    return f"https://example.com/{name}"


def visit_of(claimed: ClaimedItem, name: str, via: str | None = None, lane: str | None = None) -> RedirectVisit:
    def hashed(name: str) -> bytes:
        return prepare(NewItem(url=url(name)), claimed.stage).key_hash

    return RedirectVisit(
        lease=claimed.lease,
        target=prepare(NewItem(url=url(name), stage=claimed.stage, lane=lane, depth=claimed.depth), claimed.stage),
        via=None if via is None else hashed(via),
        shown=url(name),
        seconds=0.25,
    )


class RedirectsConformance:
    async def begin(
        self, harness: LedgerHarness, *names: str, lane: str | None = None
    ) -> tuple[Run, str, dict[str, ClaimedItem]]:
        """A run with these URLs, a worker, and its leases by name."""
        run = await harness.run(lane=LanePolicy(limit=20))
        await harness.ledger.intake.enqueue(run.id, [NewItem(url=url(name), lane=lane) for name in names])
        worker = await harness.worker(lease_seconds=1000)
        return run, worker, await self.claim(harness, worker)

    async def claim(self, harness: LedgerHarness, worker: str) -> dict[str, ClaimedItem]:
        return {(item.url or "").rpartition("/")[2]: item for item in await harness.claim(worker)}

    async def visit(
        self, harness: LedgerHarness, worker: str, claimed: ClaimedItem, name: str, **how: str | None
    ) -> RedirectReply:
        return await harness.ledger.commits.visit_redirect(worker, visit_of(claimed, name, **how))

    async def view(self, harness: LedgerHarness, run: Run, name: str) -> ItemView:
        return await harness.ledger.reads.item(run.id, key=url(name))

    async def test_a_new_target_becomes_an_alias_and_links_to_it_are_duplicates(self, harness: LedgerHarness) -> None:
        run, worker, held = await self.begin(harness, "old", lane="example.com")
        assert await self.visit(harness, worker, held["old"], "new", lane="example.com") == RedirectReply(VISIT)
        alias = await self.view(harness, run, "new")
        assert (alias.state, alias.outcome, alias.parent, alias.lane) == (
            ItemState.SKIPPED,
            "duplicate",
            held["old"].item,
            "example.com",
        )
        assert alias.error == f"the same page as item {held['old'].item}, which redirects to it"
        assert await harness.ledger.reads.attempts(run.id, alias.id) == []
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.leased, counts.skipped, counts.total) == (1, 1, 2)
        links = [NewItem(url=url("new")), NewItem(url=url("other"))]
        report = await harness.commit(worker, done(held["old"], '{"a":1}', follow_ups=links))
        assert (report.enqueued, report.duplicates) == (1, 1)
        assert [row.item for row in (await harness.ledger.reads.results(run.id)).rows] == [held["old"].item]
        await harness.check()

    async def test_a_call_made_twice_takes_effect_once(self, harness: LedgerHarness) -> None:
        run, worker, held = await self.begin(harness, "a", "b", "c")
        for _ in range(2):
            assert (await self.visit(harness, worker, held["a"], "new")).decision is VISIT
            assert await self.visit(harness, worker, held["b"], "c") == RedirectReply(DUPLICATE, held["c"].item)
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.skipped, counts.leased, counts.total) == (2, 2, 4)
        report = await harness.commit(worker, skipped(held["b"]))
        assert (report.committed, report.lost, report.repeated) == (0, (), (held["b"].item,))
        await harness.check()

    async def test_a_target_that_is_another_item_ends_this_one(self, harness: LedgerHarness) -> None:
        """Whatever became of the other: it was found before."""
        run, worker, held = await self.begin(harness, "open", "leased", "done", "dead", *"abcd", lane="example.com")
        await harness.ledger.claims.return_leases(worker, [held["open"].lease])
        await harness.commit(worker, done(held["done"]), dead(held["dead"]))
        for name, target in zip("abcd", ("open", "leased", "done", "dead"), strict=True):
            reply = await self.visit(harness, worker, held[name], target)
            assert reply == RedirectReply(DUPLICATE, held[target].item)
            view = await self.view(harness, run, name)
            assert (view.state, view.outcome) == (ItemState.SKIPPED, "duplicate")
            assert view.error == f"redirects to {url(target)}, the same page as item {held[target].item}"
            (attempt,) = await harness.ledger.reads.attempts(run.id, view.id)
            assert (attempt.outcome, attempt.seconds, attempt.worker) == ("duplicate", 0.25, worker)
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.skipped, counts.done, counts.dead, counts.total) == (4, 1, 1, 8)
        assert (await harness.ledger.reads.recent(run.id)).skipped == 4
        await harness.check()

    async def test_of_pages_that_redirect_to_each_other_one_is_visited(self, harness: LedgerHarness) -> None:
        run, worker, held = await self.begin(harness, "a", "b", "c", "x", "y")
        assert await self.visit(harness, worker, held["a"], "b") == RedirectReply(DUPLICATE, held["b"].item)
        assert await self.visit(harness, worker, held["b"], "c") == RedirectReply(DUPLICATE, held["c"].item)
        assert (await self.visit(harness, worker, held["c"], "a")).decision is VISIT
        both = await asyncio.gather(
            self.visit(harness, worker, held["x"], "y"), self.visit(harness, worker, held["y"], "x")
        )
        assert sorted(reply.decision for reply in both) == [DUPLICATE, VISIT]
        assert (await harness.ledger.reads.stats(run.id)).skipped == 3
        await harness.check()

    async def test_many_pages_with_one_target_at_once(self, harness: LedgerHarness) -> None:
        names = [f"p{n}" for n in range(12)]
        run, worker, held = await self.begin(harness, *names, lane="example.com")
        replies = await asyncio.gather(
            *(self.visit(harness, worker, held[name], "login", lane="example.com") for name in names)
        )
        assert sorted(reply.decision for reply in replies) == [VISIT] + [WAIT] * 11
        assert (await harness.ledger.reads.stats(run.id)).total == 13
        await harness.check()

    async def test_an_alias_of_a_running_item_is_waited_for(self, harness: LedgerHarness) -> None:
        run, worker, held = await self.begin(harness, "a", "b", "c")
        assert (await self.visit(harness, worker, held["a"], "page")).decision is VISIT
        assert await self.visit(harness, worker, held["b"], "page") == RedirectReply(WAIT, held["a"].item)
        assert await harness.state(run, url("b")) == "leased"
        await harness.commit(worker, retry(held["a"], delay=100))
        assert await self.visit(harness, worker, held["b"], "page") == RedirectReply(DUPLICATE, held["a"].item)
        await harness.advance_clock(101)
        await harness.ledger.upkeep.run_once()
        again = await self.claim(harness, worker)
        assert (await self.visit(harness, worker, again["a"], "page")).decision is VISIT, "it is its own alias"
        await harness.commit(worker, done(again["a"]))
        assert await self.visit(harness, worker, held["c"], "page") == RedirectReply(DUPLICATE, held["a"].item)
        await harness.check()

    async def test_a_page_that_redirects_further_is_nobodys_page(self, harness: LedgerHarness) -> None:
        """A site that sends every visitor to /cookies first, and from there to the page that was asked for."""
        run, worker, held = await self.begin(harness, "a", "b", "c")
        assert (await self.visit(harness, worker, held["a"], "cookies")).decision is VISIT
        assert (await self.visit(harness, worker, held["a"], "a", via="cookies")).decision is VISIT
        assert (await self.visit(harness, worker, held["b"], "cookies")).decision is VISIT
        assert (await self.visit(harness, worker, held["b"], "b", via="cookies")).decision is VISIT
        assert (await self.visit(harness, worker, held["c"], "cookies")).decision is VISIT
        reply = await self.visit(harness, worker, held["c"], "a", via="cookies")
        assert reply == RedirectReply(DUPLICATE, held["a"].item)
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.leased, counts.skipped, counts.total) == (2, 2, 4)
        await harness.check()

    async def test_a_lost_lease_reserves_nothing(self, harness: LedgerHarness) -> None:
        run, worker, held = await self.begin(harness, "a", "b")
        await harness.ledger.steering.release(older_than=0)
        assert await self.visit(harness, worker, held["a"], "new") == RedirectReply(LOST)
        assert await self.visit(harness, worker, held["b"], "a") == RedirectReply(LOST)
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.ready, counts.total) == (2, 2)
        await harness.check()

    async def test_an_alias_that_is_retried_is_an_item_like_others(self, harness: LedgerHarness) -> None:
        run, worker, held = await self.begin(harness, "a", "b", lane="example.com")
        await self.visit(harness, worker, held["a"], "page", lane="example.com")
        await harness.commit(worker, done(held["a"], '{"a":1}'))
        assert await harness.ledger.steering.retry(run.id, ItemFilter(states=(ItemState.SKIPPED,))) == 1
        assert await self.visit(harness, worker, held["b"], "page") == RedirectReply(
            DUPLICATE, (await self.view(harness, run, "page")).id
        )
        again = await self.claim(harness, worker)
        assert list(again) == ["page"]
        assert again["page"].lane == "example.com"
        await harness.commit(worker, done(again["page"], '{"a":2}'))
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.done, counts.skipped, counts.results) == (2, 1, 2)
        await harness.check()

    async def test_aliases_belong_to_one_stage_and_run(self, harness: LedgerHarness) -> None:
        first, worker, held = await self.begin(harness, "a")
        await self.visit(harness, worker, held["a"], "page")
        second = await harness.run("page", "other")
        for stage in second.stages:
            report = await harness.ledger.intake.enqueue(second.id, [url("page")], stage=stage)
            assert report.enqueued == 1
        await harness.ledger.runs.remove(first.id)
        await harness.check()
