"""`shoal run` from a file of ten lines to its export, with the ways to bound it, to share it and to do it again."""

import json
import re
import shlex
import signal
from pathlib import Path

import pytest

from shoal.model.item import ItemState
from shoal.model.run import RunState
from tests.support.faulty_proxy import FaultyProxy
from tests.support.project import Project
from tests.support.site import Site, per_path

TEN_LINES = """
    books = Scraper("books")

    @books.stage(rate="100/s", retries=3)
    async def listing(page: Page):
        yield {{"title": page.css("h1::text").get(), "url": page.url}}
        for link in page.css("a"):
            yield listing.item(page.join(link.attrib["href"]))

    books.start(listing.item("{url}/link/1"))
"""
PAGES = """
    shop = Scraper("shop")

    @shop.stage
    async def page(page: Page):
        yield {"url": page.url, "kept": page.not_modified}
"""


def test_ten_lines_from_start_to_export(either: Project) -> None:
    """The author's code of the design, run as it stands: every page once, a summary, an export and a log."""
    with Site(pages=31) as site:
        either.write(TEN_LINES.format(url=site.url), "books.py")
        said = either.shoal("run", "books.py", "-o", "books.jsonl")
        visits = per_path(site.visits())
    run = either.run()
    assert f"Run {run.id} of books is finished" in said.stdout
    assert "31 done, 0 dead, 0 left; 31 records" in said.stdout
    records = [json.loads(line) for line in (either.folder / "books.jsonl").read_text().splitlines()]
    assert sorted(record["title"] for record in records) == sorted(f"Link {n}" for n in range(1, 32))
    assert {path: len(found) for path, found in visits.items()} == {
        "/robots.txt": 1,
        **{f"/link/{n}": 1 for n in range(1, 32)},
    }
    assert visits["/link/1"][0].user_agent.startswith("shoal/")
    log = [json.loads(line) for line in (either.folder / ".shoal/logs" / f"{run.id}.log").read_text().splitlines()]
    assert [line["event"] for line in log] == ["run started", "worker stopped"]
    assert {line["run"] for line in log} == {run.id}
    again = json.loads(either.shoal("run", "books.py", "--resume", "--json").stdout)
    assert (again["run_id"], again["state"], again["done"]) == (run.id, "finished", 31)


def test_a_dry_run_changes_nothing_and_visits_nobody(project: Project) -> None:
    """S2.5."""
    with Site() as site:
        project.write(TEN_LINES.format(url=site.url), "books.py")
        before = sorted(project.folder.iterdir())
        plan = json.loads(project.shoal("run", "books.py", "--dry-run", "--json").stdout)
        written = {path.name for path in project.folder.iterdir()} - {path.name for path in before}
        assert site.visits() == []
    assert {name for name in written if not name.startswith("command-")} <= {"__pycache__"}
    assert (plan["scraper"], plan["run_id"], plan["start_items"]) == ("books", None, 1)


def test_a_limit_ends_well_and_can_be_continued(project: Project) -> None:
    project.write(PAGES)
    with Site() as site:
        urls = project.urls(f"{site.url}/page/{n}" for n in range(1, 11))
        limited = project.shoal("run", "shop.py", "--urls-file", urls, "--limit", "4", "--json")
        counts = json.loads(limited.stdout)
        assert (counts["done"], counts["leased"], counts["remaining"]) == (4, 0, 6)
        project.shoal("run", "shop.py", "--resume")
    assert project.counts().done == 10


def test_exit_codes(project: Project) -> None:
    """--timeout exits 124; too many dead items exit 1, unless that many are allowed."""
    project.write(PAGES)
    with Site() as site:
        slow = project.urls((f"{site.url}/slow/0.3/{n}" for n in range(200)), "slow.txt")
        gone = project.urls((f"{site.url}/{path}" for path in ("status/404", "page/1", "page/2")), "gone.txt")
        run = ("run", "shop.py", "--urls-file")
        late = project.start(*run, slow, "--timeout", "1")
        dead = project.start(*run, gone, "--ledger", "dead.db")
        counted = project.start(*run, gone, "--ledger", "counted.db", "--max-dead", "1")
        shared = project.start(*run, gone, "--ledger", "shared.db", "--max-dead", "34%")
        assert [command.wait() for command in (late, dead, counted, shared)] == [124, 1, 0, 0]
    assert "--resume" in late.stderr
    assert project.counts().leased == 0
    assert "Too many items are dead: 1 of 3; allowed: 10%." in dead.stderr
    assert "404 Not Found" in dead.stdout


def test_one_process_owns_a_single_run_and_workers_may_help(either: Project) -> None:
    """S1.1, S1.2: a second `shoal run` is refused with exit 4 and told what to do; the lock dies with its holder."""
    either.write(PAGES)
    with Site() as site:
        urls = either.urls(f"{site.url}/slow/0.3/{n}" for n in range(30))
        owner = either.start("run", "shop.py", "--urls-file", urls, "-j", "1")
        site.wait_until(lambda visits: len(visits) >= 2)
        refused = either.shoal("run", "shop.py", "--urls-file", urls, code=4)
        helper = either.start("worker", "shop.py", "--json")
        assert re.search(rf"another process \((\S+-)?{owner.pid}(-\S+)?\)", refused.stderr)
        assert "shoal worker" in refused.stderr
        assert [owner.wait(), helper.wait()] == [0, 0]
        assert json.loads(helper.stdout)["done"] > 0
        assert either.counts().done == 30
        killed = either.start("run", "shop.py", "--fresh", "--urls-file", urls, "--set", "lease=1")
        site.wait_until(lambda visits: len(visits) >= 35)
        killed.kill()
        either.shoal("run", "shop.py", "--resume", "--limit", "1", "--set", "lease=1")


def test_how_soon_and_how_often_is_tried_again_can_be_said(project: Project) -> None:
    """S4.2: in the code, in a file, and for one call, where it holds for items that were stored before, too."""
    project.write(PAGES.replace('Scraper("shop")', 'Scraper("shop", retries=0, backoff_cap=0.1)'))
    (project.folder / "shoal.toml").write_text("retries = 8\n[scrapers.shop]\nbackoff_jitter = 0\n")
    with Site() as site:
        urls = project.urls([f"{site.url}/status/500/then-ok/3/x"])
        planned = json.loads(project.shoal("run", "shop.py", "--urls-file", urls, "--dry-run", "--json").stdout)
        assert [(stage["retries"], stage["backoff"]) for stage in planned["stages"]] == [(0, "2^n, at most 0.1 s")]
        project.shoal("enqueue", "shop.py", "--urls-file", urls)
        project.shoal("worker", "shop.py", "--set", "retries=5")
        times = [visit.start for visit in site.visits() if visit.path != "/robots.txt"]
    assert len(times) == 4
    assert project.counts().done == 1
    # By default the third would have come 4 seconds after the second, and the fourth 8 seconds after that.
    assert times[3] - times[1] < 11
    rows = project.shoal("config", "show", "shop", "--origin").stdout
    assert re.search(r"^retries +8 +retries in shoal\.toml$", rows, re.MULTILINE)
    assert re.search(r"^backoff_jitter +0 +scrapers\.shop\.backoff_jitter in shoal\.toml$", rows, re.MULTILINE)
    assert re.search(r"^backoff_factor +2 +default$", rows, re.MULTILINE)


def test_a_distributed_run_is_shared(fleet: Project) -> None:
    """S1.1: the same `shoal run` twice, on any machine, works on one run."""
    fleet.write(PAGES.replace('Scraper("shop")', 'Scraper("shop", mode="distributed")'))
    with Site() as site:
        urls = fleet.urls(f"{site.url}/slow/0.3/{n}" for n in range(30))
        one = fleet.start("run", "shop.py", "--urls-file", urls, "-j", "2", "--json")
        site.wait_until(lambda visits: len(visits) >= 2)
        two = fleet.start("run", "shop.py", "-j", "2", "--json")
        assert [one.wait(), two.wait()] == [0, 0]
    first, second = json.loads(one.stdout), json.loads(two.stdout)
    assert first["run_id"] == second["run_id"]
    assert all(report["work"]["done"] > 0 for report in (first, second))
    assert first["work"]["done"] + second["work"]["done"] == 30


def test_a_distributed_scraper_needs_postgres(project: Project) -> None:
    """S1.1: the mode is refused before anything is started, with the remedy."""
    project.write(PAGES.replace('Scraper("shop")', 'Scraper("shop", mode="distributed")'))
    urls = project.urls(["http://127.0.0.1:1/"])
    for command in ("run", "enqueue"):
        said = project.shoal(command, "shop.py", "--urls-file", urls, code=2)
        assert "needs PostgreSQL" in said.stderr
        assert "SHOAL_LEDGER=postgresql://" in said.stderr
    assert not Path(project.ledger).exists()


HOOKED = """
    from pathlib import Path

    shop = Scraper("shop")

    def note(text):
        with Path("calls.txt").open("a") as file:
            file.write(text + "\\n")

    @shop.on_start
    def begin(run: Run): note(f"start {run.id}")

    @shop.on_finish
    async def end(run: Run, counts: Counts): note(f"finish {run.id} {counts.done}")

    @shop.on_finish
    def fails(): raise ValueError("the mail server is down")

    @shop.stage(lane=None)
    async def work(item: Item):
        await asyncio.sleep(0.02)
        yield {"key": item.key}

    shop.start(work.item(key=str(n)) for n in range(60))
"""


def test_hooks_are_called_once_whoever_works(either: Project) -> None:
    """Once per run, also for the second run of a ledger, and one that fails stops neither the others nor the run."""
    either.write(HOOKED)
    expected = []
    for _ in range(2):
        run_id = json.loads(either.shoal("enqueue", "shop.py", "--fresh").stdout)["run_id"]
        fleet = [either.start("worker", "shop.py", "-j", "2") for _ in range(3)]
        assert [command.wait() for command in fleet] == [0, 0, 0]
        expected += [f"start {run_id}", f"finish {run_id} 60"]
        assert (either.folder / "calls.txt").read_text().splitlines() == expected
        assert sum("the mail server is down" in command.stderr for command in fleet) == 1
        # S0.22
        assert all("No more records to claim." in command.stderr for command in fleet)


def test_a_start_that_fails_is_the_authors_error(project: Project) -> None:
    """Neither a hook nor a source that raises looks like a bug of Shoal; the message names the line."""
    project.write(HOOKED.replace('note(f"start {run.id}")', 'raise LookupError("no login")'), "hook.py")
    project.write(HOOKED.replace("work.item(key=str(n))", "work.item(key=str(1 // (5 - n)))"), "source.py")
    project.write(HOOKED.replace("work.item(key=str(n))", "n"), "wrong.py")
    for name, sentence in {"hook.py": "no login", "source.py": "division", "wrong.py": "start()"}.items():
        command = project.start("run", name, "--fresh")
        assert command.wait() == 2, command.stderr
        assert sentence in command.stderr
        assert "This is a bug in Shoal" not in command.stderr, command.stderr


STAGED = """
    shop = Scraper("shop")

    @shop.stage(lane=None)
    async def find(item: Item):
        yield check.item(item, payload={"found": True})

    @shop.stage(lane=None)
    async def check(item: Item):
        yield store.item(item, payload={"checked": True})
        yield store.item(item, payload={"checked": "again"})

    @shop.stage(lane=None)
    async def store(item: Item):
        yield {"key": item.key, **item.payload}

    shop.start(find.item(key=f"user-{n}", payload={"n": n}, partition="de", priority=n) for n in range(20))
"""


def test_the_same_key_moves_through_stages(either: Project) -> None:
    """S0.1: a key is done once per stage, and takes its payload, partition and priority along."""
    either.write(STAGED)
    either.shoal("run", "shop.py")
    records = {record["key"]: record for record in either.export()}
    assert len(records) == 20
    assert records["user-7"] == {"key": "user-7", "n": 7, "found": True, "checked": True}
    items = either.items()
    assert {stage: sum(item.stage == stage for item in items) for stage in ("find", "check", "store")} == {
        "find": 20,
        "check": 20,
        "store": 20,
    }
    assert {(item.partition, item.priority) for item in items if item.key == "user-7"} == {("de", 7)}
    assert either.counts().duplicates == 20


FOLLOWING = """
    shop = Scraper("shop")

    @shop.stage(follow=Follow(depth=2, deny="/link/5$"))
    async def near(page: Page, item: Item):
        yield {"path": "/" + page.url.split("/", 3)[3], "depth": item.depth}

    @shop.stage(follow=Follow(to="near", prefix=("URL/page/1",), css="ul"))
    async def home(page: Page): ...
"""


def test_following_links_within_their_scope(project: Project) -> None:
    """Depth, patterns, prefixes, the host: what is out of scope is never visited."""
    with Site(pages=30, extra={"/out": '<a href="http://127.0.0.2:1/x">x</a> <a href="/a.pdf">f</a>'}) as site:
        project.write(
            FOLLOWING.replace("URL", site.url)
            + f'    shop.start(near.item("{site.url}/link/1"), near.item("{site.url}/out"), home.item("{site.url}/"))\n'
        )
        project.shoal("run", "shop.py")
        paths = set(per_path(site.visits())) - {"/robots.txt"}
    tree = {"/link/1", "/link/2", "/link/3", "/link/4", "/link/6", "/link/7"}
    from_home = {"/page/1", *(f"/page/{n}" for n in range(10, 20))}
    assert paths == tree | from_home | {"/", "/out"}
    depths = {record["path"]: record["depth"] for record in project.export()}
    assert (depths["/link/1"], depths["/link/3"], depths["/link/7"]) == (0, 1, 2)


@pytest.mark.parametrize("place", ["/sitemap.xml", "/robots.txt"])
def test_a_sitemap_is_a_start(project: Project, place: str) -> None:
    robots = "User-agent: *\nAllow: /\nSitemap: {}/sitemap.xml\n"
    with Site(pages=12) as plain, Site(pages=12, robots=robots.format(plain.url)) as site:
        project.write(PAGES + f'    shop.start(page.sitemap("{site.url}{place}", match="/page/1"))\n')
        project.shoal("run", "shop.py")
    found = {record["url"].split("/", 3)[3] for record in project.export()}
    assert found == {"page/1", "page/10", "page/11", "page/12"}


def test_kept_pages_are_asked_for_conditionally_and_parsed_again(project: Project) -> None:
    """The second run costs a 304 each; --from-store costs nothing at all; both find the same."""
    project.write(PAGES)
    with Site() as site:
        urls = project.urls([*(f"{site.url}/etag/{n}" for n in range(6)), f"{site.url}/page/1"])
        given = ("--urls-file", urls, "--store", "kept")
        project.shoal("run", "shop.py", *given)
        first = len(site.visits())
        assert not any(record["kept"] for record in project.export())
        project.shoal("run", "shop.py", "--fresh", *given)
        asked = [visit for visit in site.visits()[first:] if visit.path.startswith("/etag")]
        assert [visit.status for visit in asked] == [304] * 6
        assert sum(record["kept"] for record in project.export()) == 6
        before = len(site.visits())
        project.write(PAGES.replace('"kept": page.not_modified', '"title": page.css("h1::text").get()'))
        project.shoal("run", "shop.py", "--fresh", "--from-store", *given)
        assert len(site.visits()) == before
    assert {record["title"] for record in project.export()} == {"Tagged", "Page 1"}


def test_what_is_not_in_the_store_is_said(project: Project) -> None:
    project.write(PAGES)
    urls = project.urls(["http://127.0.0.1:1/never"])
    refused = project.shoal("run", "shop.py", "--urls-file", urls, "--from-store", code=2)
    assert "--store" in refused.stderr
    project.shoal("run", "shop.py", "--fresh", "--urls-file", urls, "--from-store", "--store", "kept", code=1)
    (item,) = project.items()
    assert (item.state, item.outcome) == (ItemState.DEAD, "permanent")
    assert "not in the store" in (item.error or "")


LINES = 60_000


def test_a_list_that_was_cut_short_is_completed(project: Project) -> None:
    """Law 1: Ctrl-C while a long list is still being stored; the command that Shoal names gets all of it."""
    project.write(PAGES)
    with Site() as site:
        lines = [f"{site.url}/page/1", *(f"http://127.0.0.1:1/{n}" for n in range(LINES))]
        command = project.start("run", "shop.py", "--urls-file", project.urls(lines), "-j", "1")
        site.wait_until(lambda visits: len(visits) >= 1)
        command.tell(signal.SIGINT)
        assert command.wait() == 130
        (told,) = [line for line in command.stderr.splitlines() if "--resume" in line]
        _, *arguments = shlex.split(told.partition("Continue with: ")[2])
        project.shoal(*arguments, "--limit", "1", "--set", "drain=0")
    assert project.counts().total == LINES + 1
    assert project.run().sealed


def test_a_list_that_was_stored_needs_not_be_given_again_though_its_run_is_not_sealed(project: Project) -> None:
    """A process that is killed between the two leaves such a run."""
    project.write(PAGES)
    with Site() as site:
        listed = project.urls([f"{site.url}/page/1", f"{site.url}/page/2"])
        project.shoal("enqueue", "shop.py", "--urls-file", listed, "--keep-open")
        assert not project.run().sealed
        project.shoal("run", "shop.py", "--resume")
    assert (project.counts().done, project.run().sealed) == (2, True)


ENDLESS = """
    shop = Scraper("shop")

    @shop.stage(lane=None)
    async def work(item: Item):
        yield {"key": item.key}

    async def numbers():
        n = 0
        while True:
            yield work.item(key=str(n))
            n += 1
            await asyncio.sleep(0.001)

    shop.start(numbers)
"""


def test_a_source_without_end_can_be_stopped(project: Project) -> None:
    project.write(ENDLESS)
    command = project.start("run", "shop.py", "--set", "log_level=debug")
    command.wait_until_it_says("run started")
    command.tell(signal.SIGTERM)
    assert command.wait() == 130
    assert project.run().state is RunState.ACTIVE
    assert project.counts().leased == 0


COUNTING = """
    from pathlib import Path

    shop = Scraper("shop")

    @shop.stage(lane=None)
    async def work(item: Item):
        yield {"key": item.key, "body": "x" * 2000}

    shop.start(work.item(key=str(n)) for n in range(ITEMS))

    @shop.on_finish
    def peak(): print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def test_memory_stays_flat(project: Project) -> None:
    """Three times the items, the same memory: 20,000 more that leave a kilobyte each behind would be seen."""
    numbers = (10_000, 30_000)
    for items in numbers:
        project.write(COUNTING.replace("ITEMS", str(items)), f"shop{items}.py")
    commands = [project.start("run", f"shop{items}.py", "--json", "--ledger", f"{items}.db") for items in numbers]
    peaks = []
    for command, items in zip(commands, numbers, strict=True):
        assert command.wait() == 0, command.stderr
        assert f'"done":{items}' in command.stdout
        peaks += [int(line) / 1024 for line in command.stdout.splitlines() if line.isdigit()]
    assert peaks[1] - peaks[0] < 15, peaks


def test_proxies_of_the_environment_are_used_and_logged_without_their_password(project: Project) -> None:
    project.write(PAGES)
    with (
        Site() as site,
        FaultyProxy(username="fish", password="pw-of-the-proxy", names={"shop.test": "127.0.0.1"}) as proxy,
    ):
        (project.folder / "urls.txt").write_text(f"http://shop.test:{site.port}/page/1\n")
        run = ("run", "shop.py", "--urls-file", "urls.txt")
        refused = project.shoal(*run, code=2, ALL_PROXY="gopher://fish:pw-of-the-proxy@proxy:70")
        assert "ALL_PROXY is not the address of a proxy" in refused.stderr
        assert not (project.folder / "ledger.db").exists(), "a refused command changes nothing"
        done = project.shoal(*run, HTTP_PROXY=proxy.url("http"))
        assert {visit.peer.partition(":")[0] for visit in site.visits()} == {proxy.source}
        assert [visit.path for visit in site.visits()] == ["/robots.txt", "/page/1"]
    said = refused.stderr + done.stderr + done.stdout
    assert done.stderr.count(f"HTTP_PROXY=http://{proxy.source}:{proxy.port}") == 1
    assert "pw-of-the-proxy" not in said
    for file in project.folder.rglob("*"):
        assert not file.is_file() or b"pw-of-the-proxy" not in file.read_bytes(), file
