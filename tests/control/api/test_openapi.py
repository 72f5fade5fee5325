"""The OpenAPI document: complete, with examples that its own schemas accept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from fastapi import FastAPI

from shoal import __version__
from shoal.control.app import build_app
from shoal.control.openapi import openapi_document
from tests.support.small_ledger import project_settings

READ_STATUSES = {"200", "304", "401", "403", "404", "422", "429", "503"}
WRITE_STATUSES = {"200", "400", "401", "403", "404", "409", "413", "422", "429", "503"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    folder = tmp_path_factory.mktemp("project")
    return build_app(project_settings(folder, str(folder / "ledger.db")))


@pytest.fixture(scope="module")
def document(app: FastAPI) -> dict[str, Any]:
    return openapi_document(app)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Those of the files of control/api; the others have tests of their own."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.startswith("/api/v1/") and path.split("/")[3] not in ("me", "session", "live", "pools"):
                yield method, path, operation


def test_it_is_version_3_1_and_every_operation_documents_its_statuses(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == __version__
    for method, path, operation in operations(document):
        wanted = READ_STATUSES if method == "get" else WRITE_STATUSES
        wanted = wanted - {"304"} if path.endswith("/export") else wanted
        assert wanted <= set(operation["responses"]), (method, path)
        assert operation["summary"], (method, path)
        assert operation["description"], (method, path)


def test_every_write_can_be_previewed(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        parameters = {parameter["name"] for parameter in operation.get("parameters", ())}
        assert ("preview" in parameters) == (method != "get"), (method, path)


def test_lists_are_bounded(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            if parameter["name"] == "limit":
                assert parameter["schema"]["maximum"] <= 200, (method, path)


def test_examples_are_valid(document: dict[str, Any]) -> None:
    checked = 0
    for method, path, operation in operations(document):
        contents = [answer.get("content", {}) for answer in operation["responses"].values()]
        for content in (*contents, operation.get("requestBody", {}).get("content", {})):
            media = content.get("application/json", {})
            if "example" in media:
                schema = {**media["schema"], "components": document["components"]}
                errors = list(jsonschema_rs.validator_for(schema).iter_errors(media["example"]))
                assert not errors, (method, path, errors[0].message, media["example"])
                checked += 1
    assert checked > 40


def test_the_reference_is_up_to_date(document: dict[str, Any]) -> None:
    from shoal.control.openapi import reference

    page = Path(__file__).parents[3] / "docs" / "api.md"
    assert reference(document) in page.read_text(), "Run `make reference`, and commit docs/api.md."
