"""The manifests: valid for Kubernetes, complete, without a password, and KEDA's query counts what it should."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import asyncpg
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from shoal.config import Settings
from shoal.control.app import build_app
from shoal.define.load import load_scraper
from shoal.wiring import ledger_context
from tests.support import missing_optional
from tests.support.deployments import (
    DB_VARIABLES,
    DEPLOY,
    check_confined,
    check_worker_is_watched,
    containers,
    documents,
    manifests,
    pods,
)

# Kinds that come from extensions, which have no schema here.
FOREIGN = {"Kustomization", "ScaledObject", "TriggerAuthentication"}
VERSIONS = ("1.29", "1.37")
# None: an autoscaler of the kustomization sets them, and `kubectl apply` would reset them.
STAGES = {"username": None, "profile": 5, "social": 10}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", manifests())
def test_a_manifest_is_valid(name: str, version: str) -> None:  # S0.13
    for document in documents(name):
        if document["kind"] not in FOREIGN:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_validator_notices() -> None:
    (job,) = documents("migrate.yaml")
    job["spec"]["backofLimit"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


def test_the_kustomization_lists_what_is_meant_for_it() -> None:
    (kustomization,) = documents("kustomization.yaml")
    (image,) = kustomization["images"]
    whole_name = f"{image['newName']}:{image['newTag']}"
    (enqueue,) = documents("enqueue.yaml")  # made without the kustomization, so it names the image itself
    assert enqueue["spec"]["template"]["spec"]["containers"][0]["image"] == whole_name
    apart = {"kustomization.yaml", "secret.example.yaml", "enqueue.yaml", "keda.yaml"}
    assert set(kustomization["resources"]) == set(manifests()) - apart


def test_kubectl_builds_the_kustomization() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        missing_optional("kubectl")
    built = subprocess.run(
        [kubectl, "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, check=True, timeout=60
    )
    made = list(yaml.safe_load_all(built.stdout))
    (image,) = documents("kustomization.yaml")[0]["images"]
    images = {container["image"] for pod in pods(made) for container in pod["containers"]}
    assert images == {f"{image['newName']}:{image['newTag']}"}
    assert len(made) == 11


@pytest.mark.parametrize(("stage", "replicas"), STAGES.items())
def test_stages_scale_apart(stage: str, replicas: int | None) -> None:  # S0.9, S0.13
    deployment, budget = documents(f"{stage}.yaml")
    spec = deployment["spec"]
    assert spec.get("replicas") == replicas
    scaled = {scaler["spec"]["scaleTargetRef"]["name"] for scaler in documents("autoscale.yaml")}
    assert ("replicas" in spec) == (stage not in scaled)
    assert spec["selector"] == budget["spec"]["selector"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["args"][2:4] == ["--stage", stage]


def test_logins_come_from_the_secret() -> None:
    """S0.13: the host too; and what the containers ask for is what the example has."""
    (secret,) = documents("secret.example.yaml")
    assert not secret["stringData"]["password"]
    seen = 0
    for _, container in containers():
        references = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in container["env"]}
        assert set(references) == DB_VARIABLES | {"DB_PASSWORD"}
        assert references["DB_HOST"] == {"name": "db-credentials", "key": "host"}
        for reference in references.values():
            assert reference["name"] == secret["metadata"]["name"]
            assert reference["key"] in secret["stringData"]
        seen += 1
    assert seen == 6


def test_the_server_is_reached_and_probed() -> None:
    """The ports and labels fit, the host of the Ingress is one that the server takes, and the probes are its own."""
    deployment, service, ingress = documents("serve.yaml")
    assert [each["kind"] for each in (deployment, service, ingress)] == ["Deployment", "Service", "Ingress"]
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == Settings().serve_port
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == container["args"][container["args"].index("--allow-host") + 1]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    probes = {kind: container[kind]["httpGet"] for kind in ("livenessProbe", "readinessProbe", "startupProbe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    app = build_app(Settings(ledger="unused"))
    routes = {str(app.url_path_for(name)) for name in ("healthz", "readyz")}
    assert {probe["path"] for probe in probes.values()} == routes
    assert probes["livenessProbe"]["path"] == "/healthz", "a ledger that is away is no reason to restart the server"


@pytest.mark.parametrize("stage", STAGES)
def test_workers_say_where_their_metrics_are_and_are_probed(stage: str) -> None:
    check_worker_is_watched(documents(f"{stage}.yaml")[0]["spec"]["template"])


def test_nobody_runs_as_root_or_writes_to_the_disk() -> None:
    found = [pod for name in manifests() for pod in pods(documents(name))]
    assert len(found) == 6
    for pod in found:
        check_confined(pod)


def scaled_objects() -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in documents("keda.yaml") if each["kind"] == "ScaledObject"}


def test_one_deployment_has_one_scaler() -> None:
    by_load = {document["spec"]["scaleTargetRef"]["name"] for document in documents("autoscale.yaml")}
    by_depth = {spec["scaleTargetRef"]["name"] for spec in scaled_objects().values()}
    assert not by_load & by_depth
    assert by_load | by_depth == set(STAGES)


def test_what_keda_is_told_comes_from_the_secret() -> None:
    authentication = documents("keda.yaml")[0]
    keys = {each["parameter"]: each["key"] for each in authentication["spec"]["secretTargetRef"]}
    assert keys == {"host": "host", "port": "port", "dbName": "name", "userName": "user", "password": "password"}
    for spec in scaled_objects().values():
        (trigger,) = spec["triggers"]
        assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]


async def test_the_query_of_keda_counts_what_more_workers_help_with(postgres_url: str) -> None:
    people = load_scraper("people.py", {}, DEPLOY / "scrapers")
    profile = people.stages["profile"]
    queries = {name: spec["triggers"][0]["metadata"]["query"] for name, spec in scaled_objects().items()}
    connection = await asyncpg.connect(postgres_url)

    async def depths() -> dict[str, int]:
        return {name: int(await connection.fetchval(query)) for name, query in queries.items()}

    try:
        async with ledger_context(Settings(ledger=postgres_url), migrate=True) as ledger:
            assert await depths() == {"profile": 0, "social": 0}
            run = await ledger.runs.create(people.run_spec())
            far_apart = [profile.item(f"http://host-{number}.example/") for number in range(7)]
            one_host = [profile.item(f"http://slow.example/{number}") for number in range(20)]
            await ledger.intake.enqueue(run.id, [*far_apart, *one_host])
            assert await depths() == {"profile": 8, "social": 0}  # a host with a rate has one item that could start
            await ledger.runs.pause(run.id, by="test")
            assert await depths() == {"profile": 0, "social": 0}
    finally:
        await connection.close()
