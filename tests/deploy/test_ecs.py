"""The ECS files are calls that Amazon's own description of ECS allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import boto3  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]
import moto
import pytest
from botocore.validate import ParamValidator  # type: ignore[import-untyped]

from tests.support.deployments import DB_VARIABLES, ecs

CALLS = {
    "task-definition.json": "RegisterTaskDefinition",
    "run-task.json": "RunTask",
    "enqueue.json": "RunTask",
    "migrate.json": "RunTask",
}


def complaints(call: str, parameters: dict[str, Any], service: str = "ecs") -> str:
    model = botocore.session.Session().get_service_model(service).operation_model(call)
    report: str = ParamValidator().validate(parameters, model.input_shape).generate_report()
    return report


@pytest.mark.parametrize(("name", "call"), CALLS.items())
def test_a_file_is_a_valid_call(name: str, call: str) -> None:  # S0.14
    assert complaints(call, ecs(name)) == ""


def test_the_validator_notices() -> None:
    assert "countt" in complaints("RunTask", {**ecs("run-task.json"), "countt": 5})


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Amazon's API, kept in memory by moto."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    # Without a reset: an S3 server of other tests may live in this process, and would lose its buckets.
    mocked = moto.mock_aws()
    mocked.start(reset=False)
    yield
    mocked.stop(remove_data=False)


def started(definitions: Iterable[dict[str, Any]], calls: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """Register the tasks at Amazon's API and make the calls: the family and the number of tasks that each started."""
    compute, network = boto3.client("ecs"), boto3.client("ec2")
    subnet = network.describe_subnets()["Subnets"][0]
    group = network.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    place = {"subnets": [subnet["SubnetId"]], "securityGroups": [group], "assignPublicIp": "DISABLED"}
    for definition in definitions:
        for container in definition["containerDefinitions"]:
            container["memory"] = int(definition["memory"])  # moto wants it of each container, Fargate of the task
        compute.register_task_definition(**definition)
    found = []
    for call in calls:
        compute.create_cluster(clusterName=call["cluster"])
        answer = compute.run_task(**call | {"networkConfiguration": {"awsvpcConfiguration": place}})
        assert answer["failures"] == []
        (family,) = {task["taskDefinitionArn"].rpartition("/")[2].partition(":")[0] for task in answer["tasks"]}
        found.append((family, len(answer["tasks"])))
    return found


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
@pytest.mark.usefixtures("amazon")
def test_the_calls_of_the_guide_are_accepted() -> None:
    """S0.14: register, then migrate, enqueue and five workers, each with the command that the files name."""
    calls = [ecs(name) for name in ("migrate.json", "enqueue.json", "run-task.json")]
    assert started([ecs("task-definition.json")], calls) == [("shoal-worker", number) for number in (1, 1, 5)]


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
@pytest.mark.usefixtures("amazon")
def test_the_calls_of_the_recipe_github_are_accepted() -> None:
    """S0.14."""
    tasks = [f"{stage}_scraper" for stage in ("username", "profile", "social")]
    definitions = [ecs(f"{task}.json", "github/ecs") for task in tasks]
    calls = [ecs(f"{name}.json", "github/ecs") for name in ("migrate", "first-run", "run-task")]
    named = [call["taskDefinition"] for call in calls]
    assert started(definitions, calls) == list(zip(named, (1, 1, 5), strict=True))
    assert set(named) <= set(tasks)


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
