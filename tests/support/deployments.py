"""What the files under deploy/ say: their services, their documents, and every `shoal` command in them."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.doc_reader import blocks_of

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
GUIDE = ROOT / "docs" / "howto" / "deploy.md"
DB_VARIABLES = {"DB_HOST", "DB_PORT", "DB_NAME", "DB_USER"}
# `docker run ... shoal worker ...`: the image has the name of the command.
_IN_THE_GUIDE = re.compile(r" shoal (?P<rest>(?:worker|enqueue|run|db) [^;\n]*)")


class ShoalCommand(NamedTuple):
    """`shoal` with these arguments, and where it stands."""

    place: str
    arguments: list[str]


def compose() -> dict[str, Any]:
    """compose.yaml with its merges done."""
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def shoal_services() -> dict[str, dict[str, Any]]:
    return {name: service for name, service in compose()["services"].items() if service["image"] == "shoal"}


def documents(name: str) -> list[dict[str, Any]]:
    """The documents of a file under deploy/kubernetes."""
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def manifests() -> list[str]:
    return sorted(file.name for file in (DEPLOY / "kubernetes").glob("*.yaml"))


def github_documents() -> list[dict[str, Any]]:
    """The documents of the recipe github for Kubernetes."""
    return list(yaml.safe_load_all((DEPLOY / "github" / "kubernetes.yaml").read_text()))


def pods(of: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pods, as `spec` says, of all documents that start some."""
    for document in of:
        spec = document.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)  # of a CronJob
        if "template" in spec:
            yield spec["template"]["spec"]


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that prepare it included."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every container of every manifest, with the name of its file."""
    for name in manifests():
        for pod in pods(documents(name)):
            yield from ((name, container) for container in containers_of(pod))


def check_confined(pod: dict[str, Any]) -> None:
    """Nobody is root or gets more rights, and nothing is written to the disk of a container."""
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in containers_of(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def check_worker_is_watched(template: dict[str, Any]) -> None:
    """The pod says where its metrics are, and is probed at that port, by the path that does not ask the ledger."""
    (container,) = template["spec"]["containers"]
    port = container["args"][container["args"].index("--metrics-port") + 1]
    assert container["args"][container["args"].index("--metrics-host") + 1] == "0.0.0.0"
    assert template["metadata"]["annotations"]["prometheus.io/port"] == port
    assert container["ports"] == [{"name": "metrics", "containerPort": int(port)}]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    # Whether its work can go on is the worker's own affair: nothing is routed to it.
    assert "readinessProbe" not in container


def ecs(name: str, folder: str = "ecs") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / folder / name).read_text())
    return loaded


def unit(file: Path) -> configparser.ConfigParser:
    """A unit of systemd. None of ours says the same thing twice, so it can be read as an ini file."""
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(file.read_text())
    return parser


def units(pattern: str = "*") -> list[Path]:
    return sorted((DEPLOY / "systemd").glob(pattern))


def shoal_commands() -> Iterator[ShoalCommand]:
    for name, service in shoal_services().items():
        yield ShoalCommand(f"compose.yaml {name}", service["command"])
    for name, container in containers():
        yield ShoalCommand(f"kubernetes/{name}", container["args"])
    yield ShoalCommand("ecs/task-definition.json", ecs("task-definition.json")["containerDefinitions"][0]["command"])
    for name in ("enqueue.json", "migrate.json"):
        yield ShoalCommand(f"ecs/{name}", ecs(name)["overrides"]["containerOverrides"][0]["command"])
    for file in units("*.service"):
        program, *arguments = shlex.split(unit(file)["Service"]["ExecStart"])
        assert program.endswith("/bin/shoal")
        yield ShoalCommand(f"systemd/{file.name}", arguments)
    shown = "".join(block.text for block in blocks_of(GUIDE) if block.language == "")
    for number, found in enumerate(_IN_THE_GUIDE.finditer(shown)):
        yield ShoalCommand(f"deploy.md {number}", shlex.split(found["rest"]))
