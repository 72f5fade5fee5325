"""Handlers and servers that do what they should not: the right outcome, a clear message, and nobody else harmed."""

import re
from pathlib import Path

import pytest

from shoal.model.item import ItemState
from shoal.model.views import AttemptView
from tests.support.pools import until
from tests.support.project import Project
from tests.support.site import Site, per_path

BYSTANDERS = 5
HANDLERS = """
    import dataclasses, pydantic

    shop = Scraper("shop")

    @dataclasses.dataclass
    class Price:
        title: str
        cents: int

    class Offer(pydantic.BaseModel):
        title: str
        cents: int

    class Thing: ...

    @shop.stage(retries=0, lane=None)
    async def good(item: Item):
        await asyncio.sleep(0)
        yield {"key": item.key}

    @shop.stage(retries=0, lane=None)
    async def bad(item: Item, log: Log):
        match item.key:
            case "raises": raise KeyError("price")
            case "asserts": assert item.key == "", "the layout has changed"
            case "permanent": raise Permanent("sold out for good")
            case "transient": raise Transient("the stock is being counted")
            case "blocked": raise Blocked("they know us")
            case "number": yield 7
            case "set": yield {1, 2}
            case "object": yield Thing()
            case "text": yield "a text"
            case "not-finite": yield {"cents": float("nan"), "when": object()}
            case "for-ever":
                while True: yield {"more": "x" * 1000}
            case "huge": yield {"body": "x" * 50_000_000}
            case "exits": sys.exit(3)
            case "interrupts": raise SystemExit
            case "cancels": raise asyncio.CancelledError
            case "partly":
                yield {"never": "stored"}
                raise ValueError("after the first record")
            case "bad-price": yield Price(title="soap", cents="much")
            case "bad-offer": yield {"title": "soap"}
            case "late": await asyncio.sleep(60)
            case "bad-link":
                yield good.item("mailto:somebody@shop.example")
                yield {"kept": True}

    bad.policy = bad.policy.replace(timeout=1)

    @shop.stage(retries=0, lane=None, record=Offer)
    async def typed(item: Item):
        yield {"title": "soap", "cents": "much" if item.key == "wrong" else 120}

    @shop.stage(retries=0, lane=None)
    async def returns(item: Item):
        if item.key == "one": return {"returned": 1}
        if item.key == "many": return [Price("soap", 1), Offer(title="salt", cents=2), good.item(key="from-return")]

    @shop.stage(retries=0, lane=None)
    def sync(item: Item):
        time.sleep(0.1)
        if item.key == "sync-raises": raise LookupError("no such shelf")
        if item.key == "sync-exits": sys.exit(4)
        yield {"sync": item.key}
"""
DONE = "done"
EXPECTED = {
    "raises": ("transient", r"KeyError: 'price' \(shop.py:\d+\)"),
    "asserts": ("transient", r"AssertionError: the layout has changed"),
    "permanent": ("permanent", r"sold out for good"),
    "transient": ("transient", r"the stock is being counted"),
    "blocked": ("blocked", r"they know us"),
    "number": ("permanent", r"int"),
    "set": ("permanent", r"set|array|list"),
    "object": ("permanent", r"Thing"),
    "text": ("permanent", r"str"),
    "not-finite": ("permanent", r"object"),
    "for-ever": ("permanent", r"more than 64 MB or 200,000 values"),
    "huge": ("permanent", r"bytes"),
    "exits": ("transient", r"SystemExit"),
    "interrupts": ("transient", r"SystemExit"),
    "cancels": ("transient", r"[Cc]ancel"),
    "partly": ("transient", r"after the first record"),
    "bad-price": ("permanent", r"Price.*cents"),
    "bad-offer": (DONE, None),
    "late": ("transient", r"timed out after 1 s"),
    "bad-link": (DONE, None),
    "wrong": ("permanent", r"Offer.*cents"),
    "right": (DONE, None),
    "one": (DONE, None),
    "many": (DONE, None),
    "nothing": (DONE, None),
    "sync-fine": (DONE, None),
    "sync-raises": ("transient", r"LookupError: no such shelf"),
    "sync-exits": ("transient", r"SystemExit"),
}
STAGES = {
    "good": [f"bystander-{n}" for n in range(BYSTANDERS)],
    "typed": ["wrong", "right"],
    "returns": ["one", "many", "nothing"],
    "sync": ["sync-fine", "sync-raises", "sync-exits"],
}


def test_handlers_that_misbehave(either: Project) -> None:
    """Each ends with the outcome it deserves; what others made is stored, and the process lives through all of it."""
    placed = {key for keys in STAGES.values() for key in keys}
    seeds = [("bad", key) for key in EXPECTED if key not in placed]
    seeds += [(stage, key) for stage, keys in STAGES.items() for key in keys]
    either.write(HANDLERS + "".join(f'    shop.start({stage}.item(key="{key}"))\n' for stage, key in seeds))
    said = either.shoal("run", "shop.py", "--max-dead", "100")
    check_attempts(either.attempts(), EXPECTED)
    items = {item.key: item for item in either.items()}
    for key in STAGES["good"]:
        assert items[key].state is ItemState.DONE
    assert items["from-return"].state is ItemState.DONE
    records = either.export()
    assert {"key": "bystander-0"} in records
    assert {"kept": True} in records
    assert {"returned": 1} in records
    assert {"sync": "sync-fine"} in records
    assert sorted(record["title"] for record in records if "title" in record) == ["salt", "soap", "soap", "soap"]
    assert not any("never" in record or "more" in record for record in records)
    # A traceback helps the author once; a user's mistake does not look like a bug of Shoal.
    assert "This is a bug in Shoal" not in said.stderr
    assert either.is_sound()


def check_attempts(attempts: dict[str, list[AttemptView]], expected: dict[str, tuple[str, str | None]]) -> None:
    wrong = []
    for name, (outcome, message) in expected.items():
        last = attempts[name][-1]
        fits = message is None or re.search(message, last.error or "")
        if last.outcome != outcome or not fits:
            wrong.append(f"{name}: {last.outcome}, {last.error!r}; expected {outcome}, {message!r}")
    assert wrong == []


BLOCKING = """
    shop = Scraper("shop")

    @shop.stage(lane=None)
    async def calm(item: Item):
        await asyncio.sleep(0.05)
        yield {"key": item.key}

    @shop.stage(lane=None)
    async def blocking(item: Item):
        time.sleep(8)  # the author forgot that this is an event loop
        yield {"key": item.key}

    shop.start(blocking.item(key="block"), *(calm.item(key=str(n)) for n in range(30)))
"""


def test_a_handler_that_blocks_the_loop_loses_no_lease(either: Project) -> None:
    """The heart beats in a thread of its own: another worker takes nothing over, and the log names the line."""
    either.write(BLOCKING)
    # Longer than either process is kept from its core on a busy machine, and the handler blocks for longer still.
    lease = ("--set", "lease=3")
    blocked = either.start("run", "shop.py", *lease)
    blocked.wait_until_it_says("event loop blocked by a handler")
    vulture = either.start("worker", "shop.py", *lease)
    assert [blocked.wait(), vulture.wait()] == [0, 0]
    line = next(
        n for n, text in enumerate((either.folder / "shop.py").read_text().splitlines(), 1) if "sleep(8)" in text
    )
    assert f"shop.py:{line}" in blocked.stderr
    attempts = either.attempts()
    assert [attempt.outcome for attempt in attempts["block"]] == [DONE]
    assert all(attempt.outcome == DONE for found in attempts.values() for attempt in found)
    assert len(either.export()) == 31


POISONOUS = """
    import os, signal

    shop = Scraper("shop")

    @shop.stage(lane=None)
    async def work(item: Item):
        await asyncio.sleep(0.02)
        if item.key == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"key": item.key}

    shop.start(work.item(key=key) for key in ["1", "2", "poison", *map(str, range(3, 40))])
"""


def test_an_item_that_kills_its_process_is_set_aside(project: Project) -> None:
    """It is quarantined after a few rescues; those that died beside it are not, and all of them are stored."""
    project.write(POISONOUS)
    codes: list[int] = []
    while 0 not in codes and len(codes) < 8:
        codes.append(project.start("run", "shop.py", "--set", "lease=1").wait())
    assert codes[-1] == 0
    assert set(codes[:-1]) == {-9}
    attempts = project.attempts()["poison"]
    assert [attempt.outcome for attempt in attempts][-1] == "poison"
    assert sorted(record["key"] for record in project.export()) == sorted(str(n) for n in range(1, 40))
    (dead,) = [item for item in project.items() if item.state is ItemState.DEAD]
    assert dead.key == "poison"
    assert project.is_sound()


SERVERS = {
    "/reset": ("transient", r"broke|not complete"),
    "/stall": ("transient", r"timed out after 1.5 s"),
    "/hang": ("transient", r"timed out after 1.5 s"),
    "/lie/long": ("transient", r"not complete|broke off"),
    "/bomb": ("permanent", r"larger than"),
    "/big/3": ("permanent", r"larger than 1048576 bytes"),
    "/loop": ("permanent", r"redirects in a loop"),
    "/redirect/15": ("permanent", r"more than 10 times"),
    "/scheme": ("permanent", r"'ftp'"),
    "/status/404": ("permanent", r"404 Not Found"),
    "/status/410": ("permanent", r"410"),
    "/status/401": ("permanent", r"401"),
    "/status/403": ("blocked", r"403"),
    "/status/500": ("transient", r"500"),
    "/status/503": ("transient", r"503"),
    "/status/418": ("permanent", r"418"),
    "/captcha": ("blocked", r"soft block"),
    "/empty": ("blocked", r"empty"),
    "/status/500/then-ok/1": (DONE, None),
    "/status/429/then-ok/1?retry-after=1": (DONE, None),
    "/status/503/then-ok/1?retry-after=1": (DONE, None),
    "/latin1": (DONE, None),
    "/redirect/3": (DONE, None),
    "/page/1": (DONE, None),
    "/page/2": (DONE, None),
}
FETCHING = """
    shop = Scraper("shop", robots=False)

    @shop.stage(lane=None, retries=1, timeout=30)
    async def page(page: Page):
        path = "/" + page.requested_url.split("/", 3)[3]
        yield {"path": path, "title": page.css("title::text").get(), "text": page.text}

    # Only of those that never answer: others may take longer on a busy machine.
    @shop.stage(lane=None, retries=1, timeout=1.5)
    async def silent(page: Page):
        yield {"never": "stored"}

    shop.start(silent.item("SITE/stall"), silent.item("SITE/hang"))
"""


def test_servers_that_misbehave(fleet: Project) -> None:
    """Transient ones are tried again, hopeless ones are not; messages say what happened; good pages are there."""
    with Site() as site:
        fleet.write(FETCHING.replace("SITE", site.url))
        paths = [path for path in (*SERVERS, "/lie/short") if path not in ("/stall", "/hang")]
        urls = fleet.urls([f"{site.url}{path}" for path in paths] + ["http://127.0.0.1:1/nobody"])
        fleet.shoal("run", "shop.py", "--urls-file", urls, "--max-dead", "100%", "--set", "max_body=1048576")
        visits = per_path(site.visits())
    attempts = fleet.attempts()
    check_attempts(attempts, {**SERVERS, "/nobody": ("transient", r"refused")})
    # More bytes than announced: the extra ones are not part of the answer, or it is refused; never stored as they are.
    assert attempts["/lie/short"][-1].outcome in (DONE, "transient")
    outcomes = {path: [attempt.outcome for attempt in found] for path, found in attempts.items()}
    assert outcomes["/status/500"] == ["transient", "transient"]
    assert outcomes["/status/404"] == ["permanent"]
    assert outcomes["/status/429/then-ok/1?retry-after=1"] == ["throttled", DONE]
    assert outcomes["/status/503/then-ok/1?retry-after=1"] == ["throttled", DONE]
    assert len(visits["/status/404"]) == len(visits["/bomb"]) == 1
    assert len(visits["/status/500"]) == 2
    records = {record["path"]: record for record in fleet.export()}
    assert "Crème brûlée" in records["/latin1"]["text"]
    assert records["/redirect/3"]["title"] == "Redirected"
    assert set(records) >= {path for path, (outcome, _) in SERVERS.items() if outcome == DONE}
    dead = [item for item in fleet.items() if item.state is ItemState.DEAD]
    assert all((item.error or "").startswith("Exceeded retries") for item in dead if item.outcome == "transient")
    assert fleet.is_sound()


def test_a_scraper_that_cannot_be_loaded_is_one_clear_sentence(project: Project) -> None:
    """No traceback for a user's mistake; exit 2; nothing is started."""
    broken = {
        "syntax.py": ("def f(:\n", "syntax.py"),
        "raises.py": ("raise ValueError('no key in the environment')\n", "no key in the environment"),
        "empty.py": ("x = 1\n", "scraper"),
        "stageless.py": ("from shoal import Scraper\ns = Scraper('s')\n", "no stages"),
        "asks.py": (
            "from shoal import Scraper\ns = Scraper('s')\n@s.stage\nasync def page(response):\n    yield {}\n",
            "'response'",
        ),
        "option.py": (
            "from shoal import Scraper\ns = Scraper('s')\n@s.stage(concurency=3)\nasync def page():\n    yield {}\n",
            "concurrency",
        ),
    }
    for name, (code, _) in broken.items():
        (project.folder / name).write_text(code)
    commands = {name: project.start("run", name) for name in broken}
    for name, command in commands.items():
        assert command.wait() == 2, command.stderr
        assert broken[name][1] in command.stderr, command.stderr
        assert "This is a bug in Shoal" not in command.stderr
    assert not (project.folder / "ledger.db").exists()


@pytest.mark.parametrize("name", ["missing.py", "unknown"])
def test_a_scraper_that_is_not_there(project: Project, name: str) -> None:
    said = project.start("run", name)
    assert said.wait() in (2, 5)
    assert name in said.stderr
    assert "Traceback" not in said.stderr


def test_a_ledger_that_is_removed_meanwhile_is_no_success(project: Project) -> None:
    project.write(
        """
        from pathlib import Path
        shop = Scraper("shop")

        @shop.stage
        async def item(item: Item):
            Path("begun").touch()
            while not Path("go").exists():
                await asyncio.sleep(0.02)
            yield {"key": item.key}

        shop.start(item.item(key="x"))
        """
    )
    command = project.start("run", "shop.py")
    until((project.folder / "begun").exists, bool, "it does not begin")
    Path(project.ledger).unlink()
    (project.folder / "go").touch()
    assert command.wait() == 3
    assert "was removed or replaced while it was in use" in command.stderr.splitlines()[-1]
