"""/metrics, /healthz and /readyz: who may read them, what they cost, what they say when the ledger is away."""

from __future__ import annotations

import asyncio
import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from shoal.config import Settings, load_settings
from shoal.control import metrics
from shoal.control.app import ControlOptions, build_app
from shoal.errors import LedgerNotMigrated, UsageError
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.access import Role
from shoal.model.run import RunSpec, StageSpec
from shoal.observe.exposition import PROCESS_METRICS, SERVER_METRICS, WORKER_METRICS
from shoal.service.access import add_token
from shoal.service.metrics import MetricsReader
from shoal.service.overview import SharedReads
from shoal.service.work import MetricsAddress
from shoal.service.worker_metrics import exported_metrics, worker_samples
from tests.support.promtool import promtool
from tests.support.watched_ledger import LedgerWatch, watch_ledger

DOCS = Path(__file__).parents[2] / "docs/howto/metrics.md"


def settings_of(folder: Path) -> Settings:
    return load_settings({"ledger": str(folder / "ledger.db")}, environ={}, folder=folder)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = await open_sqlite(tmp_path / "ledger.db")
    await opened.schema.migrate()
    yield opened
    await opened.close()


@asynccontextmanager
async def client_of(
    folder: Path, ledger: Ledger, options: ControlOptions | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(settings_of(folder), options, opened=lambda: ledger)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8642") as client,
    ):
        yield client


async def test_what_is_exported_is_known_documented_and_valid(tmp_path: Path, ledger: Ledger) -> None:
    run = await ledger.runs.create(RunSpec(scraper="shop", stages=(StageSpec("page"),)))
    await ledger.intake.enqueue(run.id, ["http://shop.example/"])
    async with client_of(tmp_path, ledger) as client:
        await client.get("/healthz")
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        families = {family.name: family for family in parse_text(answer.text)}
        known = {spec.name.removesuffix("_total") for spec in SERVER_METRICS} | {
            name.removesuffix("_total") for name in PROCESS_METRICS
        }
        assert families.keys() <= known
        (ready,) = [sample.value for sample in families["shoal_items"].samples if sample.labels["state"] == "ready"]
        assert ready == 1
        routes = {sample.labels["route"] for sample in families["shoal_api_request_seconds"].samples}
        assert routes == {"/healthz"}
        again = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert "shoal_items" in {family.name for family in parse_openmetrics(again.text)}  # type: ignore[no-untyped-call]
    assert await asyncio.to_thread(promtool, "check", "metrics", text=answer.text) == ""


def test_every_metric_is_in_the_table_of_the_docs() -> None:
    documented = dict(re.findall(r"^\| `((?:shoal|process)_\w+)` \| (\w+) \|", DOCS.read_text(), re.MULTILINE))
    exported = {spec.name: spec.kind for spec in (*SERVER_METRICS, *WORKER_METRICS)}
    assert {name: kind for name, kind in documented.items() if name.startswith("shoal_")} == exported
    assert set(documented) - set(exported) == set(PROCESS_METRICS)
    rows = re.findall(r"^\| `(shoal_\w+)` \| \w+ \|([^|]*)\|", DOCS.read_text(), re.MULTILINE)
    labels = {name: tuple(re.findall(r"`(\w+)`", cell)) for name, cell in rows}
    assert labels == {spec.name: spec.labels for spec in (*SERVER_METRICS, *WORKER_METRICS)}


@pytest.mark.parametrize(("kept_seconds", "is_read_again"), [(3_600.0, False), (0.0, True)])
async def test_scraping_often_reads_the_ledger_once(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, kept_seconds: float, is_read_again: bool
) -> None:
    """However long the requests take: what was read is kept for an hour, or not at all."""
    monkeypatch.setattr(metrics, "KEPT_SECONDS", kept_seconds)
    watch = LedgerWatch()
    async with client_of(tmp_path, watch_ledger(ledger, watch)) as client:
        await client.get("/metrics")
        scrape = Counter(watch.calls)
        for _ in range(20):
            assert (await client.get("/metrics")).status_code == 200
        # Only calls that metrics make: the server also recovers what dead workers hold when it starts.
        assert watch.calls["schema.version"] == scrape["schema.version"] + (20 if is_read_again else 0)
        assert scrape["schema.version"] == 1


async def test_counters_begin_with_the_server_not_with_the_first_scrape(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []

    def reader(find_shared: Callable[[], SharedReads], *, started: float) -> MetricsReader:
        begun.append(started)
        return MetricsReader(find_shared, started=started)

    monkeypatch.setattr(metrics, "MetricsReader", reader)
    async with client_of(tmp_path, ledger) as client:
        serving = time.monotonic()
        await asyncio.sleep(0.01)
        assert (await client.get("/metrics")).status_code == 200
    assert len(begun) == 1
    assert begun[0] <= serving


async def test_a_ledger_that_is_away_is_said_with_200_and_not_ready(tmp_path: Path, ledger: Ledger) -> None:
    watch = LedgerWatch()
    watch.away = True
    async with client_of(tmp_path, watch_ledger(ledger, watch)) as client:
        answer = await client.get("/metrics")
        assert (answer.status_code, "shoal_ledger_up 0.0" in answer.text) == (200, True)
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"ok": False, "text": "The ledger does not answer."})
        assert "db.example" not in ready.text, "no detail for strangers"
        assert (await client.get("/healthz")).status_code == 200
    watch.away = False
    async with client_of(tmp_path, watch_ledger(ledger, watch)) as client:
        assert (await client.get("/readyz")).json() == {"ok": True, "text": ""}


async def test_a_ledger_that_is_not_migrated_is_not_ready(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        raise LedgerNotMigrated("The ledger at db.example has version 0.")

    monkeypatch.setattr(ledger.schema, "require_current", refuse)
    async with client_of(tmp_path, ledger) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, "shoal db migrate" in ready.text) == (503, True)


async def test_metrics_need_what_the_api_needs_and_health_checks_do_not(tmp_path: Path, ledger: Ledger) -> None:
    watch = LedgerWatch()
    options = ControlOptions(require_token=True)
    token = await add_token(ledger, "prometheus", role=Role.VIEWER, by="test")
    async with client_of(tmp_path, watch_ledger(ledger, watch), options) as client:
        assert (await client.get("/metrics")).status_code == 401
        allowed = await client.get("/metrics", headers={"Authorization": f"Bearer {token.secret}"})
        assert (allowed.status_code, "shoal_workers" in allowed.text) == (200, True)
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        watch.away = True
        for headers in ({}, {"Authorization": "Bearer nonsense"}):
            away = await client.get("/metrics", headers=headers)
            assert away.status_code == 401 or "shoal_workers" not in away.text, "a stranger learns nothing"


def test_a_worker_exports_its_metrics_in_a_thread() -> None:
    class Worker:
        """As far as metrics need one."""

        id = "node-1-abc"
        running = 3

        def __init__(self) -> None:
            from shoal.model.outcome import OutcomeClass
            from shoal.worker.metrics import WorkerMetrics
            from shoal.worker.state import WorkSummary

            self.metrics = WorkerMetrics()
            self.metrics.claim_seconds.observe(0.01)
            self.metrics.attempts[OutcomeClass.DONE] += 2
            self.summary = WorkSummary()

    worker, notices = Worker(), list[str]()
    with exported_metrics(MetricsAddress(0), worker, "shop", notices.append):  # type: ignore[arg-type]
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", notices[0])
        text = urllib.request.urlopen(url, timeout=60).read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url.replace("/metrics", "/other"), timeout=60)
        assert urllib.request.urlopen(url.replace("/metrics", "/healthz"), timeout=60).status == 200
        port = int(url.rpartition(":")[2].partition("/")[0])
        with (
            pytest.raises(UsageError, match="in use"),
            exported_metrics(MetricsAddress(port), worker, "shop", notices.append),  # type: ignore[arg-type]
        ):
            pass
    assert not any(thread.name == "metrics" and thread.is_alive() for thread in threading.enumerate())
    families = {family.name: family for family in parse_text(text)}
    assert {spec.name.removesuffix("_total") for spec in WORKER_METRICS} == {
        name for name in families if name.startswith("shoal_")
    }
    (done,) = families["shoal_worker_attempts"].samples
    assert (done.labels, done.value) == ({"scraper": "shop", "outcome": "done"}, 2)
    assert worker_samples(worker, "shop")["shoal_worker_running_items"] == [(("shop",), 3)]  # type: ignore[arg-type]
    assert promtool("check", "metrics", text=text) == ""
    assert [MetricsAddress(9600).of_worker(2).port, MetricsAddress(0).of_worker(2).port] == [9602, 0]
