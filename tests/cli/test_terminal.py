"""`shoal run` and `shoal worker` on a real terminal: the panel, prints of handlers, the debugger, Ctrl-C."""

import time

import pytest

from tests.support.project import Project
from tests.support.terminal import Terminal

STAGES = """
    import time
    from shoal import Item, Permanent, Scraper

    shop = Scraper("shop")

    @shop.stage(concurrency=2, timeout={timeout}, retries=0)
    {async_}def page(item: Item) -> dict[str, object]:
        time.sleep(0.01)
        if item.key == "stop":
            secret = 6 * 7
            breakpoint()
            print(f"the {{secret}}th line")
        if item.key.startswith("bad"):
            raise Permanent("no price here")
        return {{"key": item.key}}

    shop.start(page.item(key=key) for key in [*KEYS])
"""


def write(project: Project, keys: str, *, async_: bool = False, timeout: int = 20) -> None:
    code = STAGES.format(async_="async " if async_ else "", timeout=timeout)
    project.write(code.replace("*KEYS", keys))


@pytest.mark.parametrize("async_", [False, True])
def test_breakpoint_gives_a_prompt_and_the_panel_comes_back(project: Project, async_: bool) -> None:
    """The stage's timeout passes at the prompt, and for an `async` handler the loop stands still: both wait."""
    write(project, '"a", "stop", *(f"b{n}" for n in range(49))', async_=async_, timeout=1)
    with Terminal(project, "run", "shop.py", "-j", "2") as terminal:
        prompt = terminal.wait_for("(Pdb) ")
        terminal.type("p secret")
        answer = terminal.wait_for("42", after=prompt)
        time.sleep(2.5)  # longer than the timeout, and than the loop may be blocked without a warning
        shown = len(terminal.text)
        terminal.type("n")
        second = terminal.wait_for("(Pdb) ", after=answer)
        assert "shop 2" not in terminal.text[prompt:second], "no panel while the debugger has the terminal"
        assert "blocked" not in terminal.text[prompt:shown]
        terminal.type("c")
        terminal.wait_for("the 42th line", after=second)
        assert terminal.wait() == 0, terminal.text
    assert "51 done, 0 dead" in terminal.text
    assert project.counts().done == 51
    assert [len(tries) for tries in project.attempts().values()] == [1] * 51


def test_leaving_the_debugger_stops_the_run_and_loses_nothing(project: Project) -> None:
    write(project, '"stop", *(f"b{n}" for n in range(150))')
    with Terminal(project, "run", "shop.py", "-j", "1", "--set", "batch_size=1") as terminal:
        terminal.wait_for("(Pdb) ")
        terminal.type("q")
        assert terminal.wait() == 130, terminal.text
    assert "The debugger was left." in terminal.text
    assert "--resume" in terminal.text
    counts = project.counts()
    assert (counts.total, counts.dead, counts.leased) == (151, 0, 0)
    assert counts.remaining > 100


def test_output_that_goes_elsewhere_leaves_the_terminal_to_the_debugger(project: Project) -> None:
    """stdout is a file: the prompt is on the terminal all the same."""
    write(project, '"stop"')
    with (
        (project.folder / "out.txt").open("w") as out,
        Terminal(project, "run", "shop.py", stdout=out) as terminal,
    ):
        prompt = terminal.wait_for("(Pdb) ")
        terminal.type("p secret")
        terminal.wait_for("42", after=prompt)
        terminal.type("c")
        assert terminal.wait() == 0, terminal.text
    assert (project.folder / "out.txt").read_text().startswith("the 42th line\n")


def test_failures_have_a_line_in_the_panel_and_none_in_the_log(project: Project) -> None:
    write(project, '*(f"bad{n}" for n in range(30)), *(f"good{n}" for n in range(150))')
    with Terminal(project, "run", "shop.py", "-j", "1", "--max-dead", "50%") as terminal:
        terminal.wait_for("no price here x 30 dead, last: bad29")
        assert terminal.wait() == 0
    assert "attempt failed" not in terminal.text
    assert "180 attempts here" in terminal.text
    log = next((project.folder / ".shoal/logs").glob("*.log")).read_text()
    assert '"attempt failed"' in log


def test_a_worker_shows_the_run_and_ctrl_c_drains_it(project: Project) -> None:
    write(project, '*(f"b{n}" for n in range(2000))')
    project.shoal("enqueue", "shop.py")
    with Terminal(project, "worker", "shop.py", "-j", "1", columns=120) as terminal:
        terminal.wait_for("/2,000")
        terminal.wait_for("left, ")
        terminal.type("\x03", end="")
        assert terminal.wait() == 130, terminal.text
    assert "Stopping" in terminal.text
    assert project.counts().leased == 0
