"""The target `browser`: Chromium in a container without rights, on a read-only file system."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.containers import images
from tests.containers.engine import Engine
from tests.containers.people_site import PeopleStandIn
from tests.containers.report import Report
from tests.support.deployments import ROOT

IMAGE = "shoal-browser"
CODE = """
from shoal import Page, Scraper

rendered = Scraper("rendered")


@rendered.stage(client="browser", retries=0)
async def page(page: Page):
    yield {"text": page.css("h1::text").get()}
"""


def build(engine: Engine) -> None:
    """Compose builds it: the classic builder of an engine without buildx reads no Dockerfile.dockerignore."""
    args = {"PYTHON_IMAGE": images.PYTHON_IMAGE}
    how = {"context": str(ROOT), "dockerfile": "deploy/Dockerfile", "target": "browser", "args": args}
    file = json.dumps({"services": {"browser": {"image": IMAGE, "build": how}}})
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as written:
        written.write(file)
        written.flush()
        engine.docker("compose", "--file", written.name, "build", timeout=1800)


def run(engine: Engine, report: Report, address: str) -> None:
    build(engine)
    images.check_image(engine, report, IMAGE)
    with PeopleStandIn(people=1).serving(port=80, hosts=(address,)) as site, tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "rendered.py").write_text(CODE)
        confined = (*images.CONFINED, "--tmpfs=/tmp", "--shm-size=256m")
        ledger = "--ledger=/tmp/ledger.db"
        command = f"echo {site.url}/script >/tmp/urls && shoal run /code/rendered.py --urls-file /tmp/urls {ledger} -q"
        command += f" && shoal export {ledger} -q"
        mounted = (f"--volume={name}:/code:ro", "--entrypoint=sh")
        said = engine.try_docker("run", "--rm", *mounted, *confined, IMAGE, "-c", command, timeout=300)
        good = '"42"' in said.stdout
        report.check("Chromium renders a page there", good, "" if good else (said.stdout + said.stderr)[-800:])
