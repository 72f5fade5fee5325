"""The whole OpenAPI document against a server with a small ledger: no server error, nothing that is not documented."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from shoal.control.app import build_app
from shoal.control.openapi import openapi_document
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.run import COLLECTION_SCRAPER_PREFIX
from shoal.model.worker import Scope, WorkerSpec
from tests.support.small_ledger import fill, project_settings, small_run

LONG = os.environ.get("SHOAL_CHAOS") == "long"
EXAMPLES = 150 if LONG else 6
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# Subjects that other tests check, and what sends messages.
OTHERS = ("me", "session", "live", "pools", "alerts/test")


class Subject:
    """A server, and the names of what its ledger has; `victims` are runs that may be removed."""

    def __init__(self, address: str, document: dict[str, Any], names: dict[str, list[Any]], victims: list[str]) -> None:
        self.address = address
        self.document = document
        self.names = names
        self.victims = victims


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    folder = tmp_path_factory.mktemp("project")
    path = folder / "ledger.db"
    names, victims = asyncio.run(_prepare(path))
    app = build_app(project_settings(folder, str(path)))
    with _serving(app) as address:
        yield Subject(address, openapi_document(app), names, victims)


async def _prepare(path: Path) -> tuple[dict[str, list[Any]], list[str]]:
    ledger = await open_sqlite(path)
    await ledger.schema.migrate()
    run = await fill(ledger)
    # However long the test takes, there is a worker to scale.
    spec = WorkerSpec(id="node2-77-0c0c0c0c", node="node2", pid=77, lease_seconds=86_400, scope=Scope(scraper="shop"))
    await ledger.workers.register(spec)
    await small_run(ledger, COLLECTION_SCRAPER_PREFIX + "newspapers", items=1)
    victims = [(await small_run(ledger, f"victim{number}", items=1)).id for number in range(EXAMPLES)]
    await ledger.close()
    names: dict[str, list[Any]] = {
        "run": [run.id, "latest:shop"],
        "item": [1, 5, 6, 9],
        "failure": [1, 2],
        "lane": ["shop.example", "new/lane"],
        "worker": ["node1-4021-9f2c11aa"],
        "scraper": ["shop"],
        "pool": ["isp"],
        "exit": ["000000000001", "000000000002"],
        "scope": ["scraper:shop"],
        "collection": ["newspapers"],
    }
    return names, victims


@contextmanager
def _serving(app: Any) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _operations(document: dict[str, Any]) -> list[Any]:
    schema = schemathesis.openapi.from_dict(document)
    found: list[Any] = [cast(Any, result).ok() for result in schema.get_all_operations()]
    ours = [each for each in found if each.path.startswith("/api/v1/")]
    return [each for each in ours if not any(each.path.startswith(f"/api/v1/{name}") for name in OTHERS)]


def test_every_operation_keeps_its_contract(subject: Subject) -> None:
    operations = _operations(subject.document)
    assert len(operations) > 40
    seen: dict[str, set[int]] = {}
    # Others change the items that can be replayed.
    for operation in sorted(operations, key=lambda each: not each.path.endswith("/replay")):
        label = f"{operation.method.upper()} {operation.path}"
        seen[label] = _check(subject, operation)
        if operation.path.endswith("/replay"):  # few drawn bodies name an egress that exists
            seen[label] |= {_ask_plainly(subject, operation, item) for item in subject.names["item"]}
    # Each one did what it is for at least once: a test in which everything is refused would prove nothing.
    refused = [label for label, statuses in seen.items() if not any(status < 300 for status in statuses)]
    assert not refused, refused


def _ask_plainly(subject: Subject, operation: Any, item: int) -> int:
    """What would a call without options do to this item? Returns the status."""
    path = {"run": subject.names["run"][0], "item": item}
    case = operation.Case(path_parameters=path, query={"preview": "true"}, body={}, media_type="application/json")
    response = case.call(base_url=subject.address)
    case.validate_response(response, checks=CHECKS)
    return int(response.status_code)


def _check(subject: Subject, operation: Any) -> set[int]:
    statuses: set[int] = set()
    removes = operation.method.upper() == "DELETE"

    @given(data=st.data())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=not LONG,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def run(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy())
        for name in case.path_parameters or {}:
            known = subject.victims if removes and name == "run" else subject.names[name]
            if data.draw(st.integers(0, 3)):
                case.path_parameters[name] = data.draw(st.sampled_from(known))
        if not case.body and not data.draw(st.booleans()):
            case.headers["Idempotency-Key"] = data.draw(st.uuids().map(str))
        response = case.call(base_url=subject.address)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    run()
    return statuses
