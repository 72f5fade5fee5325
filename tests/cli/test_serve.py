"""`shoal serve`, `shoal run --serve`, `shoal demo --serve` as a newcomer uses them: links, tokens, what goes wrong."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.support.project import Command, Project
from tests.support.server import free_port

PATIENCE = 60.0
SLOW_SHOP = """
    from pathlib import Path

    shop = Scraper("shop")

    @shop.stage
    async def product(item: Item):
        while not Path("open").exists():
            await asyncio.sleep(0.05)
        yield {"sku": item.key}

    shop.start(product.item(key=key) for key in ("a", "b"))
"""
LIBRARIES = ("fastapi", "starlette", "uvicorn", "websockets", "prometheus_client", "pydantic")


def link_of(command: Command) -> str:
    """The link that a command has printed, when it answers."""
    command.wait_until_it_says("Dashboard: ")
    found = re.search(r"Dashboard: (http://\S+)", command.stderr)
    assert found
    until_it_answers(found[1] + "healthz")
    return found[1]


def until_it_answers(url: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            httpx.get(url, timeout=PATIENCE).raise_for_status()
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)


@contextmanager
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


def test_it_serves_until_ctrl_c(project: Project) -> None:
    serving = project.start("serve", "--port", "0")
    link = link_of(serving)
    assert httpx.get(f"{link}api/v1/me", timeout=PATIENCE).json()["role"] == "operator"
    serving.tell(signal.SIGINT)
    assert serving.wait() == 0
    assert serving.stderr.endswith("Stopped.\n")
    assert serving.stdout == ""


def test_an_impatient_ctrl_c_ends_it_without_a_traceback(project: Project) -> None:
    serving = project.start("serve", "--port", "0")
    link = link_of(serving)
    with httpx.stream("GET", f"{link}api/v1/live", timeout=PATIENCE) as stream:
        next(stream.iter_lines())
        serving.tell(signal.SIGINT)
        serving.wait_until_received(signal.SIGINT)
        serving.tell(signal.SIGINT)
        assert serving.wait() == 0
    assert serving.stderr.endswith("(Ctrl-C stops it)\n" + f"Ledger: {project.ledger}\nStopped.\n"), serving.stderr


def test_with_a_token_it_serves_other_machines_and_says_by_which_names(project: Project) -> None:
    project.shoal("serve", "token", "add", "anna")
    serving = project.start("serve", "--port", "0", "--host", "0.0.0.0")
    link = link_of(serving)
    serving.wait_until_it_says("for a name, add --allow-host NAME.")
    named = httpx.get(f"{link}api/v1/me", headers={"Host": "tools.example.com"}, timeout=PATIENCE)
    assert (named.status_code, named.json()["error"]["hint"]) == (
        421,
        "If it is to be reached by this name, start it with --allow-host tools.example.com.",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ["--host", "0.0.0.0"],
            2,
            "Other machines can reach 0.0.0.0, and there is no token. Add one with `shoal serve ",
        ),
        (
            ["--require-token"],
            2,
            "everybody needs a token, and there is no token. "
            "Add one with `shoal serve token add NAME --role operator`, or leave the option out.",
        ),
        (["--host", "192.0.2.1"], 2, "192.0.2.1 is no address of this machine. Use 127.0.0.1"),
        (["--trust-proxy", "300.1.1.1"], 2, "'300.1.1.1' is not the address of a proxy. Write 10.0.0.5, or a network"),
        (["--allow-host", "a/b"], 2, "(from --allow-host); it must be names of hosts. Correct --allow-host."),
        (["--jobs", "shep"], 5, "The project has no scraper 'shep'. Did you mean shop?"),
        (["--ledger", "mysql://x"], 2, "mysql://x is not a ledger"),
        (["tokn"], 2, "No such command 'tokn'. Did you mean 'token'?"),
        (["token", "add", ""], 2, "The name of the token is empty. Choose a name"),
        (["token", "add", "me", "--role", "admin"], 2, "it is viewer or operator."),
        (["token", "add", "me", "--expires", "soon"], 2, "'soon' is no time of at most a year, such as 90d."),
        (["token", "rm", "me"], 5, "There is no token 'me'"),
    ],
)
def test_what_is_wrong_is_said_with_the_remedy(project: Project, arguments: list[str], code: int, says: str) -> None:
    project.write(SLOW_SHOP)
    project.shoal("db", "migrate")
    said = project.shoal("serve", *arguments, code=code).stderr
    assert says in said
    assert said.count("Error: ") == 1
    assert "Traceback" not in said


def test_a_port_that_is_taken(project: Project) -> None:
    with taken_port() as port:
        said = project.shoal("serve", "--port", port, code=2).stderr
        assert said.startswith(f"Error: 127.0.0.1:{port} is in use by another program. Choose another port with --port")


def test_a_ledger_that_is_away_is_told_once(project: Project) -> None:
    away = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    serving = project.start("serve", "--port", "0", "--ledger", away)
    link = link_of(serving)
    serving.wait_until_it_says("Until then requests are answered with 503.")
    assert httpx.get(f"{link}readyz", timeout=PATIENCE).status_code == 503
    serving.tell(signal.SIGTERM)
    assert serving.wait() == 0
    assert serving.stderr.count("does not answer") == 1


def test_the_life_of_a_token(project: Project) -> None:
    added = project.shoal("serve", "token", "add", "anna", "--role", "operator", "--expires", "90d")
    secret = added.stdout.strip()
    assert secret.startswith("shoal_")
    assert secret not in added.stderr
    assert "already" in project.shoal("serve", "token", "add", "anna", code=2).stderr
    viewer = json.loads(project.shoal("serve", "token", "add", "bob", "--json").stdout)
    assert (viewer["name"], viewer["role"]) == ("bob", "viewer")
    listed = project.shoal("serve", "token", "ls").stdout
    assert "anna" in listed
    assert secret not in listed
    serving = project.start("serve", "--port", "0", "--require-token")
    link = link_of(serving)

    def status(token: str, method: str = "GET", path: str = "api/v1/me") -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.request(method, link + path, headers=headers, timeout=PATIENCE).status_code

    assert httpx.get(f"{link}api/v1/me", timeout=PATIENCE).status_code == 401
    assert (status(secret), status(viewer["token"])) == (200, 200)
    assert status(viewer["token"], "POST", "api/v1/alerts/test") == 403
    project.shoal("serve", "token", "rm", "anna")
    assert status(secret) == 401


def test_a_run_serves_beside_itself_on_another_port_if_need_be(project: Project) -> None:
    project.write(SLOW_SHOP)
    with taken_port() as port:
        running = project.start("run", "shop.py", "--serve", SHOAL_SERVE_PORT=port)
        link = link_of(running)
        assert f":{port}/" not in link
        runs = httpx.get(f"{link}api/v1/runs", timeout=PATIENCE).json()["rows"]
        assert [run["scraper"] for run in runs] in ([], ["shop"])
        (project.folder / "open").touch()
        assert running.wait() == 0
    assert "`shoal serve` shows all runs at any time" in running.stderr
    with pytest.raises(httpx.ConnectError):
        httpx.get(link)


def test_the_demo_keeps_its_dashboard_up(project: Project) -> None:
    demo = project.start("demo", "--serve", SHOAL_SERVE_PORT="0")
    link = link_of(demo)
    deadline = time.monotonic() + PATIENCE
    while not (runs := httpx.get(f"{link}api/v1/runs", timeout=PATIENCE).json()["rows"]) or not runs[0]["done"]:
        assert time.monotonic() < deadline, runs
        time.sleep(0.1)
    assert (runs[0]["scraper"], runs[0]["state"]) == ("shop", "active")
    demo.tell(signal.SIGINT)
    assert demo.wait() == 0
    assert "shoal serve" in demo.stderr.partition("Next:")[2]


METRICS = re.compile(r"Metrics of this worker: (http://\S+)")


@pytest.mark.parametrize("verb", ["run", "worker"])
def test_a_worker_exports_its_metrics_where_it_says(project: Project, verb: str) -> None:
    project.write(SLOW_SHOP)
    project.shoal("enqueue", "shop.py")
    working = project.start(verb, "shop.py", "--metrics-port", "0")
    working.wait_until_it_says("Metrics of this worker: ")
    found = METRICS.search(working.stderr)
    assert found
    assert 'shoal_worker_info{scraper="shop"' in httpx.get(found[1], timeout=PATIENCE).text
    port = str(httpx.URL(found[1]).port)
    refused = project.shoal("worker", "shop.py", "--metrics-port", port, code=2)
    assert f"Metrics cannot be exported at 127.0.0.1:{port}: Address already in use. Choose another" in refused.stderr
    (project.folder / "open").touch()
    assert working.wait() == 0


def test_each_worker_of_a_pool_exports_its_own_metrics(project: Project) -> None:
    project.write(SLOW_SHOP)
    pool = project.start("pool", "shop.py", "--workers", "2", "--yes", "--stagger", "0-0", "--metrics-port", "0")
    logs = [project.folder / "logs" / f"shop_worker_{number}.log" for number in range(2)]
    deadline = time.monotonic() + PATIENCE
    while not all(log.exists() and METRICS.search(log.read_text()) for log in logs):
        assert time.monotonic() < deadline, pool.stderr
        assert not pool.is_over, pool.stderr
        time.sleep(0.05)
    addresses = [found[1] for log in logs if (found := METRICS.search(log.read_text()))]
    workers = {
        re.search(r'worker="([^"]+)"', httpx.get(address, timeout=PATIENCE).text)[1]  # type: ignore[index]
        for address in addresses
    }
    assert len(workers) == 2
    (project.folder / "open").touch()
    assert pool.wait() == 0


@pytest.mark.parametrize("arguments", [("serve",), ("run", "shop.py", "--serve"), ("demo", "--serve")])
def test_without_the_extra_one_sentence_names_it(project: Project, arguments: tuple[str, ...]) -> None:
    project.write(SLOW_SHOP)
    folder = project.folder / "missing" / "fastapi"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'fastapi'\", name='fastapi')\n")
    said = project.shoal(*arguments, code=2, fresh=True, PYTHONPATH=str(folder.parent)).stderr
    assert said == "Error: `shoal serve` needs fastapi, which is not installed. pip install 'shoal[serve]'\n"


@pytest.mark.parametrize(
    "code",
    ["import shoal", "import sys; sys.argv = ['shoal', '--help']; from shoal.cli.main import main; main()"],
)
def test_whoever_does_not_serve_loads_none_of_it(code: str) -> None:
    script = (
        f"import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    {code}\nimport sys\nprint([name for name in {LIBRARIES} if name in sys.modules],"
        "'shoal.control' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split("\n")[-2] == "[] False"
