"""What an author types before there is anything to run in earnest: init, try, shell, bench, plan."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from shoal.cli.main import VERBS, app, main
from shoal.config.settings import Settings
from shoal.demo.shop import Shop
from shoal.demo.shop.serving import RunningShop
from shoal.recipes import RECIPES, find_project
from shoal.templates import TEMPLATES
from tests.support import fork_server
from tests.support.fork_server import COMMAND
from tests.support.project import Finished, Shoal, clean_environment
from tests.support.proxies import MicroSocks
from tests.support.site import Site

Told = Callable[..., tuple[int, str, str]]
LISTING = """<title>Garden</title><h1>Garden</h1>
<a class="product" href="/p/1">One</a> <a class="product" href="/p/2">Two</a> <a href="/secret/plans">Plans</a>"""
SCRAPER = """
import asyncio
from shoal import Http, Item, Page, Scraper

garden = Scraper("garden", headers={"X-Garden": "yes"})

@garden.stage
async def listing(page: Page):
    yield {"title": page.css("h1::text").get()}
    for link in page.css("a.product"):
        yield product.item(page.join(link.attrib["href"]), payload={"name": link.css("::text").get()}, priority=5)

@garden.stage
def product(page: Page):
    return {"price": 1 / 0}

@garden.stage
async def named(item: Item, http: Http):
    yield {"key": item.key, "payload": dict(item.payload)}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    robots = "User-agent: *\nDisallow: /secret/\n"
    pages = {"/garden": LISTING, "/secret/plans": "<title>Plans</title>", "/p/1": "<title>One</title>"}
    with Site(robots=robots, extra=pages) as site:
        yield site


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """As `shoal`, but within this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setitem(sys.modules, "garden", None)  # loading a file puts it there

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def scraper(tmp_path: Path) -> Path:
    file = tmp_path / "garden.py"
    file.write_text(SCRAPER)
    return file


def test_help_every_verb_of_the_list_has_a_command() -> None:
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    assert list(group.commands) == list(VERBS)
    for name, command in group.commands.items():
        assert command.name == name or hasattr(command, "commands")
        assert command.help


def test_help_the_list_shows_each_verb_on_one_line(shoal: Shoal) -> None:
    lines = shoal("--help").stdout.splitlines()
    for name, verb in VERBS.items():
        assert f"  {name.ljust(10)}  {verb.help}" in lines


@pytest.fixture(scope="module")
def shop() -> Iterator[RunningShop]:
    with Shop(per_category=21, latency=(0, 0)).serving() as shop:
        yield shop


def make_project(told: Told, folder: Path, recipe: str, **addresses: str) -> None:
    """The recipe's project, its local addresses changed to where the stand-in listens here. Its own test passes."""
    assert told("init", str(folder), "--recipe", recipe)[0] == 0
    for file in [*folder.glob("*.py"), *folder.glob("*.toml"), *folder.glob("*.txt")]:
        text = file.read_text()
        for port, address in addresses.items():
            text = text.replace(f"http://127.0.0.1:{port.removeprefix('port_')}", address)
        file.write_text(text)
    pass_own_test(folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def pass_own_test(folder: Path, *arguments: str, **variables: str) -> None:
    tested = subprocess.run(
        [Path(sys.executable).with_name("pytest"), "-q", *arguments],
        cwd=folder,
        env=clean_environment(folder, **variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert "Warning" not in tested.stdout + tested.stderr


def records_of(folder: Path, *arguments: str) -> list[dict[str, object]]:
    """The records of a run in this folder."""
    done = in_folder(folder, "run", *arguments, "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_init_shop(told: Told, tmp_path: Path, shop: RunningShop) -> None:
    make_project(told, tmp_path / "p", "shop", port_8001=shop.url)
    records = records_of(tmp_path / "p", "shop")
    expected = {sku: truth for sku, truth in shop.facts().products.items() if truth.category == "Garden"}
    assert {record["sku"]: record["price"] for record in records} == {
        sku: truth.price for sku, truth in expected.items()
    }
    assert len(records) == len(expected) > 15


def test_init_pages(told: Told, tmp_path: Path, shop: RunningShop) -> None:
    make_project(told, tmp_path / "p", "pages", port_8001=shop.url)
    records = records_of(tmp_path / "p", "pages", "--urls-file", "urls.txt")
    assert len(records) == 7
    assert {record["title"] for record in records} >= {"About | Driftwood Supply", "Garden | Driftwood Supply"}


def test_init_crawl(told: Told, tmp_path: Path, shop: RunningShop) -> None:
    # From one shelf: the whole shop would take longer and show no more.
    make_project(told, tmp_path / "p", "crawl", port_8001=shop.url)
    code = tmp_path / "p" / "crawl.py"
    code.write_text(code.read_text().replace(f'"{shop.url}/"', f'"{shop.url}/category/tools"'))
    depths = {str(record["url"]): record["depth"] for record in records_of(tmp_path / "p", "crawl")}
    assert depths[f"{shop.url}/category/tools"] == 0
    assert depths[f"{shop.url}/about"] == 1
    assert depths[f"{shop.url}/category/garden"] == 2
    assert set(depths.values()) == {0, 1, 2}
    assert not [url for url in depths if "/private/" in url or "page=" in url]
    # A link of the shop redirects to the outlet's front page; what that links to is another host's.
    assert {url for url in depths if not url.startswith(shop.url)} <= {f"{shop.outlet_url}/"}


def test_init_api(told: Told, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    assert told("init", str(folder), "--recipe", "api")[0] == 0
    with subprocess.Popen([sys.executable, "stand_in.py", "0"], cwd=folder, stdout=subprocess.PIPE, text=True) as api:
        try:
            assert api.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", api.stdout.readline())
            assert found
            other = tmp_path / "other"
            make_project(told, other, "api", port_8002=found.group())
            records = records_of(other, "rivers")
        finally:
            api.terminate()
    assert {record["name"]: record["length_km"] for record in records}["danube"] == 2850
    assert len(records) == 7
    assert "nobody has measured it" in in_folder(other, "items", "ls", "latest", "--state", "dead", "--json").stdout


def test_init_its_test_passes_beside_pytest_asyncio_without_a_warning(told: Told, tmp_path: Path) -> None:
    assert told("init", str(tmp_path / "p"))[0] == 0
    pass_own_test(tmp_path / "p", "-p", "pytest_asyncio.plugin", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def test_init_it_overwrites_nothing(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("concurrency = 3\n")
    refused = shoal("init")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "shoal.toml already; nothing was written" in refused.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["shoal.toml"]
    assert (tmp_path / "shoal.toml").read_text() == "concurrency = 3\n"


@pytest.mark.parametrize("recipe", [*TEMPLATES, *RECIPES])
def test_init_what_is_commented_out_may_be_used(recipe: str) -> None:
    """A table that is shown as an example is not there already: TOML refuses it twice."""
    text = dict(find_project(recipe).files()).get("shoal.toml", "")
    tables = re.sub(r"(?m)^# (?=\[)", "", text)
    assert tomllib.loads(tables)["scrapers"], tables


def test_init_a_folder_that_has_a_project_is_refused_with_a_command_that_works(shoal: Shoal, tmp_path: Path) -> None:
    assert shoal("init", "--recipe", "github").returncode == 0
    refused = shoal("init", "--recipe", "yellowpages")
    assert refused.returncode == 2
    assert "shoal init DIR --recipe yellowpages" in refused.stderr
    assert not (tmp_path / "yellowpages.py").exists()


def test_init_it_says_what_it_made_and_what_to_type_next(shoal: Shoal, tmp_path: Path) -> None:
    said = json.loads(shoal("init", "my shop", "--json").stdout)
    made = sorted(str(file.relative_to(tmp_path / "my shop")) for file in (tmp_path / "my shop").rglob("*.*"))
    assert sorted(said["files"]) == made
    assert ".gitignore" in made
    assert said["next"][0] == "cd 'my shop'"
    assert [command for command in said["next"] if command.endswith("shoal run shop")]
    spoken = shoal("init", "other").stderr
    assert "cd other" in spoken
    assert "# one item, nothing stored" in spoken


def test_init_an_unknown_recipe_and_a_folder_that_cannot_be(shoal: Shoal, tmp_path: Path) -> None:
    unknown = shoal("init", "--recipe", "soup")
    assert unknown.returncode == 2
    for recipe in TEMPLATES.values():
        assert f"{recipe.name} ({recipe.about})" in unknown.stderr
    (tmp_path / "file").write_text("")
    blocked = shoal("init", "file")
    assert blocked.returncode == 2
    assert "cannot be written" in blocked.stderr


@pytest.mark.parametrize("recipe", TEMPLATES)
def test_init_the_commented_settings_are_the_defaults(told: Told, tmp_path: Path, recipe: str) -> None:
    assert told("init", "--recipe", recipe)[0] == 0
    file = tmp_path / "shoal.toml"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(re.sub(r"^# (?=\w+ = |\[)", "", line) for line in lines))
    _, said, _ = told("config", "show", "--json", "--origin")
    rows = {row["name"]: row for row in map(json.loads, said.splitlines())}
    own = [name for name, row in rows.items() if row["origin"].endswith("shoal.toml") and "." not in name]
    assert len(own) == 10
    for name in own:
        assert rows[name]["value"] == Settings().shown()[name]
    scraper = TEMPLATES[recipe].scraper
    assert rows[f"scrapers.{scraper}.stages.{TEMPLATES[recipe].stage}.rate"]["value"] == "30/min"


def test_try_records_are_data_and_items_are_told(shoal: Shoal, scraper: Path, site: Site, tmp_path: Path) -> None:
    said = shoal("try", "garden.py", f"{site.url}/garden")
    assert said.returncode == 0
    assert [json.loads(line) for line in said.stdout.splitlines()] == [{"title": "Garden"}]
    assert f"-> product  {site.url}/p/1  payload=" in said.stderr
    assert "listing: 1 record, 2 items in " in said.stderr
    assert sorted(file.name for file in tmp_path.iterdir() if file.name[0] != "_") == ["garden.py"]
    visit = next(visit for visit in site.visits() if visit.path == "/garden")
    assert visit.headers["x-garden"] == "yes"


def test_try_saves_the_page_and_prints_a_test_that_passes(
    told: Told, scraper: Path, site: Site, tmp_path: Path
) -> None:
    code, out, err = told("try", "garden.py", f"{site.url}/garden", "--save", "tests/pages")
    assert (code, json.loads(out)) == (0, {"title": "Garden"})
    file = tmp_path / "tests" / "pages" / "garden.http"
    assert f"Saved: {file.relative_to(tmp_path)}" in err
    head, _, body = file.read_text().partition("\n\n")
    assert head.splitlines()[:2] == [f"GET {site.url}/garden", "200"]
    assert body == LISTING
    test = err.partition("A test with it:\n\n")[2]
    assert 'assert len(found) == 3  # the first record: {"title":"Garden"}' in test
    (tmp_path / "tests" / "test_garden.py").write_text(test)
    pass_own_test(tmp_path, "-p", "shoal.pytest_plugin", PYTHONPATH=".", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def test_try_saves_pages_that_fail_and_those_of_http(told: Told, site: Site, tmp_path: Path) -> None:
    stage = """
@garden.stage
async def pair(item: Item, http: Http):
    for name in ("garden", "p/1"):
        yield {"title": (await http.get(f"SITE/{name}")).css("title::text").get()}
"""
    (tmp_path / "garden.py").write_text(SCRAPER + stage.replace("SITE", site.url))
    code, out, err = told("try", "garden.py", f"{site.url}/status/404", "--save", "pages", "--json")
    assert code == 1
    saved = json.loads(out.splitlines()[-1])
    assert saved == {"kind": "saved", "file": "pages/status-404.http", "url": f"{site.url}/status/404"}
    code, out, err = told("try", "garden.py:pair", "--key", "x", "--save", "pages")
    assert (code, len(out.splitlines())) == (0, 2)
    assert 'for page in [shoal_page("garden"), shoal_page("p-1")]' in err
    assert "yielded_by(pair, FakeHttp(pages))" in err
    assert sorted(file.name for file in (tmp_path / "pages").iterdir()) == [
        "garden.http",
        "p-1.http",
        "status-404.http",
    ]
    code, _, err = told("try", "garden.py:named", "--key", "x", "--save", "pages")
    assert "There is no page to save" in err


def test_try_json_tells_all_by_kind(shoal: Shoal, scraper: Path, site: Site) -> None:
    said = shoal("try", "garden.py:garden", f"{site.url}/garden", "--json")
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["record", "item", "item", "outcome"]
    assert lines[0]["record"] == {"title": "Garden"}
    assert lines[1] == {
        "kind": "item",
        "stage": "product",
        "url": f"{site.url}/p/1",
        "payload": {"name": "One"},
        "priority": 5,
    }
    assert (lines[3]["outcome"], lines[3]["stage"]) == ("done", "listing")


MANY = """
from shoal import Item, Scraper

garden = Scraper("garden")

@garden.stage(lane=None)
async def listing(item: Item):
    yield {"key": item.key}
    for number in range(40):
        yield product.item(key=str(number))
    yield listing.item(key="next page")

@garden.stage(lane=None)
async def product(item: Item): ...
"""


def test_try_of_many_items_each_stage_is_shown(told: Told, tmp_path: Path) -> None:
    (tmp_path / "garden.py").write_text(MANY)
    code, out, err = told("try", "garden.py", "--key", "k")
    lines = err.splitlines()
    shown = [line for line in lines if line.startswith("-> ")]
    assert (code, len(shown)) == (0, 20)
    assert [line.split()[1] for line in shown] == ["product"] * 19 + ["listing"]
    assert "key=next page" in shown[-1]
    assert "and 21 more; -v shows all." in err
    assert told("try", "garden.py", "--key", "k", "-q") == (0, out, "")
    assert json.loads(out) == {"key": "k"}


@pytest.mark.parametrize(
    "arguments", [["garden.py:named"], ["garden:named"], ["garden.py", "--stage", "named"], ["known:named"]]
)
def test_try_a_stage_by_name_and_an_item_without_a_url(
    shoal: Shoal, scraper: Path, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "known.py").write_text("from garden import garden\n")
    said = shoal("try", *arguments, "--key", "elm", "--payload", '{"page": 2}')
    assert json.loads(said.stdout) == {"key": "elm", "payload": {"page": 2}}


def test_try_a_handler_that_fails(shoal: Shoal, scraper: Path, site: Site) -> None:
    failed = shoal("try", "garden.py:product", f"{site.url}/p/1")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "product: transient after " in failed.stderr
    assert "ZeroDivisionError: division by zero (garden.py:15)" in failed.stderr
    assert "Traceback" in failed.stderr


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/status/404", "listing: permanent after"),
        ("/status/403", "listing: blocked after"),
        ("/status/429", "listing: throttled after"),
        ("/secret/plans", "forbids it"),
    ],
)
def test_try_answers_that_are_no_success(told: Told, scraper: Path, site: Site, path: str, words: str) -> None:
    code, out, err = told("try", "garden.py", f"{site.url}{path}")
    assert (code, out) == (1, "")
    assert words in err
    assert "Exceeded retries" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["garden.py:nope", "http://127.0.0.1/"], 5, "has no scraper 'nope'; it has garden"),
        (["garden.py", "http://127.0.0.1/", "--stage", "nope"], 2, "Name one of listing, product, named."),
        (["garden.py"], 2, "Give a URL, or a --key."),
        (["garden.py", "not a url"], 2, "is not a valid absolute URL"),
        (["garden.py", "--key", "k", "--payload", "[1]"], 2, "--payload is not a JSON object"),
        (["none.py", "http://127.0.0.1/"], 5, "There is no file"),
    ],
)
def test_try_what_cannot_be_tried(told: Told, scraper: Path, arguments: list[str], code: int, words: str) -> None:
    ended, out, err = told("try", *arguments)
    assert (ended, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1


def test_shell_lines_from_a_pipe(tmp_path: Path, scraper: Path, site: Site) -> None:
    lines = [
        'css("h1::text").get()',
        "len(links), page.status, 'Garden' in text",
        "for link in links[:1]:",
        "    print(link)",
        "",
        'fetch("/p/1")',
        'xpath("//title/text()").get()',
        'fetch("/secret/plans")',
        "page.url == links",
        "view()",
        "scraper.name, product.name",
    ]
    said = in_folder(tmp_path, "shell", f"{site.url}/garden", "garden.py", stdin="\n".join(lines))
    assert said.returncode == 0, said.stderr
    *answers, file, names = said.stdout.splitlines()
    assert answers == ["'Garden'", "(3, 200, True)", f"{site.url}/p/1", "'One'", "False"]
    assert names == "('garden', 'product')"
    assert Path(file).read_text() == "<title>One</title>"
    assert f"200 OK  {site.url}/garden  text/html  " in said.stderr
    assert "\nGarden\n" in said.stderr
    assert "/secret/plans cannot be fetched: robots.txt of" in said.stderr
    assert next(visit for visit in site.visits() if visit.path == "/p/1").headers["x-garden"] == "yes"


def test_shell_a_line_that_fails_is_told_by_the_exit_code(tmp_path: Path, site: Site) -> None:
    said = in_folder(tmp_path, "shell", f"{site.url}/garden", stdin="1/0\npage.status\n")
    assert (said.returncode, said.stdout) == (1, "200\n")
    assert "ZeroDivisionError" in said.stderr


def test_shell_robots_are_obeyed_unless_told(tmp_path: Path, site: Site) -> None:
    refused = in_folder(tmp_path, "shell", f"{site.url}/secret/plans", stdin="page")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Add --set robots=false to look at it anyway." in refused.stderr
    obtained = in_folder(tmp_path, "shell", f"{site.url}/secret/plans", "--set", "robots=false", stdin="page")
    assert obtained.stdout.startswith("<Page 200 ")


def test_shell_goes_out_as_the_scraper_does(tmp_path: Path, site: Site, microsocks: MicroSocks) -> None:
    (tmp_path / "shoal.toml").write_text('[egress.homes]\nkind = "proxies"\nfile = "proxies.txt"\n')
    (tmp_path / "proxies.txt").write_text(f"{microsocks.url}\n")
    (tmp_path / "away.py").write_text(
        "from shoal import Page, Scraper\n\naway = Scraper('away')\n\n\n@away.stage(egress='homes')\n"
        "async def product(page: Page):\n    yield {}\n"
    )
    before = len(site.visits())
    for arguments in (("away.py",), ("--egress", "homes")):
        said = in_folder(tmp_path, "shell", f"{site.url}/garden", *arguments, stdin="page.status")
        assert said.stdout == "200\n", said.stderr
    seen = site.visits()[before:]
    assert {visit.path for visit in seen} == {"/robots.txt", "/garden"}
    assert {visit.peer.rpartition(":")[0] for visit in seen} == {microsocks.source}
    unknown = in_folder(tmp_path, "shell", f"{site.url}/garden", "--egress", "nobody", stdin="page")
    assert "egress 'nobody', which is not configured (there is: homes)" in unknown.stderr


def test_shell_with_a_browser_has_the_rendered_page(tmp_path: Path) -> None:
    script = '<title>x</title><body><script>document.body.innerHTML = "<h1>by a script</h1>"</script>'
    with Site(extra={"/script": script}) as site:
        said = in_folder(tmp_path, "shell", f"{site.url}/script", "--browser", stdin='css("h1::text").get()')
    assert said.stdout == "'by a script'\n", said.stderr


def test_shell_a_page_that_cannot_be_had(tmp_path: Path) -> None:
    refused = in_folder(tmp_path, "shell", "http://127.0.0.1:1/", "--set", "robots=false", stdin="page")
    assert refused.returncode == 1
    assert "connection refused" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_shell_a_prompt_on_a_terminal_completes(tmp_path: Path, site: Site) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "shell", f"{site.url}/garden"],
        cwd=tmp_path,
        env=clean_environment(tmp_path, TERM="dumb"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            assert b"Leave with Ctrl-D." in read_until(ours, b">>> ")
            os.write(ours, b"page.stat\t\n")
            assert b"page.status\r\n200\r\n" in read_until(ours, b"200\r\n>>> ")
            os.write(ours, b"\x04")
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
    os.close(ours)


def test_bench_it_measures_and_leaves_nothing_behind(shoal: Shoal, tmp_path: Path) -> None:
    done = shoal("bench", "--pages", "200", "--json", "-q")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["ratio"] == pytest.approx(facts["shoal_pages_per_second"] / facts["bare_pages_per_second"], rel=0.01)
    assert facts["ledger_items_per_second"] > 100
    assert (facts["pages"], facts["concurrency"]) == (200, 16)
    assert list(tmp_path.iterdir()) == []


def test_bench_it_measures_a_postgresql(shoal: Shoal, postgres_url: str) -> None:
    assert shoal("db", "migrate", SHOAL_LEDGER=postgres_url).returncode == 0
    done = shoal("bench", "--pages", "100", SHOAL_LEDGER=postgres_url)
    assert done.returncode == 0, done.stderr
    assert "claims and commits on postgresql://" in done.stdout
    assert shoal("db", "show", "--json", SHOAL_LEDGER=postgres_url).stdout == ""


# S0.30, S1.27, S3.28: what a job takes is computed from measured costs.
def test_plan_says_what_a_job_needs_within_a_terminal(shoal: Shoal, tmp_path: Path) -> None:
    done = shoal("plan", "--pages", "1e9", "--latency", "0.5", "--size", "50KB", "--hosts", "1e6")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    for word in ("hours", "workers", "database cores", "connections", "disk of the ledger", "network", "enqueueing"):
        assert re.search(rf"^{word} +[0-9]", done.stdout, re.MULTILINE), word
    assert "PostgreSQL is the limit" in done.stdout
    told = "processor time of database and workers and bytes of the log were off by up to a factor of 1.3"
    assert told in " ".join(done.stdout.split())
    assert list(tmp_path.iterdir()) == [], "it needs no ledger"


def test_plan_reads_every_option(shoal: Shoal) -> None:
    given = {
        "--latency": "2",
        "--size": "9KB",
        "--hosts": "1000",
        "--delay": "3",
        "--per-host": "2",
        "--concurrency": "40",
        "--hours": "12",
        "--database-cores": "4",
        "--bandwidth": "1Gbit",
        "--record-size": "1KB",
    }
    options = [text for option in given.items() for text in option]
    done = shoal("plan", "--pages", "1e6", *options, "--store", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    wanted: dict[str, object] = {
        "pages": 1e6,
        "latency": 2,
        "size": 9_000,
        "hosts": 1_000,
        "delay": 3,
        "per_host": 2,
        "concurrency": 40,
    }
    wanted |= {"hours": 12, "workers": None, "database_cores": 4, "bandwidth": 1e9, "record_size": 1_000, "store": True}
    assert answer["job"] == wanted
    assert answer["plan"]["bottleneck"] == "hours"
    assert answer["plan"]["rate"] == pytest.approx(1e6 / 12 / 3600)
    assert answer["plan"]["store_bytes"] > 0
    assert json.loads(shoal("plan", "--pages", "1e6", "--workers", "3", "--json").stdout)["plan"]["workers"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--pages"),
        (("--pages", "none"), "--pages"),
        (("--pages", "0"), "--pages is 0. Give a number of pages from 1 to 1e15, such as 1e6."),
        (("--pages", "1e6", "--size", "big"), "--size is 'big'; it must be a number of bytes. Write it as 50KB."),
        (("--pages", "1e6", "--bandwidth", "fast"), "Write it as 10Gbit."),
        (("--pages", "1e6", "--hours", "1", "--workers", "2"), "Give one of them."),
        (("--pages", "1e6", "--hosts", "100", "--workers", "1000", "--database-cores", "2"), "Give --workers 4, "),
    ],
)
def test_plan_refuses_in_one_sentence_with_a_remedy(shoal: Shoal, arguments: tuple[str, ...], said: str) -> None:
    done = shoal("plan", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def in_folder(folder: Path, *arguments: str, stdin: str = "") -> Finished:
    return fork_server.run(arguments, folder, clean_environment(folder), stdin=stdin)


def read_until(terminal: int, end: bytes) -> bytes:
    heard = b""
    while end not in heard:
        assert select.select([terminal], [], [], 20)[0], heard
        heard += os.read(terminal, 4096)
    return heard
