"""Logins of several worker processes, through the real command line."""

import json
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.support.member_site import PASSWORD, MemberSite
from tests.support.project import Project

KEY = "q83vEjRWeJASNFZ4kBI0VniQEjRWeJASNFZ4kBI0Vng="
SHOP = """
    import os
    from shoal import secret

    shop = Scraper("shop")
    site = os.environ["SITE"]

    @shop.login{options}
    async def enter(http: Http):
        page = await http.get(f"{{site}}/login")
        answer = await http.submit(page.form(), {{"user": "me", "password": os.environ["PASSWORD"]}})
        if "welcome" not in answer.text:
            raise Permanent("the site does not accept the password")

    @shop.stage(concurrency=12, retries=0)
    async def item(page: Page):
        yield {{"n": page.css("h1::text").get()}}
"""
WORKER = ("worker", "shop.py", "-j", "4", "--batch-size", "4")


def wait_for(what: Callable[[], bool], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < deadline, "not seen in time"
        time.sleep(0.01)


def written(project: Project) -> str:
    """All that the commands wrote: to the terminal, logs, the ledger's file."""
    skipped = (".json", ".py")
    files = [path for path in project.folder.rglob("*") if path.is_file() and path.suffix not in skipped]
    return "".join(path.read_bytes().decode(errors="replace") for path in files)


def test_each_of_two_or_three_workers_logs_in_and_no_item_dies(either: Project) -> None:
    """Of 300 items the second worker killed 276 by 401 when the login was a stage."""
    count = 3 if either.on_postgres else 2
    either.write(SHOP.format(options=""))
    with MemberSite(delay=0.03) as site:
        given: dict[str, Any] = {"SITE": site.url, "PASSWORD": PASSWORD}
        urls = either.urls(f"{site.url}/item/{n}" for n in range(300))
        either.shoal("enqueue", "shop.py", "--urls-file", urls, **given)
        site.holds_at = 0
        workers = [either.start(*WORKER, "--set", "lease=2", **given) for _ in range(count)]
        wait_for(lambda: len(site.logins) == count)
        site.holds_at = 60
        wait_for(lambda: site.statuses()[200] >= 60)
        workers[0].kill()  # its session stays for the worker that takes its place
        site.end_sessions()
        wait_for(lambda: len(site.logins) >= 2 * count - 1)
        site.holds_at = None
        workers[0] = either.start(*WORKER, "--set", "lease=2", **given)
        assert [worker.wait() for worker in workers] == [0] * count
    counts = either.counts()
    assert (counts.done, counts.dead, counts.remaining) == (300, 0, 0)
    assert sorted(int(record["n"]) for record in either.export()) == list(range(300))
    # A worker whose heartbeat is late on a busy machine loses items too; that says nothing about logins.
    own = [[each for each in of if each.outcome != "crashed"] for of in either.attempts().values()]
    assert {len(attempts) for attempts in own} <= {1, 2}
    assert 2 * count - 1 <= len(site.logins) <= 2 * count
    kept = list((either.folder / ".shoal" / "sessions").rglob("*.json"))
    assert len(kept) == count
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert not any(token in written(either) for token in site.logins)
    assert either.is_sound()


def test_workers_share_one_session_where_the_site_allows_one(fleet: Project) -> None:
    fleet.write(SHOP.format(options='(sessions="shared")'))
    with MemberSite(one_at_a_time=True, delay=0.02) as site:
        given: dict[str, Any] = {"SITE": site.url, "PASSWORD": PASSWORD, "SHOAL_SESSION_KEY": KEY}
        urls = fleet.urls(f"{site.url}/item/{n}" for n in range(150))
        fleet.shoal("enqueue", "shop.py", "--urls-file", urls, **given)
        site.holds_at = 60
        workers = [fleet.start(*WORKER, **given) for _ in range(3)]
        wait_for(lambda: site.statuses()[200] >= 60)
        site.end_sessions()
        site.holds_at = None
        assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert (fleet.counts().done, fleet.counts().dead) == (150, 0)
    assert len(site.logins) == 2
    shown = [json.loads(line) for line in fleet.shoal("sessions", "ls", "--json").stdout.splitlines()]
    assert [(row["scraper"], row["login"], row["identity"], row["place"]) for row in shown] == [
        ("shop", "enter", "direct", "ledger")
    ]
    assert "Forgotten: 1 session." in fleet.shoal("sessions", "forget", "shop").stderr
    assert "There are no sessions" in fleet.shoal("sessions", "ls").stderr
    assert not any(token in written(fleet) for token in site.logins)
    assert KEY not in written(fleet)


def test_a_try_logs_in_and_a_missing_key_is_one_sentence(project: Project) -> None:
    project.write(SHOP.format(options=""))
    project.write(SHOP.format(options='(sessions="shared")'), "shared.py")
    with MemberSite() as site:
        given: dict[str, Any] = {"SITE": site.url, "PASSWORD": PASSWORD}
        tried = project.shoal("try", "shop.py", f"{site.url}/item/5", **given)
        assert '"n":"5"' in tried.stdout.replace(" ", "")
        wrong = project.shoal("try", "shop.py", f"{site.url}/item/5", **given | {"PASSWORD": "x"})
        assert '"n":"5"' in wrong.stdout.replace(" ", ""), "the session was kept"
        (kept,) = (project.folder / ".shoal" / "sessions").rglob("*.json")
        listed = project.shoal("sessions", "ls").stdout
        assert listed.split()[5:8] == ["shop", "enter", "direct"]
        assert str(kept.relative_to(project.folder)) in listed
        assert json.loads(project.shoal("sessions", "forget", "--json").stdout) == {"forgotten": 1}
        assert not kept.exists()
        wrong = project.shoal("try", "shop.py", f"{site.url}/item/5", code=1, **given | {"PASSWORD": "x"})
        assert "the login enter()" in wrong.stderr + wrong.stdout
        assert "fails: the site does not accept the password" in wrong.stderr + wrong.stdout
        refused = project.shoal("run", "shared.py", "--urls-file", project.urls([site.url]), code=2, **given)
        assert "SHOAL_SESSION_KEY, which is not set" in refused.stderr
        assert len(refused.stderr.splitlines()) <= 3
        pool = project.shoal("pool", "shared.py", "--urls-file", "urls.txt", "--dry-run", code=2, **given)
        assert "SHOAL_SESSION_KEY, which is not set" in pool.stdout + pool.stderr


def test_who_waits_for_a_login_is_told_why(project: Project) -> None:
    project.write(SHOP.format(options=""))
    with MemberSite() as site:
        given: dict[str, Any] = {"SITE": site.url, "PASSWORD": "wrong-by-far"}
        urls = project.urls(f"{site.url}/item/{n}" for n in range(20))
        run = project.start("run", "shop.py", "--urls-file", urls, "--set", "lease=1", **given)
        run.wait_until_it_says("login failed; items wait")

        def why() -> str:
            return project.shoal("items", "why", "latest").stdout

        wait_for(lambda: "the login enter() (shop.py:" in why())
        assert "fails: the site does not accept the password" in why()
        assert "20 items of the stage item wait" in why()
        run.tell(signal.SIGINT)
        assert run.wait() == 130
        assert (project.counts().dead, project.counts().remaining) == (0, 20)
        project.shoal("run", "shop.py", **given | {"PASSWORD": PASSWORD})
    assert (project.counts().done, len(site.logins)) == (20, 1)
    assert "wrong-by-far" not in written(project)
