"""`shoal feed` as a user types it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import pytest

from shoal.errors import LedgerError
from tests.support import LONG
from tests.support.brokers import RabbitServer, RedisServer
from tests.support.project import Project
from tests.support.queues import BrokerQueue, RabbitQueue, RedisStream
from tests.support.site import Site

CODE = """
    books = Scraper("books")

    @books.stage
    def page(page: Page):
        yield {"url": page.url}
"""
SITELESS = [f"http://127.0.0.1:1/{n}" for n in range(3_000 if LONG else 600)]


def put(queue: BrokerQueue, bodies: list[str]) -> None:
    async def create_and_put() -> None:
        await queue.create()
        await queue.put(bodies)

    asyncio.run(create_and_put())


def test_a_feed_that_works_runs_to_the_end(either: Project, redis_server: RedisServer) -> None:
    either.write(CODE)
    queue = RedisStream(redis_server)
    with Site() as site:
        put(queue, [*(f"{site.url}/page/{n}" for n in range(1, 21)), f"{site.url}/page/1", "poison"])
        done = either.shoal(
            *("feed", "shop.py", "--work", "--idle", "0.3", "--json", "-q"), SHOAL_FEED_URL=queue.address()
        )
        answer = json.loads(done.stdout)
        assert (answer["messages"], answer["enqueued"], answer["duplicates"]) == (22, 20, 1)
        assert (answer["dead_letters"], answer["remaining"], answer["state"]) == (1, 0, "finished")
        assert sorted(visit.path for visit in site.visits() if visit.path != "/robots.txt") == sorted(
            f"/page/{n}" for n in range(1, 21)
        )
    assert len(either.export()) == 20


def test_a_killed_feed_that_had_read_everything_goes_on_with_its_items(project: Project) -> None:
    project.write(CODE)
    with Site() as site:
        folder = project.folder / "in"
        folder.mkdir()
        (folder / "urls.txt").write_text("".join(f"{site.url}/page/{n}\n" for n in range(1, 6)))
        feed = ("feed", str(folder), "shop.py", "--idle", "0", "--json", "-q")
        project.shoal(*feed)  # it seals the run, and nobody works on it
        again = json.loads(project.shoal(*feed, "--work").stdout)
    assert (again["messages"], again["remaining"], again["state"]) == (0, 0, "finished")
    assert len(project.export()) == 5


@pytest.mark.parametrize("broker", ["rabbitmq", "redis_server"])
def test_records_are_sent_back_to_the_broker(project: Project, broker: str, request: pytest.FixtureRequest) -> None:
    project.write(CODE)
    made: dict[str, type[BrokerQueue]] = {"rabbitmq": RabbitQueue, "redis_server": RedisStream}
    queue = made[broker](request.getfixturevalue(broker))
    replies = made[broker](queue.server)
    with Site() as site:
        put(queue, [json.dumps({"url": f"{site.url}/page/{n}", "key": f"order {n}"}) for n in range(1, 6)])
        feed = ("feed", "shop.py", "--idle", "0.3", "--reply", replies.name)
        waiting = project.start(*feed, SHOAL_FEED_URL=queue.address())
        deadline = time.monotonic() + 60
        while stored(project) < 5:
            assert time.monotonic() < deadline, waiting.stderr
            time.sleep(0.05)
        project.shoal("worker", "shop.py", "-q")
        assert waiting.wait() == 0, waiting.stderr
    found = {reply["key"]: reply for reply in asyncio.run(replies.records())}
    assert set(found) == {f"order {n}" for n in range(1, 6)}
    assert found["order 1"]["record"] == {"url": f"{site.url}/page/1"}
    assert len({reply["id"] for reply in found.values()}) == 5


def test_feeds_that_are_killed_lose_nothing(project: Project, rabbitmq: RabbitServer) -> None:
    project.write(CODE)
    queue = RabbitQueue(rabbitmq)
    put(queue, SITELESS * 2)
    variables: dict[str, Any] = {
        "SHOAL_FEED_URL": queue.address(),
        "SHOAL_FEED_BATCH": "20",
        "SHOAL_FEED_BACKLOG": "100000",
    }
    for kill in range(3):
        command = project.start("feed", "shop.py", "--forever", **variables)
        least, deadline = (kill + 1) * len(SITELESS) // 8, time.monotonic() + 60
        while stored(project) < least:
            assert time.monotonic() < deadline, command.stderr
            assert not command.is_over, command.stderr
            time.sleep(0.01)
        command.kill()
    done = project.shoal("feed", "shop.py", "--idle", "0.5", "--json", **variables)
    assert stored(project) == len(SITELESS)
    assert json.loads(done.stdout)["sealed"]
    assert asyncio.run(queue.left()) == 0
    assert rabbitmq.password not in done.stderr


def test_ctrl_c_returns_the_messages_and_leaves_the_run_open(project: Project, rabbitmq: RabbitServer) -> None:
    project.write(CODE)
    queue = RabbitQueue(rabbitmq)
    put(queue, SITELESS)
    command = project.start(
        *("feed", "shop.py", "--forever", "--backlog", "50", "--batch", "10", "--json"),
        SHOAL_FEED_URL=queue.address(),
    )
    command.wait_until_it_says("feed paused")
    command.tell(signal.SIGINT)
    assert command.wait() == 130
    answer = json.loads(command.stdout)
    assert (answer["stopped"], answer["sealed"]) == (True, False)
    assert asyncio.run(queue.left()) == len(SITELESS) - answer["messages"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("amqp://me:secret-word@127.0.0.1/?queue=a", "shop.py"), "A password on the command line"),
        (("shop.py",), "SHOAL_FEED_URL is not set"),
        (("shop.py", "--url-env", "NOWHERE"), "NOWHERE is not set"),
        (("nowhere/", "shop.py"), "neither a folder nor an address"),
        (("-", "shop.py", "--stage", "nowhere"), "no stage 'nowhere'"),
        (("-", "shop.py", "-j", "4"), "it needs --work"),
    ],
)
def test_a_wrong_call_is_explained(project: Project, arguments: tuple[str, ...], why: str) -> None:
    project.write(CODE)
    done = project.shoal("feed", *arguments, code=2)
    assert why in done.stderr
    assert "secret-word" not in done.stderr


def stored(project: Project) -> int:
    """How many items there are; none while there is no run yet."""
    try:
        return project.counts().total
    except (AssertionError, LedgerError):
        return 0
