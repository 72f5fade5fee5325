"""Sinks under test: a ledger with records, settings of a sink, deliveries, and a receiver of webhooks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from shoal.config.settings import Settings
from shoal.config.sinks import SinkConfig, read_sink
from shoal.config.sources import Origin, RawValue, Variables
from shoal.errors import SinkFailed
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.run import Run
from shoal.sinks.delivery import Delivery
from shoal.sinks.sink import RecordsRefused, Sink, SinkBatch
from shoal.sinks.thread import make_sink
from shoal.testing.harness import LedgerHarness, done

_OPENED: list[Delivery] = []


class SilentLog:
    """Keeps what was logged."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def bind(self, **_: Any) -> SilentLog:
        return self

    def _log(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    debug = info = warning = error = _log


def sink_config(name: str = "target", *, environ: Mapping[str, str] | None = None, **values: Any) -> SinkConfig:
    """A sink as if it stood in shoal.toml."""
    table = {key: RawValue(value, Origin("shoal.toml", f"sinks.{name}.{key}")) for key, value in values.items()}
    return read_sink(name, table, Variables(environ or {}, {}))


def settings_for(ledger: Path | str, *sinks: SinkConfig, **values: Any) -> Settings:
    return Settings(ledger=str(ledger), sinks={sink.name: sink for sink in sinks}, **values)


def delivery_to(config: SinkConfig, make: Callable[[SinkConfig], Sink] = make_sink, by: str = "test") -> Delivery:
    log: Log = SilentLog()
    _OPENED.append(Delivery(config, make, by=by, log=log, secrets=config.secrets()))
    return _OPENED[-1]


async def close_deliveries() -> None:
    while _OPENED:
        await _OPENED.pop().close()


async def deliver_all(delivery: Delivery, ledger: Ledger) -> None:
    """Until nothing is left."""
    for _ in range(10_000):
        if not await delivery.step(ledger, flush=True):
            return
    raise AssertionError("the delivery does not end")


async def store(
    harness: LedgerHarness, run: Run, records: Sequence[Mapping[str, Any]], *, per_item: int = 5, per_commit: int = 50
) -> None:
    """Store records as a worker would: several per item, several items per commit."""
    worker = await harness.worker()
    keys = [f"{run.id}-{worker}-{n}" for n in range(-(-len(records) // per_item))]
    await harness.put(run, *keys)
    texts = [json.dumps(record) for record in records]
    at = 0
    while claimed := await harness.claim(worker, per_commit):
        ends = []
        for item in claimed:
            ends.append(done(item, *texts[at : at + per_item]))
            at += per_item
        await harness.commit(worker, *ends)


class ListSink:
    """Takes everything into a list, except what `refuses` says, and nothing while `down`."""

    def __init__(self, refuses: Callable[[Mapping[str, Any]], bool] = lambda record: False) -> None:
        self.taken: list[str] = []
        self.values: list[dict[str, Any]] = []
        self.calls = 0
        self.down = ""
        self._refuses = refuses

    async def deliver(self, batch: SinkBatch) -> None:
        self.calls += 1
        if self.down:
            raise SinkFailed(self.down)
        values = [json.loads(record.record) for record in batch.records]
        if any(map(self._refuses, values)):
            raise RecordsRefused("bad value")
        self.taken += [record.id for record in batch.records]
        self.values += values

    async def close(self) -> None:
        """Nothing is open."""


class WebhookReceiver:
    """An HTTP server on loopback that keeps every request; `answer` decides the status by the number and the body."""

    def __init__(self, answer: Callable[[int, Any], tuple[int, dict[str, str]]] | None = None) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.taken: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((dict(self.headers), body))
                value = json.loads(body)
                status, headers = answer(len(receiver.requests), value) if answer else (200, {})
                if 200 <= status < 300:
                    receiver.taken += value["records"]
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hooks/a-token-in-the-path"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
