"""Two people at two terminals on two nodes type the same command, and share a run."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.fork_server import COMMAND, at
from tests.support.node_lab import Fleet
from tests.support.node_runs import PATIENCE, pages_of, prove, start_together, visits_from
from tests.support.project import Project, clean_environment

PAGES = 40
INDIA = """
    india = Scraper("india")

    @india.stage(concurrency=24)
    async def page(page: Page):
        await asyncio.sleep(0.1)
        yield {"url": page.url}
"""


class Terminal:
    """What a command says on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self.said = ""
        self._screen = screen
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join()
        return code

    def _read(self) -> None:
        try:
            while text := os.read(self._screen, 4096):
                self.said += text.decode(errors="replace")
        except OSError:  # how Linux says that nobody has the other end any more
            return


@contextmanager
def at_terminal(project: Project, *arguments: str) -> Iterator[Terminal]:
    screen, line = os.openpty()
    environment = clean_environment(project.folder, SHOAL_LEDGER=project.ledger, TERM="xterm")
    process = subprocess.Popen(
        [*at(project.entry, project.folder), *COMMAND, *arguments],
        env=environment,
        stdin=line,
        stdout=line,
        stderr=line,
        start_new_session=True,
    )
    os.close(line)
    terminal = Terminal(process, screen)
    try:
        yield terminal
    finally:
        process.kill()
        terminal.wait()
        os.close(screen)


def test_two_terminals_share_a_run(fleet: Fleet) -> None:
    """`shoal worker india --run-id ID`, twice: both have work, no page is visited twice, nothing is stored twice."""
    fleet.write(INDIA, "india.py")
    for project in (fleet.operator, *fleet.nodes):
        (project.folder / "shoal.toml").write_text(
            'batch_size = 4\nconcurrency = 2\n[scrapers.india]\ntarget = "india.py"\n'
        )
    with fleet.lab.site(pages=PAGES, delay=0.1) as site, ExitStack() as stack:
        pages = pages_of(site, PAGES)
        said = fleet.operator.shoal("enqueue", "india", "--urls-file", fleet.operator.urls(pages)).stdout
        run_id = json.loads(said)["run_id"]
        command = ("worker", "india", "--run-id", run_id)
        terminals = start_together(
            fleet,
            run_id,
            lambda: [stack.enter_context(at_terminal(project, *command)) for project in fleet.nodes[:2]],
            2,
        )
        assert [terminal.wait() for terminal in terminals] == [0, 0]
        visits = site.visits()
    prove(fleet, visits, pages)
    for node, terminal in zip(fleet.lab.nodes, terminals, strict=False):
        done = len(visits_from(visits, node.address)) - 1  # robots.txt
        assert done > 0
        assert f"{done} done, 0 dead" in terminal.said
        assert "No more records to claim." in terminal.said
