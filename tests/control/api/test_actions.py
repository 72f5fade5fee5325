"""What operators change: previews change nothing, changes do what the preview said and leave an event with who."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.control.api import common
from shoal.ledger.protocols import Ledger
from shoal.model.run import RunState
from shoal.testing.harness import LedgerHarness, dead
from tests.support.small_ledger import api_on, fill, small_run
from tests.support.watched_ledger import LedgerWatch, watch_ledger

ACTOR = "local@127.0.0.1"


@pytest.fixture
def ledger(either_harness: LedgerHarness) -> Ledger:
    return either_harness.ledger


async def answer(api: httpx.AsyncClient, method: str, path: str, body: Any = None, status: int = 200) -> dict[str, Any]:
    response = await api.request(method, path, json=body)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_a_lane_that_is_slowed_down_ends_last(api: httpx.AsyncClient, ledger: Ledger) -> None:
    run = await fill(ledger)
    await answer(api, "PATCH", "lanes/shop.example", {"delay": [50, 60]})
    why = await answer(api, "GET", f"runs/{run.id}/why")
    assert why["critical_lane"] == "shop.example"
    assert 200 <= why["critical_seconds"][0] < why["critical_seconds"][1] <= 360
    assert why["command"].startswith(f"shoal items why {run.id}")
    assert (await answer(api, "GET", f"runs/{run.id}"))["critical_lane"] == "shop.example"
    assert (await answer(api, "GET", "overview"))["runs"][0]["critical_lane"] == "shop.example"


async def test_tokens_are_listed_with_their_budgets(api: httpx.AsyncClient, ledger: Ledger) -> None:
    await fill(ledger)
    [token] = (await answer(api, "GET", "egress/api"))["rows"]
    [budget] = token["budgets"]
    assert (budget["resource"], budget["capacity"]) == ("search", 50)
    assert all(row["budgets"] == [] for row in (await answer(api, "GET", "egress/isp"))["rows"])


async def newest_event(ledger: Ledger) -> tuple[str, str]:
    event = (await ledger.reads.events(limit=1)).rows[0]
    return event.actor, event.action


async def test_a_run_is_paused_resumed_sealed_cancelled_and_removed(api: httpx.AsyncClient, ledger: Ledger) -> None:
    run = await small_run(ledger)
    preview = await answer(api, "POST", f"runs/{run.id}/pause?preview=true")
    assert (preview["preview"], preview["items"], preview["items_is_at_least"]) == (True, 4, False)
    assert preview["command"].startswith(f"shoal runs pause {run.id}")
    assert (await ledger.runs.get(run.id)).state == "active"
    assert (await answer(api, "POST", f"runs/{run.id}/pause"))["state"] == "paused"
    assert await newest_event(ledger) == (ACTOR, "run.paused")
    assert (await answer(api, "POST", "runs/latest/resume"))["state"] == "active"
    assert not (await ledger.runs.get(run.id)).sealed
    await answer(api, "POST", "runs/latest:shop/seal")
    assert (await ledger.runs.get(run.id)).sealed
    assert (await answer(api, "POST", f"runs/{run.id}/cancel?preview=true"))["items"] == 4
    cancelled = await answer(api, "POST", f"runs/{run.id}/cancel")
    assert (cancelled["items"], cancelled["state"], cancelled["complete"]) == (4, "cancelled", True)
    assert (await answer(api, "POST", f"runs/{run.id}/pause", status=409))["error"]["code"] == "wrong_state"
    assert (await answer(api, "DELETE", f"runs/{run.id}?preview=true"))["items"] == 4
    assert (await answer(api, "DELETE", f"runs/{run.id}"))["items"] == 4
    assert (await answer(api, "GET", f"runs/{run.id}", status=404))["error"]["hint"]


async def test_a_retry_says_what_became_of_the_run_and_that_nobody_works_on_it(
    api: httpx.AsyncClient,
    ledger: Ledger,
    either_harness: LedgerHarness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = await small_run(ledger, "vine")
    await ledger.runs.seal(run.id)
    worker = await either_harness.worker()
    await either_harness.commit(worker, *(dead(each) for each in await either_harness.claim(worker)))
    assert (await ledger.upkeep.run_once()).finished == (run.id,)
    path = f"runs/{run.id}/items/retry"
    preview = await answer(api, "POST", f"{path}?preview=true", {"limit": 1})
    assert "--state dead" in preview["command"]
    retried = await answer(api, "POST", path, {"limit": 1})
    assert (retried["state"], retried["command"]) == ("active", preview["command"])
    assert retried["text"] == f"Retried: 1 item of run {run.id}.", "a worker is alive"
    await ledger.workers.mark_dead(worker)
    retried = await answer(api, "POST", path, {"limit": 1})
    assert "No live worker serves the run: start one with `shoal worker`" in retried["text"]
    (tmp_path / "vine.py").write_text('from shoal import Scraper\n\nvine = Scraper("vine")\n')
    retried = await answer(api, "POST", path, {"limit": 1})
    assert re.search(r"No live worker serves the run: `shoal run \S*vine\.py( \S+)*` works on it\.", retried["text"])
    await small_run(ledger, "vine")
    await ledger.runs.pause(run.id)
    retried = await answer(api, "POST", path, {"limit": 1})
    assert f"The run is paused: `shoal runs resume {run.id}" in retried["text"]
    assert retried["state"] == "paused"
    await ledger.runs.resume(run.id)
    cancelled = await answer(api, "POST", f"runs/{run.id}/items/cancel", {"limit": 1})
    assert (cancelled["state"], "--state ready" in cancelled["command"]) == ("active", True)
    item = (await ledger.reads.items(run.id)).rows[0].id
    assert await answer(api, "POST", f"runs/{run.id}/items/{item}/cancel")
    retried = await answer(api, "POST", f"runs/{run.id}/items/{item}/retry")
    assert re.search(rf"`shoal worker \S*vine\.py --run-id {run.id}", retried["text"]), "there is a newer run"


async def test_items_are_retried_a_few_first(
    api: httpx.AsyncClient, ledger: Ledger, either_harness: LedgerHarness
) -> None:
    run = await small_run(ledger)
    worker = await either_harness.worker()
    claimed = await either_harness.claim(worker)
    await either_harness.commit(worker, *(dead(each) for each in claimed))
    body = {"filter": {"states": ["dead"], "error": "404"}, "limit": 3}
    preview = await answer(api, "POST", f"runs/{run.id}/items/retry?preview=true", body)
    assert (preview["items"], preview["text"]) == (3, f"To be retried: 3 items of run {run.id}.")
    assert "--limit 3" in preview["command"]
    assert (await answer(api, "POST", f"runs/{run.id}/items/retry", body))["items"] == 3
    assert await newest_event(ledger) == (ACTOR, "items.retried")
    assert (await answer(api, "POST", f"runs/{run.id}/items/retry", {}))["items"] == 1
    assert (await ledger.reads.stats(run.id)).ready == 4
    one = claimed[0].item
    assert (await answer(api, "POST", f"runs/{run.id}/items/{one}/cancel"))["items"] == 1
    assert (await answer(api, "POST", f"runs/{run.id}/items/{one}/retry"))["items"] == 1
    await answer(api, "POST", f"runs/{run.id}/items/999999/retry", status=404)
    refused = await answer(api, "POST", f"runs/{run.id}/items/retry", {"filter": {"colour": "red"}}, status=422)
    assert "colour" in refused["error"]["message"]
    assert (await answer(api, "POST", f"runs/{run.id}/items/cancel", {"filter": {"partition": "CA"}}))["items"] == 4
    await either_harness.check()


async def test_a_repeated_request_with_one_key_is_done_once(api: httpx.AsyncClient, ledger: Ledger) -> None:
    run = await small_run(ledger)
    first, second = [
        await api.post(f"runs/{run.id}/items/cancel", json={"limit": 1}, headers={"Idempotency-Key": "one"})
        for _ in range(2)
    ]
    assert (first.json(), second.json()["items"]) == (second.json(), 1)
    assert (await ledger.reads.stats(run.id)).cancelled == 1


async def test_a_lane_is_changed_by_pace_limit_pause_and_block(api: httpx.AsyncClient, ledger: Ledger) -> None:
    changed = await answer(api, "PATCH", "lanes/shop.example", {"delay": "2/s", "limit": 3})
    assert (changed["lane"]["policy"]["limit"], changed["lane"]["policy"]["delay_max"]) == (3, 0.5)
    assert "--delay 0.5" in changed["command"]
    assert await newest_event(ledger) == (ACTOR, "lane.set")
    await answer(api, "PATCH", "lanes/shop.example?preview=true", {"paused": True})
    assert not (await ledger.lanes.get("shop.example")).paused
    assert (await answer(api, "PATCH", "lanes/shop.example", {"paused": True}))["lane"]["paused"]
    blocked = await answer(api, "POST", "lanes/shop.example/block", {"seconds": 600, "why": "maintenance"})
    assert (blocked["lane"]["blocked_seconds"], blocked["lane"]["blocked_why"]) == (
        pytest.approx(600, 5),
        "maintenance",
    )
    assert (await answer(api, "POST", "lanes/shop.example/block", {"seconds": 0}))["lane"]["blocked_seconds"] == 0
    for body in ({}, {"delay": "fast"}, {"delay": [3, 1]}, {"limit": 0}):
        assert (await answer(api, "PATCH", "lanes/shop.example", body, status=422))["error"]["message"]
    await answer(api, "POST", "lanes/a/b%20c/block", {"seconds": 1}, status=404)


async def test_workers_are_drained_and_pools_scaled(api: httpx.AsyncClient, ledger: Ledger) -> None:
    run = await fill(ledger)
    worker = "node1-4021-9f2c11aa"
    assert (await answer(api, "POST", f"workers/{worker}/drain?preview=true"))["items"] == 1
    await answer(api, "POST", "scrapers/shop/scale", {"workers": 4}, status=404)
    assert (await answer(api, "POST", f"runs/{run.id}/drain"))["workers"] == [worker]
    assert await newest_event(ledger) == (ACTOR, "worker.draining")
    assert (await answer(api, "POST", f"workers/{worker}/drain"))["workers"] == [worker]
    await answer(api, "POST", "workers/nobody/drain", status=404)


async def test_exits_rest_are_banned_and_freed(api: httpx.AsyncClient, ledger: Ledger) -> None:
    await fill(ledger)
    path = "egress/isp/exits/000000000002"
    rested = await answer(api, "POST", f"{path}/rest", {"seconds": 1800})
    assert (rested["exit"]["state"], rested["exit"]["by"]) == ("resting", ACTOR)
    assert "--for 1800s" in rested["command"]
    banned = await answer(api, "POST", f"{path}/ban", {"why": "old pages"})
    assert (banned["exit"]["state"], banned["exit"]["why"]) == ("banned", "old pages")
    assert (await answer(api, "POST", f"{path}/free"))["exit"]["state"] == "good"
    await answer(api, "POST", "egress/isp/exits/ffffffffffff/free", status=404)
    refused = await answer(api, "POST", f"{path}/test", {}, status=404)
    assert "no pool of proxies 'isp'" in refused["error"]["message"]


async def test_settings_are_stored_as_versions(api: httpx.AsyncClient, ledger: Ledger) -> None:
    first = await answer(api, "PUT", "settings/scraper:shop", {"value": {"retries": 5}, "version": 0})
    second = await answer(api, "PUT", "settings/scraper:shop", {"value": {"retries": 6}, "version": first["version"]})
    late = await answer(api, "PUT", "settings/scraper:shop", {"value": {}, "version": first["version"]}, status=409)
    assert "somebody else" in late["error"]["message"]
    (stored,) = (await answer(api, "GET", "settings"))["stored"]
    assert (stored["scope"], stored["version"], stored["by"]) == ("scraper:shop", second["version"], ACTOR)
    assert stored["value"] == {"retries": 6}
    for scope, value in (
        ("pool:shop", {"retries": 1}),
        ("scraper:shop", {"ledger": "x"}),
        ("scraper:shop", {"retries": -1}),
    ):
        await answer(api, "PUT", f"settings/{scope}", {"value": value}, status=422)
    await answer(api, "POST", "alerts/test", status=422)


async def test_an_action_on_a_slow_ledger_is_answered_and_goes_on(
    either_harness: LedgerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 202, which every action documents; it is done when the ledger answers."""
    monkeypatch.setattr(common, "ACTION_SECONDS", 0.1)
    harness, watch = either_harness, LedgerWatch()
    run = await harness.run()
    async with api_on(watch_ledger(harness.ledger, watch), tmp_path) as api:
        watch.held.clear()
        slow = await api.post(f"runs/{run.id}/pause")
        assert (slow.status_code, slow.json()["complete"]) == (202, False)
        document = (await api.get("openapi.json")).json()
        assert "202" in document["paths"]["/api/v1/runs/{run}/pause"]["post"]["responses"]
        assert (await harness.ledger.runs.get(run.id)).state is RunState.ACTIVE
        watch.held.set()
        async with asyncio.timeout(60):
            while (await harness.ledger.runs.get(run.id)).state is not RunState.PAUSED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
