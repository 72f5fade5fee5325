"""Egress at the terminal: proxies are listed, tested, banned, freed; status, doctor and the plan name them."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.support.project import Project
from tests.support.proxies import MicroSocks
from tests.support.server import free_port
from tests.support.site import Site
from tests.support.token_api import TokenApi

PAGES = """
    from shoal import Page, Scraper

    shop = Scraper("shop")

    @shop.stage(egress="homes", concurrency=4)
    async def page(page: Page):
        yield {{"url": page.url}}

    shop.start(f"{url}/page/{{n}}" for n in range(1, {count} + 1))
"""
TABLE = """
    [egress.homes]
    kind = "proxies"
    file = "proxies.txt"
    share = "split"
    ban_after = 2
    ban_for = "45m"

    [egress.github]
    kind = "tokens"
    env = ["GITHUB_TOKEN", "GITHUB_TOKEN_*"]
"""


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_proxies_at_the_terminal(project: Project) -> None:
    dead = free_port()
    (project.folder / "shoal.toml").write_text(TABLE)
    with Site(pages=20) as site, MicroSocks(login=True) as proxy:
        listed = f"{proxy.url}\nsocks5://fish:pw-of-a-dead-one@127.0.0.1:{dead}\n"
        (project.folder / "proxies.txt").write_text(listed)
        (project.folder / "proxies.txt").chmod(0o644)
        project.write(PAGES.format(url=site.url, count=20))

        plan = lines(project.shoal("pool", "shop.py", "--workers", "3", "--dry-run", "--json").stdout)
        warnings = [each["text"] for each in plan if each.get("warning")]
        assert "2 proxies for 3 workers: some workers share one" in warnings
        assert [each["egress"] for each in plan if "egress" in each] == [{"homes": 1}] * 3

        said = project.shoal("run", "shop.py", "-v")
        assert "20 done, 0 dead" in said.stdout
        assert {visit.peer.rpartition(":")[0] for visit in site.visits()} == {proxy.source}

        tried = project.shoal("try", "shop.py", f"{site.url}/page/1", "--egress", "homes", "--json")
        (outcome,) = [each for each in lines(tried.stdout) if each["kind"] == "outcome"]
        assert outcome["detail"]["egress"].startswith("homes socks5")

        tested = project.shoal("proxies", "test", "--json", code=1)
        assert {each["ok"]: each["text"] for each in lines(tested.stdout)} == {
            True: "accepts the connection",
            False: f"proxy 127.0.0.1:{dead} refused the connection",
        }
        through = lines(project.shoal("proxies", "test", "--url", f"{site.url}/page/1", "--json", code=1).stdout)
        assert "the site answered 200" in [each["text"] for each in through if each["ok"]]

        by_state = {each["state"]: each for each in lines(project.shoal("proxies", "ls", "--json").stdout)}
        assert by_state.keys() == {"good", "banned"}
        assert by_state["good"]["succeeded"] == 20
        key = by_state["good"]["exit"]
        shown = project.shoal("items", "show", "latest", "1").stdout
        assert by_state["good"]["label"] in shown

        (detail,) = lines(project.shoal("proxies", "show", key, "--json").stdout)
        assert detail["failures_in_row"] == 0
        assert "resting until" in project.shoal("proxies", "rest", key, "--for", "30m").stdout
        assert (
            lines(project.shoal("proxies", "ban", f"homes/{key}", "--why", "slow", "--json").stdout)[0]["why"] == "slow"
        )
        assert [
            each["exit"] for each in lines(project.shoal("proxies", "ls", "--state", "good", "--json").stdout)
        ] == []
        (freed,) = lines(
            project.shoal("proxies", "free", by_state["good"]["label"].rpartition("//")[2], "--json").stdout
        )
        assert freed["state"] == "good"

        checks = {each["text"]: each for each in lines(project.shoal("doctor", "--json", code=1).stdout)}
        assert "proxies.txt of egress.homes has passwords and can be read by every user" in checks
        assert "no token: no variable GITHUB_TOKEN or GITHUB_TOKEN_* is set" in checks
        assert any(text.startswith("1 of 2 proxies accept connections from here") for text in checks)
        tokens = project.shoal("doctor", "--json", GITHUB_TOKEN_2="a-token-of-github").stdout
        assert "1 token: GITHUB_TOKEN_2" in tokens

    everything = "".join(path.read_text() for path in project.folder.rglob("*.log")) + said.stderr + tested.stdout
    everything += tokens + shown + json.dumps(by_state) + project.shoal("config", "show").stdout
    ledger = b"".join(path.read_bytes() for path in project.folder.rglob("ledger.db*"))
    assert ledger
    for secret in (proxy.password, "pw-of-a-dead-one", "a-token-of-github"):
        assert secret not in everything
        assert secret.encode() not in ledger


def test_lines_that_are_no_proxies_are_named(project: Project) -> None:
    (project.folder / "shoal.toml").write_text(TABLE)
    (project.folder / "proxies.txt").write_text(
        f"127.0.0.1:{free_port()}\nbadline\n# a comment\nhost:notaport:user:pw-of-line-4\n" + "nothing\n" * 9
    )
    (project.folder / "proxies.txt").chmod(0o600)
    project.write(PAGES.format(url="http://127.0.0.1:9", count=1))
    tested = project.shoal("proxies", "test", code=1)
    assert "line 4 of" in tested.stderr
    assert "no port from 1 to 65535" in tested.stderr
    assert "and 6 more lines" in tested.stderr
    checked = project.shoal("doctor", "--json", code=1)
    (warning,) = [each for each in lines(checked.stdout) if "line 2 of" in each["text"]]
    assert (warning["ok"], warning["warning"]) == (True, True)
    for said in (tested, checked):
        assert "pw-of-line-4" not in said.stdout + said.stderr


def test_a_pool_is_freed_at_once(project: Project) -> None:
    (project.folder / "shoal.toml").write_text(TABLE.replace("ban_after = 2", "ban_after = 1_000"))
    with Site(pages=4) as site, MicroSocks(login=True) as proxy:
        (project.folder / "proxies.txt").write_text(f"{proxy.url}\n127.0.0.1:{free_port()}\n")
        project.write(PAGES.format(url=site.url, count=4))
        project.shoal("run", "shop.py")
    said = project.shoal("proxies", "ls")
    assert "homes: 2 of 2 good (1 failed when last used)." in said.stderr
    assert "refused the connection" in said.stdout
    for each in lines(project.shoal("proxies", "ls", "--json").stdout):
        project.shoal("proxies", "ban", each["exit"])
    assert project.shoal("proxies", "free", "homes").stdout == "2 proxies of homes freed.\n"
    assert lines(project.shoal("proxies", "free", "homes", "--json").stdout) == []
    said = project.shoal("proxies", "ls")
    assert "homes: 2 of 2 good." in said.stderr
    assert "refused the connection" not in said.stdout, "an error from before is no reason"


def test_mistakes_are_one_sentence(project: Project) -> None:
    project.write(PAGES.format(url="http://127.0.0.1:9", count=1))
    unknown = project.shoal("run", "shop.py", code=2)
    assert "The stage page goes out through egress 'homes', which is not configured (there is: none)." in unknown.stderr
    (project.folder / "shoal.toml").write_text(TABLE)
    missing = project.shoal("run", "shop.py", "--fresh", code=2)
    assert "proxies.txt" in missing.stderr
    assert "Traceback" not in missing.stderr
    project.shoal("enqueue", "shop.py")
    assert len(lines(project.shoal("runs", "ls", "--json").stdout)) == 1  # a run that cannot go out is never begun
    assert "The ledger knows no exit 'nobody'" in project.shoal("proxies", "show", "nobody", code=5).stderr
    assert "The ledger knows no pool 'x'" in project.shoal("proxies", "ls", "--pool", "x", code=5).stderr
    assert "is not a time" in project.shoal("proxies", "rest", "nobody", "--for", "soon", code=2).stderr
    assert "No worker has used a token yet." in project.shoal("tokens", "ls").stderr


def test_a_wrong_token_costs_no_item(either: Project) -> None:
    """S0: what is wrong is said by the name of its variable; once it is corrected, everything goes on."""
    good, bad, count = "a-good-token-1234", "a-bad-token-1234", 12
    with TokenApi({"core": (1_000, 3_600)}, bad=frozenset({bad})) as api:
        (either.folder / "shoal.toml").write_text(TABLE)  # its proxies.txt is missing
        either.write(PAGES.format(url=api.url, count=count).replace("homes", "github"))
        running = either.start("run", "shop.py", GITHUB_TOKEN=bad)
        running.wait_until_it_says("refused with 401; correct GITHUB_TOKEN in .env or the environment")
        why = ""
        while "refused with 401; correct GITHUB_TOKEN in" not in why:  # from the next heartbeat on
            why = either.shoal("items", "why", "latest").stdout
        doctor = either.shoal("doctor", "--json", code=1, GITHUB_TOKEN=bad).stdout
        listed = either.shoal("tokens", "ls").stdout
        running.tell(signal.SIGINT)
        assert running.wait() == 130
        assert (either.counts().dead, either.counts().remaining) == (0, count)
        tried = either.shoal("try", "shop.py", f"{api.url}/page/1", code=1, GITHUB_TOKEN=bad)
        said = either.shoal("run", "shop.py", GITHUB_TOKEN=good)
        assert f"{count} done, 0 dead" in said.stdout
        assert "refused" not in either.shoal("doctor", code=1, GITHUB_TOKEN=good).stdout
    assert "GITHUB_TOKEN is refused by the site" in doctor
    assert "GITHUB_TOKEN" in listed
    assert "correct GITHUB_TOKEN in" in tried.stdout + tried.stderr
    for text in (why, doctor, listed, running.stdout, running.stderr, tried.stdout, tried.stderr):
        assert bad not in text
