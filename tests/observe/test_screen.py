"""The live display, drawn to a recording console."""

import io
import re
import sys

from rich.console import Console

from shoal.model.views import Counts, WaitReason
from shoal.observe.logs import open_logs
from shoal.observe.meter import Meter
from shoal.observe.screen import MAX_PARTS, open_screen
from shoal.observe.snapshot import Snapshot
from tests.support.snapshots import moment, parted

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def drawn(*moments: Snapshot, width: int = 100) -> list[list[str]]:
    """The lines of each picture."""
    paper = io.StringIO()
    console = Console(file=paper, force_terminal=True, width=width, height=40, no_color=True, legacy_windows=False)
    pictures, meter = [], Meter()
    with open_screen(console, "shop") as screen:
        for second, one in enumerate(moments):
            paper.truncate(paper.seek(0))
            screen.update(meter.read(one, float(second)))
            plain = ESCAPE.sub("", paper.getvalue())
            pictures.append([line for line in plain.splitlines() if line.strip()])
    return pictures


def names(picture: list[str]) -> list[str]:
    """The names of the parts: rows with an indent."""
    return [line.split()[0] for line in picture[1:] if line.startswith("  ") and " more" not in line]


def test_only_the_busiest_parts_are_drawn_and_they_keep_their_places() -> None:
    before = {("page", f"p{n}"): Counts(ready=10 * n + 1) for n in range(8)}
    after = {part: Counts(ready=counts.ready % 7 + 1, done=1) for part, counts in before.items()}
    after["page", "p4"] = Counts(done=41)
    first, second = drawn(parted(before), parted(after))
    assert names(first) == ["p3", "p4", "p5", "p6", "p7"]
    assert "  and 3 more" in first
    assert len(names(second)) == MAX_PARTS
    assert {"p3", "p5", "p6", "p7"} <= set(names(second))
    assert "p4" not in names(second)


def test_a_run_of_one_part_has_one_bar() -> None:
    (picture,) = drawn(moment(WaitReason(code="ready", text="3 items are ready."), ready=3))
    assert len(picture) == 3
    assert "0/3" in picture[0]
    assert picture[1:] == ["-/min, 3 left", "waiting: free workers 100%. 3 items are ready."]


def test_nothing_is_wider_than_the_terminal() -> None:
    wide = WaitReason(code="run_paused", text="The run is paused. " * 20)
    parts = {("a-stage-with-a-long-name", f"a partition with a long name {n}"): Counts(ready=n) for n in range(1, 9)}
    for picture in drawn(parted(parts, wide), width=60):
        assert max(map(len, picture)) <= 60
        assert len(names(picture)) == MAX_PARTS


def test_it_makes_way_and_comes_back_below_what_was_printed_meanwhile() -> None:
    paper = io.StringIO()
    console = Console(file=paper, force_terminal=True, width=60, height=24, no_color=True, legacy_windows=False)
    out, err = sys.stdout, sys.stderr
    with open_screen(console, "shop") as screen:
        screen.update(Meter().read(moment(ready=3), 0.0))
        assert sys.stderr is not err
        screen.suspend()
        assert (sys.stdout, sys.stderr) == (out, err)
        before = len(paper.getvalue())
        screen.update(Meter().read(moment(ready=2, done=1), 1.0))
        console.print("(Pdb) p x")
        meanwhile = paper.getvalue()[before:]
        assert "shop" not in meanwhile
        screen.resume()
        screen.update(Meter().read(moment(ready=1, done=2), 2.0))
        drawn_again = paper.getvalue()[before + len(meanwhile) :]
        assert "2/3" in drawn_again
        assert "\x1b[1A" not in drawn_again.partition("2/3")[0], "the cursor does not go up into the prompt's lines"
    assert (sys.stdout, sys.stderr) == (out, err)


def test_printed_lines_are_above_the_bars_without_secrets_and_escapes() -> None:
    paper = io.StringIO()
    console = Console(file=paper, force_terminal=True, width=100, no_color=True, legacy_windows=False)
    with open_screen(console, "shop") as screen:
        screen.update(Meter().read(moment(ready=3), 0.0))
        logs = open_logs(format="console", level="info", file=None, stream=screen.print_line)
        logs.log.info("fetched", url="http://me:s3cret@h/\x1b[31m")
        logs.close()
    said = paper.getvalue()
    assert "s3cret" not in said
    assert "[31m" in said
    assert "\x1b[31m" not in said
    assert said.index("fetched") < said.rindex("waiting: free workers")
