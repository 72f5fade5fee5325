"""Prometheus and Grafana: rules that promtool takes and tests, and no metric that nobody exports."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.observe.exposition import SERVER_METRICS, WORKER_METRICS, MetricSpec
from tests.support.deployments import DEPLOY, compose
from tests.support.promtool import promtool

RULES = DEPLOY / "prometheus" / "alerts.yml"
TESTS = DEPLOY / "prometheus" / "alerts.test.yml"
BOARD = DEPLOY / "grafana" / "shoal.json"
EXPORTED = {spec.name: spec for spec in (*SERVER_METRICS, *WORKER_METRICS)}
# What Prometheus and Grafana add themselves.
ADDED = {"job", "instance", "le"}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def board_queries() -> Iterator[str]:
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def metric(name: str) -> MetricSpec:
    """The metric that a series belongs to."""
    plain = re.sub(r"_(bucket|sum|count)$", "", name)
    return EXPORTED[plain if plain in EXPORTED and EXPORTED[plain].kind == "histogram" else name]


@pytest.mark.parametrize("query", [*board_queries(), *(rule["expr"] for rule in rules())])
def test_a_query_uses_what_is_exported(query: str) -> None:
    names = re.findall(r"\bshoal_\w+", query)
    assert names or query.startswith("up{")
    for name in names:
        assert metric(name).name in EXPORTED
    for name, selector in re.findall(r"\b(shoal_\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= {*metric(name).labels, *ADDED}
    labels = {label for name in names for label in metric(name).labels} | ADDED
    for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
        assert {label.strip() for label in grouped.split(",") if label.strip()} <= labels


def test_a_query_of_a_metric_that_is_gone_would_be_noticed() -> None:
    with pytest.raises(KeyError):
        metric("shoal_no_such_metric_total")


def test_promtool_takes_the_rules_and_their_tests(tmp_path: Path) -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", TESTS)
    folder = tmp_path / "prometheus"
    shutil.copytree(RULES.parent, folder)
    (folder / "shoal-token").write_text("secret")
    promtool("check", "config", folder / "prometheus.yml")


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    tested = {
        case["alertname"]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert tested == {rule["alert"] for rule in rules()}
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def test_prometheus_scrapes_the_services_of_compose() -> None:
    services = compose()["services"]
    server, workers = yaml.safe_load((RULES.parent / "prometheus.yml").read_text())["scrape_configs"]
    (target,) = server["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert services[host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    (discovery,) = workers["dns_sd_configs"]
    (name,) = discovery["names"]
    command = services[name]["command"]
    assert command[command.index("--metrics-port") + 1] == str(discovery["port"])


def test_the_dashboard_is_whole() -> None:
    board = json.loads(BOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        if panel["type"] == "timeseries":
            assert panel["title"].endswith("?"), "a chart answers a question"
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", " ".join(board_queries()))) - {"__rate_interval"}
    assert used <= variables
