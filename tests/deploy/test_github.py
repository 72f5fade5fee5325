"""The deployment of the recipe github: the names and commands of the earlier system, valid for each platform."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from shoal.config import Settings
from shoal.define.load import load_scraper
from shoal.recipes.github import PROJECT
from shoal.recipes.github.stand_in import GitHubStandIn
from shoal.templates import write_project
from tests.deploy.test_commands import LEAST_SPARE_SECONDS, parsed
from tests.deploy.test_ecs import complaints
from tests.deploy.test_kubernetes import VERSIONS
from tests.recipes.github.conftest import PATIENCE
from tests.support.deployments import (
    DB_VARIABLES,
    DEPLOY,
    ROOT,
    ShoalCommand,
    check_confined,
    check_worker_is_watched,
    containers_of,
    github_documents,
    pods,
)
from tests.support.project import Command, Project, clean_environment

FOLDER = DEPLOY / "github"
RECIPE_PAGE = ROOT / "docs" / "recipes" / "github.md"
STAGES = {"username": 2, "profile": 5, "social": 10}
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
DOCUMENTS = github_documents()
LEAST = Settings().drain + LEAST_SPARE_SECONDS


def ecs(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "ecs" / f"{name}.json").read_text())
    return loaded


def containers() -> Iterator[dict[str, Any]]:
    for pod in pods(DOCUMENTS):
        yield from containers_of(pod)


def commands() -> Iterator[ShoalCommand]:
    for name, service in COMPOSE["services"].items():
        if service["image"] == "shoal-github":
            yield ShoalCommand(f"compose {name}", service["command"])
    for container in containers():
        yield ShoalCommand(f"kubernetes {container['name']}", container["args"])
    for stage in STAGES:
        yield ShoalCommand(f"ecs {stage}", ecs(f"{stage}_scraper")["containerDefinitions"][0]["command"])
    for name in ("migrate", "first-run"):
        yield ShoalCommand(f"ecs {name}", ecs(name)["overrides"]["containerOverrides"][0]["command"])
    yield ShoalCommand("ecs nightly", json.loads(ecs("nightly")["Target"]["Input"])["containerOverrides"][0]["command"])


@pytest.mark.parametrize("command", list(commands()), ids=lambda command: command.place)
def test_the_command_line_takes_it(command: ShoalCommand, tmp_path: Path) -> None:
    given = parsed(command.arguments)
    if stages := given.get("stage"):
        write_project(tmp_path, dict(PROJECT.files()))
        assert set(stages) <= set(load_scraper("github.py", {}, tmp_path).stages)


def test_the_compose_file_keeps_to_its_schema() -> None:
    program = Path(sys.executable).parent / "check-jsonschema"
    command = [str(program), "--builtin-schema", "vendor.compose-spec", str(FOLDER / "compose.yaml")]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert said.returncode == 0, said.stdout


def test_docker_compose_up_scales_the_services_by_their_old_names() -> None:
    """S0.11, S0.28: `docker compose up --scale profile_scraper=5` as it is, so no service is behind a profile."""
    services = COMPOSE["services"]
    for stage in STAGES:
        service = services[f"{stage}_scraper"]
        assert not {"container_name", "ports", "profiles"} & set(service)
        assert service["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert float(service["stop_grace_period"].removesuffix("s")) >= LEAST
        assert set(service["environment"]) == DB_VARIABLES | {"DB_PASSWORD_FILE"}
        assert service["env_file"] == [{"path": ".env", "required": False}]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)


def test_the_services_do_their_work(tmp_path: Path, postgres_url: str) -> None:
    """S0.9, S0.11, S0.15: the commands of the services, with their variables; the first run is enqueued once."""
    write_project(tmp_path, dict(PROJECT.files()))
    place = urlsplit(postgres_url)
    (tmp_path / "db_password").write_text(f"{place.password}\n")
    names = ("DB_HOST", "DB_PORT", "DB_NAME", "DB_USER", "DB_PASSWORD_FILE")
    values = (
        place.hostname,
        place.port or 5432,
        place.path.removeprefix("/"),
        place.username,
        tmp_path / "db_password",
    )
    with GitHubStandIn(places=(("Suva, Fiji", 6),)).serving() as site, Project(tmp_path, postgres_url) as project:
        (tmp_path / ".env").write_text(
            f'GITHUB_TOKEN=token-aaaa\nGITHUB_API={site.url}\nLOCATIONS="Suva, Fiji"\nRATE_LIMIT_DELAY=0\n'
        )
        environment = clean_environment(tmp_path, **dict(zip(names, map(str, values), strict=True)))

        def start(number: int, service: str) -> Command:
            return Command(tmp_path, tuple(COMPOSE["services"][service]["command"]), environment, number)

        for number, service in enumerate(("migrate", "enqueue", "enqueue")):
            command = start(number, service)
            assert command.wait() == 0, command.stderr
        workers = [start(10 + number, f"{stage}_scraper") for number, stage in enumerate(STAGES)]
        try:
            deadline = time.monotonic() + PATIENCE
            while project.counts(stage="social").done < 6:
                assert time.monotonic() < deadline, workers[0].stderr
                time.sleep(0.1)
            for worker in workers:
                worker.tell(signal.SIGTERM)
            assert [worker.wait() for worker in workers] == [130, 130, 130]
        finally:
            for worker in workers:
                worker.kill()
        assert project.counts().remaining == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_valid(version: str) -> None:
    """S0.13."""
    for document in DOCUMENTS:
        kubernetes_validate.validate(document, version, strict=True)


def test_kubernetes_has_a_deployment_for_each_stage() -> None:
    """S0.13: the host of the database comes from the secret."""
    deployments = {each["metadata"]["name"]: each["spec"] for each in DOCUMENTS if each["kind"] == "Deployment"}
    assert {name: spec["replicas"] for name, spec in deployments.items()} == {
        f"{stage}-scraper": replicas for stage, replicas in STAGES.items()
    }
    for spec in deployments.values():
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= LEAST
    for container in containers():
        secrets = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"]}
        assert secrets["DB_HOST"] == {"name": "db-credentials", "key": "host"}
        assert set(secrets) == DB_VARIABLES | {"DB_PASSWORD"}
        assert container["envFrom"] == [{"secretRef": {"name": "github-settings"}}]


def test_the_pods_are_confined_and_probed_and_kept_while_nodes_are_emptied() -> None:
    """S0.13."""
    found = list(pods(DOCUMENTS))
    assert len(found) == 3 + len(STAGES)
    for pod in found:
        check_confined(pod)
    budgets = [each["spec"]["selector"] for each in DOCUMENTS if each["kind"] == "PodDisruptionBudget"]
    deployments = [each["spec"] for each in DOCUMENTS if each["kind"] == "Deployment"]
    assert budgets == [spec["selector"] for spec in deployments]
    for spec in deployments:
        check_worker_is_watched(spec["template"])


def test_each_job_is_gone_before_the_next_version_comes() -> None:
    """The image of a Job cannot be changed, so `kubectl apply` of a new version is refused while there is one."""
    jobs = {each["metadata"]["name"]: each["spec"] for each in DOCUMENTS if each["kind"] == "Job"}
    assert list(jobs) == ["github-migrate", "github-first-run"]
    for name, spec in jobs.items():
        assert spec["ttlSecondsAfterFinished"] == 3_600
        assert f"kubectl delete job {' '.join(jobs)}" in RECIPE_PAGE.read_text(), name
    (migrate,) = jobs["github-migrate"]["template"]["spec"]["containers"]
    assert migrate["args"] == ["db", "migrate"]


def test_ecs_runs_five_tasks_of_a_stage() -> None:
    """S0.14."""
    for stage in STAGES:
        task = ecs(f"{stage}_scraper")
        assert complaints("RegisterTaskDefinition", task) == ""
        assert (task["family"], task["cpu"], task["memory"]) == (f"{stage}_scraper", "256", "512")
        (container,) = task["containerDefinitions"]
        assert container["stopTimeout"] >= LEAST
        assert {"DB_HOST", "DB_PASSWORD", "GITHUB_TOKEN"} <= {secret["name"] for secret in container["secrets"]}
    for name in ("migrate", "first-run", "run-task"):
        call = ecs(name)
        assert complaints("RunTask", call) == ""
        assert call["taskDefinition"] in {f"{stage}_scraper" for stage in STAGES}
        overridden = [each["name"] for each in call.get("overrides", {}).get("containerOverrides", [])]
        assert overridden == ([] if name == "run-task" else [call["taskDefinition"]])
    assert ecs("migrate")["overrides"]["containerOverrides"][0]["command"][:2] == ["db", "migrate"]
    assert ecs("run-task")["count"] == 5


def test_a_list_of_user_names_reaches_whoever_begins_a_run() -> None:
    """A bind mount beside compose.yaml, a ConfigMap in Kubernetes: where USERNAMES_FILE=lists/usernames.txt looks."""
    for service in ("enqueue", "scheduler"):
        assert COMPOSE["services"][service]["volumes"] == ["./lists:/app/lists:ro"]
    assert "WORKDIR /app\n" in (DEPLOY / "Dockerfile").read_text()
    enqueuing = [pod for pod in pods(DOCUMENTS) if pod["containers"][0]["args"][0] == "enqueue"]
    assert len(enqueuing) == 2
    for pod in enqueuing:
        (container,) = pod["containers"]
        assert container["volumeMounts"] == [{"name": "lists", "mountPath": "/app/lists", "readOnly": True}]
        assert pod["volumes"] == [{"name": "lists", "configMap": {"name": "github-lists", "optional": True}}]


def test_a_table_is_imported_before_the_first_run() -> None:
    """The commands are the same in the file and on the page, and the script is in the image."""
    assert "import_developers.py" in dict(PROJECT.files())
    page = RECIPE_PAGE.read_text()
    for file, command in (
        ("compose.yaml", "--rm -T --entrypoint python enqueue import_developers.py - < developers.csv"),
        (
            "kubernetes.yaml",
            "kubectl exec -i deployment/username-scraper -- python import_developers.py - < developers.csv",
        ),
        ("kubernetes.yaml", "-l app.kubernetes.io/component!=first-run"),
    ):
        assert command in (FOLDER / file).read_text()
        assert command in page
    left_out = [
        each["metadata"]["name"]
        for each in DOCUMENTS
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "first-run"
    ]
    assert left_out == ["github-first-run"]


def test_a_run_each_night() -> None:
    """Each platform begins one by its own clock, when it is switched on; what goes on still is let alone."""
    (nightly,) = [each["spec"] for each in DOCUMENTS if each["kind"] == "CronJob"]
    assert (nightly["suspend"], nightly["concurrencyPolicy"]) == (True, "Forbid")
    assert COMPOSE["services"]["scheduler"]["profiles"] == ["schedule"]
    schedule = ecs("nightly")
    assert complaints("CreateSchedule", schedule, "scheduler") == ""
    assert json.loads(schedule["Target"]["Input"])["containerOverrides"][0]["name"] == "username_scraper"
    assert complaints("CreateSchedule", {**schedule, "Target": {}}, "scheduler")


def test_the_image_of_a_recipe_is_its_project() -> None:
    """The line of the Dockerfile makes what `shoal init` makes."""
    text = (DEPLOY / "Dockerfile").read_text()
    assert text.count('shoal init /app --recipe "${RECIPE}"') == 2  # with a browser and without
    assert COMPOSE["services"]["profile_scraper"]["build"]["args"]["RECIPE"] == "${RECIPE-github}"
