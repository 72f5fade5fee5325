"""Files, object stores and webhooks as sinks."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import SinkFailed
from shoal.sinks.webhook import SIGNATURE_HEADER, TIMESTAMP_HEADER, signature
from shoal.testing.harness import LedgerHarness
from tests.support.object_store import BUCKET, S3Server
from tests.support.sinks import WebhookReceiver, deliver_all, delivery_to, sink_config, store


@pytest.fixture
def receivers() -> Iterator[list[WebhookReceiver]]:
    started: list[WebhookReceiver] = []
    yield started
    for receiver in started:
        receiver.stop()


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"n": n, "name": f"name {n}"} for n in range(count)]


async def test_parts_are_rolled_by_size_and_time(harness: LedgerHarness, tmp_path: Path) -> None:
    run = await harness.run()
    config = sink_config(kind="jsonl", path=f"{tmp_path}/out/{{scraper}}/{{stage}}", batch=100, interval=60.0)
    delivery = delivery_to(config)
    folder = tmp_path / "out" / "shop" / "page"
    await store(harness, run, numbers(250), per_commit=20)
    while await delivery.step(harness.ledger):
        pass
    assert [len(part.read_text().splitlines()) for part in sorted(folder.iterdir())] == [100, 100]
    assert not await delivery.step(harness.ledger), "the last fifty wait for more"
    await harness.advance_clock(61)
    await delivery.step(harness.ledger)
    lines = [json.loads(line) for part in sorted(folder.iterdir()) for line in part.read_text().splitlines()]
    assert [line["n"] for line in lines] == list(range(250))
    assert lines[0]["shoal_id"] == f"{run.id}:1:0"
    assert (folder / "part-000000000000.jsonl").exists()


async def test_parquet_parts_in_an_object_store(harness: LedgerHarness, s3: S3Server) -> None:
    pq = importlib.import_module("pyarrow.parquet")
    pa = importlib.import_module("pyarrow")
    run = await harness.run()
    await store(harness, run, numbers(120), per_commit=10)
    config = sink_config(kind="parquet", path=f"s3://{BUCKET}/lake/{{scraper}}", batch=50)
    await deliver_all(delivery_to(config), harness.ledger)
    names = sorted(s3.objects())
    assert len(names) == 3
    assert all(name.startswith("lake/shop/part-") and name.endswith(".parquet") for name in names)
    tables = [pq.read_table(pa.BufferReader(s3.content(name))) for name in names]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["n"] for row in rows] == list(range(120))
    # Delivered again after a crash: the same parts, replaced.
    await harness.ledger.changes.reset(config.cursor)
    await deliver_all(delivery_to(config), harness.ledger)
    assert sorted(s3.objects()) == names
    assert s3.uploads() == []


async def test_a_folder_that_cannot_be_written_is_a_failing_sink(harness: LedgerHarness, tmp_path: Path) -> None:
    run = await harness.run()
    await store(harness, run, numbers(3))
    (tmp_path / "file").write_text("")
    config = sink_config(kind="jsonl", path=f"{tmp_path}/file/below")
    with pytest.raises(SinkFailed):
        await deliver_all(delivery_to(config), harness.ledger)


async def test_a_webhook_gets_signed_batches(harness: LedgerHarness, receivers: list[WebhookReceiver]) -> None:
    receiver = WebhookReceiver()
    receivers.append(receiver)
    run = await harness.run()
    await store(harness, run, numbers(25))
    config = sink_config(
        kind="webhook", url=receiver.url, secret_env="HOOK_SECRET", environ={"HOOK_SECRET": "hush-hush"}, batch=10
    )
    await deliver_all(delivery_to(config), harness.ledger)
    assert [record["record"]["n"] for record in receiver.taken] == list(range(25))
    assert receiver.taken[0]["id"] == f"{run.id}:1:0"
    keys = set()
    for headers, body in receiver.requests:
        assert headers[SIGNATURE_HEADER] == signature("hush-hush", headers[TIMESTAMP_HEADER], body)
        keys.add(headers["Idempotency-Key"])
    assert len(keys) == len(receiver.requests)
    assert "a-token-in-the-path" not in config.place
    assert "a-token-in-the-path" in " ".join(config.secrets())


async def test_what_a_webhook_answers_decides(harness: LedgerHarness, receivers: list[WebhookReceiver]) -> None:
    """5xx and 401 are tried again with the same key, 422 divides the batch, 429 with Retry-After is not bothered."""

    def answer(number: int, body: Any) -> tuple[int, dict[str, str]]:
        if number <= 2:
            return (503 if number == 1 else 401), {}
        if any(record["record"]["n"] == 7 for record in body["records"]):
            return 422, {}
        return 200, {}

    receiver = WebhookReceiver(answer)
    receivers.append(receiver)
    run = await harness.run()
    await store(harness, run, numbers(20))
    config = sink_config(kind="webhook", url=receiver.url, batch=20)
    delivery = delivery_to(config)
    for status in ("503", "401"):
        with pytest.raises(SinkFailed, match=status):
            await delivery.step(harness.ledger)
    await deliver_all(delivery, harness.ledger)
    assert sorted(record["record"]["n"] for record in receiver.taken) == [n for n in range(20) if n != 7]
    first, second = (headers["Idempotency-Key"] for headers, _ in receiver.requests[:2])
    assert first == second
    (letter,) = (await harness.ledger.changes.dead_letters(config.cursor)).rows
    assert letter.reason == "422 Unprocessable Entity"

    def busy(number: int, body: Any) -> tuple[int, dict[str, str]]:
        return 429, {"Retry-After": "120"}

    asked = WebhookReceiver(busy)
    receivers.append(asked)
    waiting = delivery_to(sink_config("other", kind="webhook", url=asked.url))
    with pytest.raises(SinkFailed, match="429"):
        await waiting.step(harness.ledger)
    with pytest.raises(SinkFailed, match="asked to wait"):
        await waiting.step(harness.ledger)
    assert len(asked.requests) == 1
