"""Records as a file: its formats, its name, cells that look like formulas, and what an export may cost."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from shoal.control.api import results
from shoal.export.records import result_pages
from shoal.model.run import Run
from shoal.service import results as service_results
from shoal.testing.harness import LedgerHarness, done

RECORDS: list[dict[str, Any]] = [
    {"title": "=HYPERLINK(0)", "price": 3},
    {"title": "<script>alert(1)</script>", "rate": "+1"},
]


async def stored(harness: LedgerHarness) -> Run:
    run = await harness.run()
    await harness.put(run, "one", "two")
    worker = await harness.worker()
    held = await harness.claim(worker, 2)
    ends = [done(item, json.dumps(record)) for item, record in zip(held, RECORDS, strict=True)]
    await harness.commit(worker, *ends)
    return run


def address(run: Run, format: str) -> str:
    return f"runs/{run.id}/results/export?format={format}"


async def test_an_export_is_a_file_that_no_browser_shows(api: httpx.AsyncClient, either_harness: LedgerHarness) -> None:
    run = await stored(either_harness)
    texts = {}
    for format in ("jsonl", "json", "csv"):
        answer = await api.get(address(run, format))
        assert answer.status_code == 200
        assert answer.headers["content-disposition"].startswith('attachment; filename="')
        assert answer.headers["content-disposition"].endswith(f'{run.id}.{format}"')
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "html" not in answer.headers["content-type"]
        texts[format] = answer.text
    assert [json.loads(line)["title"] for line in texts["jsonl"].splitlines()] == [each["title"] for each in RECORDS]
    assert json.loads(texts["json"]) == [json.loads(line) for line in texts["jsonl"].splitlines()]
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert [row["title"] for row in rows] == ["'=HYPERLINK(0)", "<script>alert(1)</script>"]
    assert [row["rate"] for row in rows] == ["", "'+1"]


async def test_a_file_begins_before_its_columns_are_known(
    either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take long with many records, and an answer that does not begin in time is given up."""
    run = await stored(either_harness)
    going_on = asyncio.Event()

    async def held_pages(*given: Any, **named: Any) -> AsyncIterator[Any]:
        await going_on.wait()
        async for page in result_pages(*given, **named):
            yield page

    monkeypatch.setattr(service_results, "result_pages", held_pages)
    stream = service_results.export_stream(either_harness.ledger, run.id, "csv")
    async with asyncio.timeout(60):
        assert await anext(stream) == b""
        going_on.set()
        assert len(b"".join([part async for part in stream]).splitlines()) == 3


async def test_exports_at_once_are_bounded(
    api: httpx.AsyncClient, either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await stored(either_harness)
    waiting, going_on = asyncio.Event(), asyncio.Event()

    async def held_pages(*given: Any, **named: Any) -> AsyncIterator[Any]:
        waiting.set()
        await going_on.wait()
        async for page in result_pages(*given, **named):
            yield page

    monkeypatch.setattr(service_results, "result_pages", held_pages)
    monkeypatch.setattr(results, "MAX_EXPORTS", 1)
    async with asyncio.timeout(60):
        first = asyncio.create_task(api.get(address(run, "csv")))
        await waiting.wait()
        refused = await api.get(address(run, "jsonl"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_exports")
        going_on.set()
        assert (await first).status_code == 200
        assert (await api.get(address(run, "jsonl"))).status_code == 200
