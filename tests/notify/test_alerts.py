"""Alerts end to end: real commands, real ledgers, a mail server and a webhook."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.alert_sinks import PASSWORD, PATIENCE, TOKEN, Mailbox, Webhook
from tests.support.pools import until
from tests.support.project import Command, Project, clean_environment
from tests.support.site import Site

QUICK = ("--set", "stall_after=1")
PAGES = """
    from pathlib import Path

    shop = Scraper("shop")

    @shop.stage(retries=0)
    async def page(page: Page):
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        yield {"url": page.url}
"""
KEYS = """
    shop = Scraper("shop")

    @shop.stage
    async def page(item: Item):
        yield {"key": item.key}

    shop.start(page.item(key=f"key-{n}") for n in range(30))
"""
GATED = """
    from pathlib import Path

    shop = Scraper("shop")

    @shop.stage(retries=0)
    async def page(item: Item):
        if list(Path().glob("began-*")):
            while not Path("committed").exists():  # what ended before: a handler that blocks the loop would hold it up
                await asyncio.sleep(0.02)
        Path(f"began-{item.key}").touch()
        while not Path(f"go-{item.key}").exists():
            WAIT
        yield {"key": item.key}

    shop.start(page.item(key=key) for key in ("a", "b"))
"""
BLOCKING = GATED.replace("WAIT", "time.sleep(0.02)")


def alerts(project: Project, *arguments: str) -> list[dict[str, Any]]:
    """The oldest first."""
    said = project.shoal("alerts", "ls", *arguments, "--json").stdout
    return [json.loads(line) for line in reversed(said.splitlines())]


def kinds_and_states(project: Project) -> list[tuple[str, str]]:
    return [(alert["kind"], alert["delivery"]) for alert in alerts(project)]


def keeps_secrets(project: Project) -> bool:
    """Whether no output, log, stored alert or file contains a secret."""
    files = [file for file in project.folder.rglob("*") if file.is_file() and not file.name.startswith("ledger.db")]
    said = b"".join(file.read_bytes() for file in files) + json.dumps(alerts(project)).encode()
    return TOKEN.encode() not in said and PASSWORD.encode() not in said


def test_three_workers_send_one_finish_alert(either: Project, mailbox: Mailbox) -> None:
    """S2.23: mail."""
    either.write(KEYS)
    either.shoal("enqueue", "shop.py")
    workers = [either.start("worker", "shop.py", SHOAL_NOTIFY=mailbox.address) for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert mailbox.titles == [f"Shoal: shop finished (run {either.run().id})"]
    assert "30 done, 0 dead" in mailbox.messages[0][1]
    assert kinds_and_states(either) == [("finish", "delivered")]
    assert keeps_secrets(either)


def test_failing_pages_raise_an_alert_during_the_run(either: Project, webhook: Webhook) -> None:
    """S2.23: a run of which 98 % fail raises an alert, by a webhook; then the failure at its end."""
    either.write(PAGES)
    with Site() as site:
        bad = [f"{site.url}/status/500?n={n}" for n in range(98)]
        urls = either.urls([*bad, f"{site.url}/page/1", f"{site.url}/page/2"])
        command = either.start("run", "shop.py", "--urls-file", urls, *QUICK, "-j", "32", SHOAL_NOTIFY=webhook.address)
        webhook.wait_for(lambda titles: any("keeps failing" in title for title in titles))
        assert "Alert (errors): 100% of 98 attempts" in either.shoal("status", "latest").stdout
        assert "Alert (errors) of run" in either.shoal("status").stdout
        (either.folder / "go").touch()
        assert command.wait() == 1
    run_id = either.run().id
    (text,) = [text for title, text in webhook.messages if "keeps failing" in title]
    assert "attempts in the last 5 minutes failed." in text
    assert "Most common failure" in text
    assert "500" in text
    assert f"Shoal: shop failed (run {run_id})" in webhook.titles
    assert set(kinds_and_states(either)) >= {("errors", "delivered"), ("failure", "delivered")}
    events = json.loads(either.shoal("runs", "show", run_id, "--json").stdout)["events"]
    assert [event["subject"] for event in events if event["action"] == "alert"].count("errors") == 1
    assert keeps_secrets(either)


def test_a_hanging_handler_raises_a_stall_despite_heartbeats(either: Project, webhook: Webhook) -> None:
    """S2.23: a stalled run raises an alert, once, and again only after it has moved. The handler blocks the loop."""
    either.write(BLOCKING)
    command = either.start("run", "shop.py", *QUICK, "-j", "1", SHOAL_NOTIFY=webhook.address)
    webhook.wait_for(lambda titles: len(titles) == 1)
    (text,) = [text for _, text in webhook.messages]
    assert "Nothing has ended for " in text
    deadline = time.monotonic() + PATIENCE
    while "1 item is being worked on" not in either.shoal("items", "why", "latest").stdout:  # by its heartbeats
        assert time.monotonic() < deadline
    (began,) = either.folder.glob("began-*")
    first = began.name.removeprefix("began-")
    (either.folder / f"go-{first}").touch()
    until(either.counts, lambda counts: counts.done == 1, "the first item is not committed")
    (either.folder / "committed").touch()
    webhook.wait_for(lambda titles: len(titles) == 2)
    assert [title.split()[2] for title in webhook.titles] == ["stalled", "stalled"]
    for key in ("a", "b"):
        (either.folder / f"go-{key}").touch()
    assert command.wait() == 0
    assert kinds_and_states(either) == [("stall", "delivered"), ("stall", "delivered"), ("finish", "delivered")]
    assert len(webhook.messages) == 3


def test_a_run_without_workers_is_reported_when_the_sink_is_back(either: Project, webhook: Webhook) -> None:
    """S2.23: `shoal alerts watch`, with the sink down at first."""
    webhook.down = True
    either.write(KEYS)
    either.shoal("enqueue", "shop.py")
    watch = either.start("alerts", "watch", *QUICK, SHOAL_NOTIFY=webhook.address)
    watch.wait_until_it_says("delivery failed")
    assert webhook.messages == []
    webhook.down = False
    webhook.wait_for(lambda titles: len(titles) == 1)
    watch.wait_until_it_says("alert delivered")
    _end(watch)
    assert "No live worker serves the stage page of shop." in webhook.messages[0][1]
    assert kinds_and_states(either) == [("stall", "delivered")]
    either.shoal("alerts", "watch", "--once", *QUICK, SHOAL_NOTIFY=webhook.address)
    assert len(webhook.messages) == 1
    assert keeps_secrets(either)


def _end(command: Command) -> None:
    import signal

    command.tell(signal.SIGTERM)
    assert command.wait() == 0


def test_without_an_address_alerts_are_stored(project: Project) -> None:
    project.write(KEYS)
    project.shoal("run", "shop.py")
    (alert,) = alerts(project, "latest")
    assert (alert["kind"], alert["delivery"], alert["scraper"]) == ("finish", "not sent", "shop")
    events = json.loads(project.shoal("runs", "show", "latest", "--json").stdout)["events"]
    assert [event["subject"] for event in events if event["action"] == "alert"] == ["finish"]
    assert "finish" in project.shoal("alerts", "ls").stdout


def test_code_that_always_fails_raises_a_failure(project: Project, webhook: Webhook) -> None:
    project.write(KEYS.replace('yield {"key": item.key}', "item.no_such_thing"))
    project.shoal("run", "shop.py", "-j", "1", code=1, SHOAL_NOTIFY=webhook.address)
    assert [title.split()[2] for title in webhook.titles] == ["failed"]
    assert "stopped: the scraper's code fails every time" in webhook.messages[0][1]


def test_a_pool_sends_one_alert(project: Project, webhook: Webhook) -> None:
    project.write(KEYS)
    pool = project.shoal("pool", "shop.py", "--test", "--yes", "--stagger", "0", SHOAL_NOTIFY=webhook.address)
    assert "alerts" in pool.stdout + pool.stderr
    assert webhook.titles == [f"Shoal: shop finished (run {project.run().id})"]
    assert keeps_secrets(project)


def test_alerts_test_sends_to_every_address(project: Project, mailbox: Mailbox, webhook: Webhook) -> None:
    addresses = f"{mailbox.address} {webhook.address}"
    said = project.shoal("alerts", "test", SHOAL_NOTIFY=addresses)
    assert said.stdout.splitlines() == ["1 mailto://***: ok", "2 json://***: ok"]
    assert mailbox.titles == webhook.titles == ["Shoal: a test"]
    webhook.down = True
    said = project.shoal("alerts", "test", "--json", code=1, SHOAL_NOTIFY=addresses)
    answers = [json.loads(line) for line in said.stdout.splitlines()]
    assert [answer["ok"] for answer in answers] == [True, False]
    assert "503" in answers[1]["reason"]
    assert TOKEN not in said.stdout
    project.shoal("alerts", "test", code=2)


def test_a_scraper_has_its_own_addresses(project: Project, webhook: Webhook) -> None:
    with Webhook() as others:
        (project.folder / "shoal.toml").write_text(
            f'notify = "{others.address}"\n[scrapers.shop]\nnotify = ["{webhook.address}"]\nnotify_on = "finish"\n'
        )
        project.write(KEYS)
        project.shoal("run", "shop.py")
        assert (len(webhook.messages), len(others.messages)) == (1, 0)


@pytest.mark.parametrize(
    ("command", "addresses", "says"),
    [
        ("run", f"bogus://{TOKEN}", "Address 1 of notify (from SHOAL_NOTIFY), bogus://***, cannot be parsed by"),
        (
            "worker",
            f"json://127.0.0.1/x tgram://{TOKEN}",
            "Address 2 of notify (from SHOAL_NOTIFY), tgram://***, cannot",
        ),
        ("run", TOKEN, "Address 1 of notify (from SHOAL_NOTIFY) is not an address; it must be "),
    ],
)
def test_a_wrong_address_is_refused_at_start(project: Project, command: str, addresses: str, says: str) -> None:
    project.write(KEYS)
    said = project.shoal(command, "shop.py", code=2, SHOAL_NOTIFY=addresses)
    assert says in said.stderr
    assert TOKEN not in said.stderr
    assert not Path(project.ledger).exists()


def test_slack_and_telegram_addresses_are_accepted(project: Project) -> None:
    """S2.23: their servers cannot be put on loopback, but their addresses are those of apprise."""
    slack = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general"
    telegram = "tgram://123456789:abcdefghijklmnopqrstuvwx-abcdefghij/12315544/"
    project.write(KEYS)
    said = project.shoal("pool", "shop.py", "--dry-run", SHOAL_NOTIFY=f"{slack} {telegram}")
    assert "go to slack://*** tgram://***" in said.stdout + said.stderr


def test_missing_apprise_is_one_sentence(project: Project) -> None:
    missing = project.folder / "without"
    missing.mkdir()
    (missing / "apprise.py").write_text("raise ImportError('No module named apprise')\n")
    project.write(KEYS)
    said = project.shoal("run", "shop.py", code=2, SHOAL_NOTIFY="json://127.0.0.1/x", PYTHONPATH=str(missing))
    (line,) = said.stderr.splitlines()
    assert line.startswith("Error: notify has addresses, but apprise, which sends to them, is not installed.")
    assert "pip install 'shoal[notify]'" in line
    said = project.shoal("alerts", "test", code=1, SHOAL_NOTIFY="json://127.0.0.1/x", PYTHONPATH=str(missing))
    assert said.stdout == "1 json://***: apprise is not installed (pip install 'shoal[notify]').\n"


def test_workers_never_import_apprise(project: Project, webhook: Webhook) -> None:
    """It takes half a second and tens of megabytes: only the process that sends has it."""
    project.write(KEYS)
    code = "import sys; from shoal.cli.main import main; c = main(); print(c, 'apprise' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "shop.py", "-q"],
        cwd=project.folder,
        env=clean_environment(project.folder, SHOAL_LEDGER=project.ledger, SHOAL_NOTIFY=webhook.address),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 False"
    assert len(webhook.messages) == 1


def test_addresses_are_not_shown(project: Project, mailbox: Mailbox) -> None:
    said = project.shoal("config", "show", "--json", SHOAL_NOTIFY=mailbox.address).stdout
    shown = {row["name"]: row["value"] for row in map(json.loads, said.splitlines())}
    assert shown["notify"] == "mailto://***"
    assert shown["notify_on"] == "finish failure stall errors coverage sink"
    assert PASSWORD not in said


def test_a_slot_that_fails_before_its_run_sends_an_alert(project: Project, webhook: Webhook) -> None:
    """A schedule whose code cannot be loaded has no run that could be watched."""
    (project.folder / "broken.py").write_text("import nothing_of_that_name\n")
    (project.folder / "shoal.toml").write_text('[scrapers.broken]\ntarget = "broken.py"\nschedule.every = "1s"\n')
    command = project.start("schedule", "start", SHOAL_NOTIFY=webhook.address)
    webhook.wait_for(lambda titles: "broken: a slot failed" in titles)
    command.tell(signal.SIGTERM)
    assert command.wait() == 130
    text = next(text for title, text in webhook.messages if title == "broken: a slot failed")
    assert "failed before its run began (exit code 2)" in text
    assert "logs/broken/" in text
    assert TOKEN not in command.stdout + command.stderr
