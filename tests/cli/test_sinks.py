"""Sinks as a user sees them: they get everything while a run goes on, catch up after it, and never hold it up."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.project import Project
from tests.support.server import free_port
from tests.support.sinks import WebhookReceiver
from tests.support.site import Site

PAGES = """
    shop = Scraper("shop")

    @shop.stage(concurrency=8, rate="1000/s")
    async def page(page: Page):
        yield {{"url": page.url, "title": page.css("h1::text").get()}}

    shop.start(f"{url}/page/{{n}}" for n in range(1, {count} + 1))
"""


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    receiver = WebhookReceiver()
    yield receiver
    receiver.stop()


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_sinks_beside_a_run_and_after_it(project: Project, receiver: WebhookReceiver) -> None:
    port = free_port()
    (project.folder / "shoal.toml").write_text(
        f"""
        [sinks.hook]
        kind = "webhook"
        url_env = "HOOK_URL"
        secret_env = "HOOK_SECRET"

        [sinks.parts]
        kind = "jsonl"
        path = "parts/{{scraper}}"

        [sinks.warehouse]
        kind = "postgresql"
        url = "postgresql://me:hush-hush-7@127.0.0.1:{port}/x"
        lag_alert = 1
        """
    )
    with Site(pages=40) as site:
        project.write(PAGES.format(url=site.url, count=40))
        said = project.shoal("run", "shop.py", HOOK_URL=receiver.url, HOOK_SECRET="a-secret-of-hooks")
    assert "40 done, 0 dead" in said.stdout
    assert (
        f"Sink warehouse: 40 records are still to be delivered (postgresql://me:***@127.0.0.1:{port}/x: "
        "connection refused). `shoal sinks deliver warehouse` delivers them." in said.stderr
    )
    assert len({record["id"] for record in receiver.taken}) == len(receiver.taken) == 40
    parts = list((project.folder / "parts" / "shop").iterdir())
    assert sum(len(part.read_text().splitlines()) for part in parts) == 40
    by_name = {record["sink"]: record for record in lines(project.shoal("sinks", "ls", "--json").stdout)}
    assert {name: (record["state"], record["delivered"], record["behind"]) for name, record in by_name.items()} == {
        "hook": ("up to date", 40, 0),
        "parts": ("up to date", 40, 0),
        "warehouse": ("failing", 0, 40),
    }
    watched = lines(project.shoal("watch", "latest", "--json").stdout)
    assert {sink["sink"]: sink["behind"] for sink in watched[-1]["sinks"]}.get("warehouse", 40) == 40
    (status,) = lines(project.shoal("status", "--json").stdout)
    assert [sink["behind"] for sink in status["sinks"]] == [0, 0, 40]
    assert "warehouse  postgresql  failing" in project.shoal("status").stdout
    failed = project.shoal("sinks", "deliver", "warehouse", code=1)
    assert "behind (40 records)" in failed.stderr
    time.sleep(1.1)
    project.shoal("alerts", "watch", "--once")
    alerts = lines(project.shoal("alerts", "ls", "--json").stdout)
    (raised,) = [alert for alert in alerts if alert["kind"] == "sink"]
    assert "connection refused" in json.dumps(raised)
    everything = "".join(path.read_text() for path in project.folder.rglob("*.log")) + said.stderr + failed.stderr
    for secret in ("hush-hush-7", "a-secret-of-hooks", "a-token-in-the-path"):
        assert secret not in everything
    shown = project.shoal("config", "show", HOOK_URL=receiver.url).stdout
    assert "hush-hush-7" not in shown
    assert "sinks.warehouse.kind" in shown


def test_dead_letters_reset_and_names(project: Project) -> None:
    bad: set[str] = {"/page/3"}

    def answer(_: int, body: Any) -> tuple[int, dict[str, str]]:
        return (422 if any(record["record"]["url"].endswith(tuple(bad)) for record in body["records"]) else 200), {}

    refusing = WebhookReceiver(answer)
    (project.folder / "shoal.toml").write_text(f'[sinks.hook]\nkind = "webhook"\nurl = "{refusing.url}"\n')
    with Site(pages=9) as site:
        project.write(PAGES.format(url=site.url, count=9))
        said = project.shoal("run", "shop.py")
    assert "Sink hook refused 1 record: see `shoal sinks dead hook`." in said.stderr
    (letter,) = lines(project.shoal("sinks", "dead", "hook", "--json").stdout)
    assert letter["reason"] == "422 Unprocessable Entity"
    assert len(refusing.taken) == 8
    project.shoal("sinks", "retry", "hook", code=1)
    bad.clear()
    bad.add("nothing")
    assert "1 record delivered, 0 refused again" in project.shoal("sinks", "retry", "hook").stderr
    assert len({record["id"] for record in refusing.taken}) == 9
    assert "9 records to be delivered" in project.shoal("sinks", "reset", "hook", "--yes").stderr
    assert "hook 9 records" in project.shoal("sinks", "deliver").stderr
    project.shoal("sinks", "reset", "hook", "--to", "end", "--yes")
    assert "hook nothing" in project.shoal("sinks", "deliver", "hook").stderr
    assert "There is no sink 'other'" in project.shoal("sinks", "deliver", "other", code=5).stderr
    refusing.stop()


def test_a_sink_that_never_answers_does_not_hold_up_a_run(project: Project) -> None:
    """The same run with a sink that accepts connections and says nothing, and without: neither waits for the other."""
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    with socket.socket() as silent, Site(pages=200) as site:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        table = f'[sinks.hook]\nkind = "webhook"\nurl = "http://127.0.0.1:{silent.getsockname()[1]}/"\n'
        project.write(PAGES.format(url=site.url, count=200))
        for _ in range(2):
            for name, measured in seconds.items():
                (project.folder / "shoal.toml").write_text(table if name == "with" else "")
                said = project.shoal("run", "shop.py", "--fresh", "--json", "--set", "sink_wait=0")
                summary = json.loads(said.stdout)
                assert summary["done"] == 200
                measured.append(summary["work"]["seconds"])
    assert min(seconds["with"]) < 2 * min(seconds["without"]) + 5, seconds


def test_a_fleet_delivers_once_though_a_deliverer_is_killed(fleet: Project, postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(
        f'[sinks.warehouse]\nkind = "postgresql"\nurl = "{postgres_url}"\ntable = "pages"\nbatch = 7\n'
    )
    with Site(pages=120, delay=0.05) as site:
        fleet.write(PAGES.format(url=site.url, count=120))
        fleet.shoal("enqueue", "shop.py")
        service = fleet.start("sinks", "deliver", "--forever")
        service.wait_until_it_says("Delivering to warehouse")
        worker = fleet.start("worker", "shop.py")

        def delivered() -> int:
            return int(lines(fleet.shoal("sinks", "ls", "--json").stdout)[0]["delivered"])

        deadline = time.monotonic() + 60
        while delivered() == 0:
            assert time.monotonic() < deadline
        service.kill()
        assert worker.wait() == 0, worker.stderr
    fleet.shoal("sinks", "deliver")

    async def rows() -> tuple[int, int]:
        connection = await asyncpg.connect(postgres_url)
        try:
            (row,) = await connection.fetch("select count(*), count(distinct url) from pages")
            return row[0], row[1]
        finally:
            await connection.close()

    assert asyncio.run(rows()) == (120, 120)
