"""Runs with records, put into a ledger the way workers do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.item import NewItem
from shoal.model.json_text import record_text
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec, new_worker_id

PAGE, REVIEW = "page", "review"


async def stored(ledger: Ledger, records: Sequence[Mapping[str, Any] | str], *, end: bool = True) -> Run:
    """A run of two stages with one item of the first stage per record, in order. Texts are stored as they are."""
    spec = RunSpec(scraper="shop", stages=(StageSpec(PAGE), StageSpec(REVIEW)))
    run = await ledger.runs.create(spec)
    await add(ledger, run, records)
    if end:
        await ledger.runs.seal(run.id)
        await ledger.upkeep.run_once()
    return run


async def add(
    ledger: Ledger, run: Run, records: Sequence[Mapping[str, Any] | str], *, stage: str = PAGE, name: str = "item"
) -> None:
    """More items with one record each."""
    urls = [f"https://shop.example/{name}/{n}" for n in range(len(records))]
    if not urls:
        return
    await ledger.intake.enqueue(run.id, [NewItem(url=url) for url in urls], stage=stage)
    texts = {
        url: record if isinstance(record, str) else record_text(record)
        for url, record in zip(urls, records, strict=True)
    }
    worker = new_worker_id()
    await ledger.workers.register(WorkerSpec(id=worker, node="node", pid=1))
    while claimed := await ledger.claims.claim(worker, Scope(run_ids=(run.id,)), 500):
        ends = [FinishedAttempt(lease=one.lease, decision=DONE, records=(texts[one.name],)) for one in claimed]
        await ledger.commits.commit(worker, ends)


def read_jsonl(data: bytes) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in data.splitlines()]


def read_parquet(source: object) -> Any:
    """An Arrow table, loaded by name: the type checker's answer must not depend on whether pyarrow is installed."""
    return import_module("pyarrow.parquet").read_table(source)
