"""The manifests of deploy/kubernetes, played by podman: jobs as pods, deployments with two replicas, probes by hand.

Podman knows Pods, Deployments and Secrets. Budgets, autoscalers, the Service and the Ingress are only validated.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import yaml

from tests.containers.engine import PATH, Engine
from tests.containers.images import POSTGRES_IMAGE
from tests.containers.people_site import LIST, PeopleStandIn
from tests.containers.report import Report
from tests.support.deployments import documents

PEOPLE = 25
STAGES = ("username", "profile", "social")
SERVER = "shoal-serve"
# Of each stage, instead of 2, 5 and 10: podman takes seconds for each.
REPLICAS = 2
GRACE_SECONDS = 45
TOKEN = ("shoal", "serve", "token", "add", "me", "--role", "operator")
INTERRUPTED = 130


class Podman:
    """Podman with a storage of its own. Use it as a context."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-podman-"))
        # Its defaults are above what a machine may allow even to root.
        settings = self.folder / "containers.conf"
        settings.write_text('[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n')
        self._environment = {"PATH": PATH, "HOME": str(self.folder), "CONTAINERS_CONF": str(settings)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for command in (
            ("pod", "rm", "--all", "--force", "--time=5"),
            ("rm", "--all", "--force"),
            ("rmi", "--all", "--force"),
        ):
            self.run(*command, check=False)
        for mount in (self.folder / "storage" / "overlay",):
            subprocess.run(["umount", str(mount)], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        places = [f"--root={self.folder}/storage", f"--runroot={self.folder}/run", f"--tmpdir={self.folder}/tmp"]
        how = ["--cgroup-manager=cgroupfs", "--events-backend=file", "--runtime=runc"]
        done = subprocess.run(
            ["podman", *places, *how, *arguments],
            env=self._environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"podman {' '.join(arguments)}: {(done.stderr + done.stdout)[-2000:]}")
        return done.stdout

    def load(self, engine: Engine, *images: str) -> None:
        with tempfile.NamedTemporaryFile(suffix=".tar") as file:
            engine.docker("save", "--output", file.name, *images)
            self.run("load", "--quiet", "--input", file.name)

    def play(self, *docs: dict[str, Any]) -> None:
        self.run("play", "kube", "--log-driver=k8s-file", "-", stdin=yaml.safe_dump_all(docs))

    def container(self, name: str) -> dict[str, Any]:
        (about,) = json.loads(self.run("inspect", "--type=container", name))
        found: dict[str, Any] = about
        return found

    def wait_for_exit(self, name: str) -> int:
        return int(self.run("wait", name).split()[-1])


def run(engine: Engine, report: Report, address: str) -> None:
    image = _image()
    # As somebody with scrapers of their own would: they are in the image.
    scrapers = f"RUN echo http://{address}{LIST} >/app/urls.txt"
    engine.build(image, f"FROM shoal\nUSER root\n{scrapers}\nUSER 10001\n")
    site = PeopleStandIn(people=PEOPLE, latency=(0.05, 0.2))
    with site.serving(port=80, hosts=(address,)) as running, Podman() as podman:
        podman.load(engine, image, POSTGRES_IMAGE)
        _play(podman, report, image)
        pages = site.paths()
        deadline = time.monotonic() + 300
        while pages - {visit.path for visit in running.log()} and time.monotonic() < deadline:
            time.sleep(0.5)
        answered = Counter(visit.path for visit in running.log() if visit.path in pages)
        good = answered == dict.fromkeys(pages, 1)
        report.check("each page was fetched once", good, f"{len(pages)} pages, {sum(answered.values())} visits")
        _check_server(podman, report)
        _stop(podman, report)
        _export(podman, report, image)


def _image() -> str:
    (kustomization,) = documents("kustomization.yaml")
    (image,) = kustomization["images"]
    return f"{image['newName']}:{image['newTag']}"


def _pod_of(job: dict[str, Any], name: str) -> dict[str, Any]:
    template = job["spec"]["template"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**template["spec"], "restartPolicy": "Never"},
    }


def _with_image(document: dict[str, Any], image: str) -> dict[str, Any]:
    """What the kustomization does."""
    for container in document["spec"]["template"]["spec"]["containers"]:
        container["image"] = image
    return document


def _play(podman: Podman, report: Report, image: str) -> None:
    password = secrets.token_hex(24)
    database = {"POSTGRES_DB": "shoal", "POSTGRES_USER": "shoal", "POSTGRES_PASSWORD_FILE": "/password"}
    password_file = podman.folder / "password"
    password_file.write_text(password)
    variables = [f"--env={name}={value}" for name, value in database.items()]
    podman.run(
        "run", "--detach", "--name=postgres", *variables, f"--volume={password_file}:/password:ro", POSTGRES_IMAGE
    )
    host = podman.container("postgres")["NetworkSettings"]["IPAddress"]
    values = {"host": host, "port": "5432", "name": "shoal", "user": "shoal", "password": password}
    # Podman 4.3 stores a Secret that it plays in a form that it does not read; this is the form it reads.
    (secret,) = documents("secret.example.yaml")
    assert set(secret["stringData"]) == set(values)
    data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    podman.run("secret", "create", secret["metadata"]["name"], "-", stdin=json.dumps(data))
    (migrate,), (enqueue,) = documents("migrate.yaml"), documents("enqueue.yaml")
    deadline = time.monotonic() + 60
    while "accepting" not in podman.run("exec", "postgres", "pg_isready", "--host=127.0.0.1", check=False):
        if time.monotonic() > deadline:
            raise TimeoutError("PostgreSQL does not start: " + podman.run("logs", "postgres", check=False)[-800:])
        time.sleep(0.5)
    for name, job in (("migrate", migrate), ("enqueue", enqueue)):
        podman.play(_pod_of(_with_image(job, image), name))
        code = podman.wait_for_exit(f"{name}-shoal")
        detail = "" if code == 0 else podman.run("logs", f"{name}-shoal")[-500:]
        report.check(f"the job {name} ends well", code == 0, detail)
    for name in STAGES:
        deployment = _with_image(documents(f"{name}.yaml")[0], image)
        # Podman opens a port of a container on the host, where there is only one 9600, and probes with curl inside the
        # container, which has none.
        for part in ("ports", "startupProbe", "livenessProbe"):
            del deployment["spec"]["template"]["spec"]["containers"][0][part]
        deployment["spec"]["replicas"] = REPLICAS
        podman.play(deployment)
    token = podman.run("exec", _containers(podman, "profile")[0], *TOKEN)
    report.check("a token for the server is added by a command in a pod", bool(token.strip()))
    podman.play(_with_image(documents("serve.yaml")[0], image))
    found = {name: _containers(podman, name) for name in (*STAGES, SERVER)}
    running = {
        name: sum(podman.container(each)["State"]["Status"] == "running" for each in each_of)
        for name, each_of in found.items()
    }
    report.check("the deployments run", running == dict.fromkeys(STAGES, REPLICAS) | {SERVER: 1}, str(running))
    about = podman.container(found["profile"][0])
    confined = about["HostConfig"]["ReadonlyRootfs"] and not about["EffectiveCaps"]
    report.check("read-only, as user 10001, without capabilities", confined and about["Config"]["User"] == "10001")


def _containers(podman: Podman, deployment: str) -> list[str]:
    """The names of a deployment's containers: podman numbers the pods of its replicas."""
    names = podman.run("ps", "--all", "--format={{.Names}}").split()
    return sorted(name for name in names if re.fullmatch(rf"{deployment}-pod(-\d+)?-shoal", name))


def _check_server(podman: Podman, report: Report) -> None:
    (name,) = _containers(podman, SERVER)
    deadline = time.monotonic() + 60
    while not (healthy := _is_healthy(podman, name)) and time.monotonic() < deadline:
        time.sleep(1)
    report.check("the liveness probe of the server succeeds", healthy)
    ready = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8642/readyz', timeout=9).status)"
    said = podman.run("exec", name, "python", "-c", ready, check=False).strip()
    report.check("the address of the readiness probe answers 200", said == "200", said)


def _is_healthy(podman: Podman, name: str) -> bool:
    probe = documents("serve.yaml")[0]["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]
    ask = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8642{probe['path']}', timeout=9).status)"
    return podman.run("exec", name, "python", "-c", ask, check=False).strip() == "200"


def _stop(podman: Podman, report: Report) -> None:
    workers = [name for stage in STAGES for name in _containers(podman, stage)]
    began = time.monotonic()
    podman.run("stop", f"--time={GRACE_SECONDS}", *workers)
    codes = Counter(podman.container(name)["State"]["ExitCode"] for name in workers)
    seconds = time.monotonic() - began
    report.check("a stop drains the workers", set(codes) == {INTERRUPTED}, f"{seconds:.1f} s, {dict(codes)}")


def _export(podman: Podman, report: Report, image: str) -> None:
    """By a pod like that of a job, with another command."""
    (job,) = documents("enqueue.yaml")
    pod = _pod_of(_with_image(job, image), "export")
    pod["spec"]["containers"][0]["args"] = ["export", "latest", "-q"]
    podman.play(pod)
    podman.wait_for_exit("export-shoal")
    records = [json.loads(line) for line in podman.run("logs", "export-shoal").splitlines() if line.startswith("{")]
    stored = Counter(record.get("profile") or record.get("link") for record in records)
    good = len(stored) == 2 * PEOPLE and set(stored.values()) == {1}
    report.check("each result is stored, once", good, f"{len(records)} results")
