"""The ledger of the screenshots keeps the ledger's rules, and the pages that are shown have something to show."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from web.dev.scene import open_scene, served

MINUTES = 13.5


@pytest.mark.slow
async def test_a_scene_is_a_sound_ledger_with_runs_lanes_partitions_and_egress(tmp_path: Path) -> None:
    scene = await open_scene(tmp_path, minutes=MINUTES)
    try:
        assert await scene.ledger.upkeep.audit() == []
        async with served(scene) as url, httpx.AsyncClient(base_url=f"{url}api/v1/", trust_env=False) as client:
            overview = (await client.get("overview")).raise_for_status().json()
            run = (await client.get("runs/latest:counties")).raise_for_status().json()
            lanes = (await client.get(f"runs/{run['run_id']}/lanes/timeline")).raise_for_status().json()["lanes"]
            partitions = (await client.get(f"runs/{run['run_id']}/partitions?limit=200")).raise_for_status().json()
    finally:
        await scene.ledger.close()
    assert {pool["pool"] for pool in overview["egress"]} == {"geo", "residential"}
    assert overview["workers"]["live"] == 5
    assert run["state"] == "active"
    assert run["done"] > 0
    assert {lane["ordered"] for lane in lanes} == {True, False}
    assert {"CA", "TX", "NY"} <= {row["partition"] for row in partitions["rows"]}
