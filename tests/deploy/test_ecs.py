"""The ECS files are calls that Amazon's own description of ECS allows."""

from __future__ import annotations

from typing import Any

import botocore.session  # type: ignore[import-untyped]
import pytest
from botocore.validate import ParamValidator  # type: ignore[import-untyped]

from tests.support.deployments import DB_VARIABLES, ecs

CALLS = {
    "task-definition.json": "RegisterTaskDefinition",
    "run-task.json": "RunTask",
    "enqueue.json": "RunTask",
    "migrate.json": "RunTask",
}


def complaints(call: str, parameters: dict[str, Any]) -> str:
    model = botocore.session.Session().get_service_model("ecs").operation_model(call)
    report: str = ParamValidator().validate(parameters, model.input_shape).generate_report()
    return report


@pytest.mark.parametrize(("name", "call"), CALLS.items())
def test_a_file_is_a_valid_call(name: str, call: str) -> None:  # S0.14
    assert complaints(call, ecs(name)) == ""


def test_the_validator_notices() -> None:
    assert "countt" in complaints("RunTask", {**ecs("run-task.json"), "countt": 5})


def test_the_task_has_the_size_that_was_asked_for() -> None:  # S0.14
    task = ecs("task-definition.json")
    assert (task["cpu"], task["memory"], task["requiresCompatibilities"]) == ("256", "512", ["FARGATE"])
    assert task["networkMode"] == "awsvpc"
    assert ecs("run-task.json")["count"] == 5


def test_calls_name_the_task_and_its_container() -> None:
    task = ecs("task-definition.json")
    for name in ("run-task.json", "enqueue.json", "migrate.json"):
        call = ecs(name)
        assert call["taskDefinition"] == task["family"]
        for override in call.get("overrides", {}).get("containerOverrides", []):
            assert override["name"] == task["containerDefinitions"][0]["name"]


def test_the_login_is_a_secret() -> None:
    (container,) = ecs("task-definition.json")["containerDefinitions"]
    plain = {entry["name"] for entry in container["environment"]}
    secret = {entry["name"] for entry in container["secrets"]}
    assert {"DB_HOST", "DB_USER", "DB_PASSWORD"} <= secret
    assert plain | secret >= DB_VARIABLES
    assert not plain & secret
