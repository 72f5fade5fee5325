"""Metrics of a worker over HTTP, for Prometheus: in a thread, so that they are there while the event loop is busy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from shoal import __version__
from shoal.errors import UsageError
from shoal.observe.exposition import WORKER_METRICS, HistogramValue, Samples, check_prometheus_client, render

if TYPE_CHECKING:
    from shoal.service.work import MetricsAddress
    from shoal.worker.worker import Worker

# A client that does not send its request in this time is disconnected.
REQUEST_SECONDS = 10.0


@contextmanager
def exported_metrics(
    address: MetricsAddress, worker: Worker, scraper: str, notice: Callable[[str], object]
) -> Iterator[None]:
    """Export the metrics of a worker for the length of a block. Raises UsageError when the port cannot be used."""
    check_prometheus_client()
    try:
        server = _MetricsServer(address, lambda: worker_samples(worker, scraper))
    except OSError as error:
        raise UsageError(
            f"Metrics cannot be exported at {address.host}:{address.port}: {error.strerror or error}.",
            remedy="Choose another --metrics-port, or 0 for one that is free.",
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        notice(f"Metrics of this worker: http://{address.host}:{server.server_port}/metrics")
        yield
    finally:
        server.shutdown()
        server.server_close()


def worker_samples(worker: Worker, scraper: str) -> Samples:
    """What a worker exports; may be called from any thread."""
    metrics, labels = worker.metrics, (scraper,)
    histograms = {
        "shoal_worker_claim_seconds": metrics.claim_seconds,
        "shoal_worker_commit_seconds": metrics.commit_seconds,
        "shoal_worker_wait_seconds": metrics.wait_seconds,
        "shoal_worker_work_seconds": metrics.work_seconds,
    }
    numbers = {
        "shoal_worker_claimed_items_total": metrics.claimed_items,
        "shoal_worker_committed_items_total": metrics.committed_items,
        "shoal_worker_lost_items_total": metrics.lost_items,
        "shoal_worker_records_total": worker.summary.records,
        "shoal_worker_claim_errors_total": metrics.claim_errors,
        "shoal_worker_commit_errors_total": metrics.commit_errors,
        "shoal_worker_running_items": worker.running,
    }
    return {
        "shoal_worker_info": [((worker.id, scraper, __version__), 1)],
        **{
            name: [(labels, HistogramValue(tuple(recorder.counts), recorder.seconds))]
            for name, recorder in histograms.items()
        },
        "shoal_worker_attempts_total": [
            ((scraper, outcome.value), count) for outcome, count in dict(metrics.attempts).items()
        ],
        **{name: [(labels, value)] for name, value in numbers.items()},
    }


class _MetricsServer(ThreadingHTTPServer):
    daemon_threads = True
    # Another worker's port must not be shared by accident.
    allow_reuse_port = False

    def __init__(self, address: MetricsAddress, read: Callable[[], Samples]) -> None:
        self.read = read
        super().__init__((address.host, address.port), _MetricsHandler)


class _MetricsHandler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: _MetricsServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body, content_type = render(WORKER_METRICS, self.server.read(), self.headers.get("accept", ""))
            self._answer(200, body, content_type)
        elif path == "/healthz":
            self._answer(200, b'{"ok":true}', "application/json")
        else:
            self._answer(404, b"Not found. See /metrics.\n", "text/plain; charset=utf-8")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""
