"""Metrics in the formats of Prometheus: their names and meanings, and how values become text.

Names, labels and texts are the contract with dashboards and alert rules; docs/howto/metrics.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from shoal.errors import UsageError
from shoal.model.latency import BUCKET_BOUNDS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Kind = Literal["gauge", "counter", "histogram"]
_RUN = ("run", "scraper")


class MetricSpec(msgspec.Struct, frozen=True):
    """A metric. The name of a counter ends with `_total`."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()


class HistogramValue(msgspec.Struct, frozen=True):
    """Durations by bucket, not cumulated, and their sum in seconds. Buckets at the end may be missing."""

    counts: Sequence[int]
    seconds: float
    bounds: tuple[float, ...] = BUCKET_BOUNDS


# By name of the metric: the values of its labels, in their order, and its value.
Samples = dict[str, list[tuple[tuple[str, ...], float | HistogramValue]]]

SERVER_METRICS = (
    MetricSpec("shoal_build_info", "gauge", "The version of Shoal; always 1.", ("version",)),
    MetricSpec("shoal_ledger_up", "gauge", "1 when the ledger answers, else 0."),
    MetricSpec("shoal_ledger_schema_version", "gauge", "The version of the ledger's schema."),
    MetricSpec("shoal_ledger_size_bytes", "gauge", "The size of the ledger's database."),
    MetricSpec("shoal_ledger_latency_seconds", "gauge", "How long the ledger took for a small read, the last time."),
    MetricSpec("shoal_runs", "gauge", "The newest runs by state.", ("state",)),
    MetricSpec("shoal_runs_left_out", "gauge", "Open runs whose metrics are not exported, because there are too many."),
    MetricSpec("shoal_items", "gauge", "Items of a run by state.", (*_RUN, "state")),
    MetricSpec("shoal_items_waiting_for", "gauge", "Open items of a run by what they wait for.", (*_RUN, "cause")),
    MetricSpec("shoal_run_items_per_minute", "gauge", "Items of a run that end per minute.", _RUN),
    MetricSpec("shoal_run_eta_seconds", "gauge", "When a run may end: shortest and longest time.", (*_RUN, "bound")),
    MetricSpec("shoal_run_quiet_seconds", "gauge", "Since when nothing has ended in a run.", _RUN),
    MetricSpec("shoal_run_alert", "gauge", "1 for each alert condition of a run that holds now.", (*_RUN, "kind")),
    MetricSpec("shoal_attempts_total", "counter", "Attempts of a run that ended, by outcome.", (*_RUN, "outcome")),
    MetricSpec("shoal_records_total", "counter", "Records that a run stored.", _RUN),
    MetricSpec("shoal_counted_total", "counter", "What handlers counted, by its name.", (*_RUN, "name")),
    MetricSpec(
        "shoal_item_wait_seconds", "histogram", "From the time items became claimable until their attempts began.", _RUN
    ),
    MetricSpec("shoal_item_work_seconds", "histogram", "How long attempts took.", _RUN),
    MetricSpec("shoal_workers", "gauge", "Workers by state; lost: silent for longer than their lease.", ("state",)),
    MetricSpec("shoal_nodes", "gauge", "Machines that have workers."),
    MetricSpec("shoal_running_items", "gauge", "Attempts that run now, as the workers report them."),
    MetricSpec("shoal_unstored_items", "gauge", "Attempts that have ended and wait for their commit."),
    MetricSpec("shoal_egress_exits", "gauge", "Exits of a pool by state.", ("pool", "kind", "state")),
    MetricSpec("shoal_egress_members", "gauge", "Workers that use a pool of exits.", ("pool", "kind")),
    MetricSpec("shoal_egress_budget_calls", "gauge", "Calls that a pool has in a window.", ("pool", "resource")),
    MetricSpec("shoal_egress_budget_calls_left", "gauge", "Calls that are left of it.", ("pool", "resource")),
    MetricSpec("shoal_egress_budget_reset_seconds", "gauge", "Until it is full again.", ("pool", "resource")),
    MetricSpec("shoal_sink_behind_records", "gauge", "Records that a sink has not got, at least.", ("sink", "kind")),
    MetricSpec("shoal_sink_lag_seconds", "gauge", "The age of the oldest of them.", ("sink", "kind")),
    MetricSpec("shoal_sink_failing", "gauge", "1 when a sink refuses records, else 0.", ("sink", "kind")),
    MetricSpec("shoal_sink_dead_letters", "gauge", "Records that a sink has refused for good.", ("sink", "kind")),
    MetricSpec("shoal_api_request_seconds", "histogram", "Answers of the server.", ("method", "route", "status")),
    MetricSpec("shoal_live_clients", "gauge", "Clients with live updates."),
    MetricSpec("shoal_live_topics", "gauge", "Topics that live clients watch."),
    MetricSpec("shoal_live_reads_total", "counter", "Reads of topics for all live clients together."),
)

_WORKER = ("scraper",)
WORKER_METRICS = (
    MetricSpec("shoal_worker_info", "gauge", "A worker process; always 1.", ("worker", "scraper", "version")),
    MetricSpec("shoal_worker_claim_seconds", "histogram", "How long the ledger took for claims.", _WORKER),
    MetricSpec("shoal_worker_commit_seconds", "histogram", "How long the ledger took for commits.", _WORKER),
    MetricSpec(
        "shoal_worker_wait_seconds",
        "histogram",
        "From the time items became claimable until their attempts began.",
        _WORKER,
    ),
    MetricSpec("shoal_worker_work_seconds", "histogram", "How long attempts took.", _WORKER),
    MetricSpec("shoal_worker_attempts_total", "counter", "Committed attempts by outcome.", ("scraper", "outcome")),
    MetricSpec("shoal_worker_claimed_items_total", "counter", "Items that were claimed.", _WORKER),
    MetricSpec("shoal_worker_committed_items_total", "counter", "Items whose attempts were committed.", _WORKER),
    MetricSpec("shoal_worker_lost_items_total", "counter", "Items that were committed after their lease.", _WORKER),
    MetricSpec("shoal_worker_records_total", "counter", "Records that were stored.", _WORKER),
    MetricSpec("shoal_worker_claim_errors_total", "counter", "Claims that failed.", _WORKER),
    MetricSpec("shoal_worker_commit_errors_total", "counter", "Commits that failed.", _WORKER),
    MetricSpec("shoal_worker_running_items", "gauge", "Attempts that run now.", _WORKER),
)
# Of the process, by prometheus-client.
PROCESS_METRICS = (
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
)


def check_prometheus_client() -> None:
    """Raise UsageError unless prometheus-client is installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise UsageError(
            "Metrics need prometheus-client, which is not installed.", remedy="Install it: pip install 'shoal[serve]'."
        ) from None


def render(specs: Iterable[MetricSpec], samples: Samples, accept: str = "") -> tuple[bytes, str]:
    """The metrics with those of this process, in the format that `accept` asks for; and its content type.

    Raises KeyError for samples of a metric that is not in `specs`.
    """
    from prometheus_client import ProcessCollector
    from prometheus_client.exposition import choose_encoder

    by_name = {spec.name: spec for spec in specs}
    families = [_family(by_name[name], values) for name, values in samples.items() if values]
    process = ProcessCollector(registry=None)
    encode, content_type = choose_encoder(accept)
    return encode(_Collected([*families, *process.collect()])), content_type


class _Collected:
    """What prometheus-client takes for a registry."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _family(spec: MetricSpec, values: Iterable[tuple[tuple[str, ...], float | HistogramValue]]) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if spec.kind == "histogram":
        histogram = HistogramMetricFamily(spec.name, spec.text, labels=spec.labels)
        for labels, value in values:
            assert isinstance(value, HistogramValue)
            histogram.add_metric(labels, list(_cumulated(value)), value.seconds)
        return histogram
    family = (CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily)(
        spec.name, spec.text, labels=spec.labels
    )
    for labels, value in values:
        assert not isinstance(value, HistogramValue)
        family.add_metric(labels, value)
    return family


def _cumulated(value: HistogramValue) -> Iterator[tuple[str, int]]:
    total = 0
    for position, bound in enumerate((*value.bounds, None)):
        total += value.counts[position] if position < len(value.counts) else 0
        yield "+Inf" if bound is None else str(float(bound)), total


def estimated_seconds(counts: Sequence[int]) -> float:
    """The sum of durations of which only the buckets are known: each counts as the middle of its bucket."""
    total = 0.0
    for position, count in enumerate(counts):
        low = BUCKET_BOUNDS[position - 1] if position else 0.0
        high = BUCKET_BOUNDS[position] if position < len(BUCKET_BOUNDS) else low
        total += count * (low + high) / 2
    return total


def single(samples: Samples, values: Mapping[str, float | None]) -> None:
    """Add metrics without labels; None: it is not known."""
    for name, value in values.items():
        if value is not None:
            samples[name] = [((), value)]
