"""What docs/operations.md says about numbers: measured, never constants."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.docs.test_docs import section, text_of
from tests.support.project import Project

SLOW = """
    slow = Scraper("slow")

    @slow.stage
    async def one(item: Item):
        await asyncio.sleep(0.1)
        yield {}

    slow.start(one.item(key=str(n)) for n in range(200))
"""


def test_the_time_left_is_measured(project: Project) -> None:
    """S0.30, S1.27, S3.9, S3.28: what is left divided by the speed of the last minutes, as a range around it."""
    project.write(SLOW, "slow.py")
    running = project.start("run", "slow.py", "-j", "2")
    told: dict[str, Any] = {"eta_seconds": None}
    while told["eta_seconds"] is None:  # nobody promises an end before something is done, or when nobody works on it
        assert not running.is_over
        found = project.start("status", "latest", "--json")
        if found.wait() == 0:
            (told,) = [json.loads(line) for line in found.stdout.splitlines()]
    # Two at once, a tenth of a second each: at most 20 a second, and what the start of the process took is in it.
    assert 0 < told["rate_per_minute"] <= 20 * 60
    low, high = told["eta_seconds"]
    left = 60 * (told["total"] - told["done"]) / told["rate_per_minute"]
    assert low <= left <= high
    assert high < 3 * left


@pytest.mark.parametrize("title", ["Numbers", "Guidance"])
def test_no_rates_are_promised(title: str) -> None:
    """S0.30, S1.27, S3.28: pages per hour depend on the site, so the guide has formulas instead."""
    assert not re.search(
        r"\d+ ?(?:pages|profiles|targets|items|URLs?) ?(?:per|/) ?\w+", section(text_of("operations.md"), title)
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("S0.3", ["batch_size", "10 to 20", "100 to 200", "50"]),
        ("S0.7", ["lease", "heartbeat", "30 s"]),
        ("S0.30", ["W x c / s", "H / d"]),
        ("S1.27", ["U / (W x r)"]),
        ("S3.28", ["U / (T x r)"]),
    ],
)
def test_there_is_a_formula_for_every_number(number: str, words: list[str]) -> None:
    """S0.3, S0.7, S0.30, S1.27, S3.28"""
    text = section(text_of("operations.md"), "Numbers")
    assert [word for word in words if word not in text] == [], number


@pytest.mark.parametrize("trouble", ["429 or 403", "ungranted locks", "idle", "it is slow"])
def test_there_is_advice_on_blocks_and_slowness(trouble: str) -> None:  # S3.21
    assert re.search(rf"^\| .*{trouble}.* \|$", section(text_of("operations.md"), "Guidance"), re.MULTILINE)
