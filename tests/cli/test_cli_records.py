"""Record keys, comparison, coverage and replay as an operator types them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Finished, Shoal
from tests.support.site import Site

CODE = """
import os, signal
from shoal import Page, Scraper

offers = Scraper("offers")

@offers.stage(retries=0, record_key="sku")
async def page(page: Page):
    number = int(page.url.rpartition("/")[2])
    if os.environ.get("KILL_AT") == str(number):
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("FAIL_AT") == str(number):
        raise ValueError("no offer on this page")
    price = float(os.environ["PRICE"]) if number == 2 else 1.0
    yield {"sku": f"A{number}", "price": price, "offer": {"stock": number}}
    yield {"sku": "shared", "price": 0.0}

offers.start(f"SITE/page/{n}" for n in range(1, int(os.environ.get("PAGES", 4))))
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture
def offers(site: Site, shoal: Shoal, tmp_path: Path) -> Shoal:
    (tmp_path / "offers.py").write_text(CODE.replace("SITE", site.url))

    def run(*arguments: str, **variables: str) -> Finished:
        return shoal(*arguments, **{"PRICE": "2", "SHOAL_STORE": "pages", "SHOAL_CONCURRENCY": "1", **variables})

    return run


def lines(finished: Finished, code: int = 0) -> list[dict[str, Any]]:
    assert finished.returncode == code, finished
    return [json.loads(line) for line in finished.stdout.splitlines()]


def prices(offers: Shoal, run: str) -> dict[str, float]:
    found = lines(offers("results", "sample", run, "--json", "-n", "100"))
    assert len({record["sku"] for record in found}) == len(found)
    return {record["sku"]: record["price"] for record in found}


def test_runs_are_compared_by_record_key(offers: Shoal) -> None:
    first = offers("run", "offers.py")
    assert "records by key: 4 new, 2 duplicates dropped" in first.stdout
    (run,) = lines(offers("runs", "ls", "--json"))
    assert (run["records"], run["new_records"], run["dropped_records"]) == (4, 4, 2)
    (second,) = lines(offers("run", "offers.py", "--fresh", "--json", PRICE="3", PAGES="5"))
    text = offers("runs", "compare", run["run_id"], second["run_id"])
    assert text.returncode == 0
    assert 'new      "A4"' in text.stdout
    assert "    price: 2.0 -> 3.0" in text.stdout
    assert "Records: 1 new, 1 changed, 0 gone, 3 unchanged" in text.stdout
    _, *changes, totals = lines(offers("runs", "compare", run["run_id"], "latest", "--json", "--exit-code"), code=1)
    assert {(change["change"], change["key"]) for change in changes} == {("new", '"A4"'), ("changed", '"A2"')}
    assert totals == {"kind": "records", "new": 1, "changed": 1, "gone": 0, "unchanged": 3, "unknown_gone": []}
    assert "Records: 1 new, 1 changed" in offers("runs", "compare").stdout  # with the run before it
    back = lines(offers("runs", "compare", "latest", run["run_id"], "--json", "--limit", "0"))
    assert (len(back), back[-1]["gone"]) == (2, 1)
    assert len(lines(offers("runs", "compare", "latest", run["run_id"], "--json", "--no-records", "--exit-code"))) == 1


def test_replay_survives_a_kill_and_says_what_failed(offers: Shoal, site: Site) -> None:
    (run,) = lines(offers("run", "offers.py", "--json"))
    visits = len(site.visits())
    refused = offers("items", "replay", run["run_id"])
    assert refused.returncode == 2
    assert "To be replayed: 3 items" in refused.stderr
    assert offers("items", "replay", "latest", "-y", PRICE="9", KILL_AT="3").returncode == -9
    assert prices(offers, run["run_id"]) == {"A1": 1.0, "A2": 9.0, "A3": 1.0, "shared": 0.0}
    failed = offers("items", "replay", "latest", "-y", PRICE="7", FAIL_AT="2")
    assert failed.returncode == 1
    assert "1 item failed; the old results stay" in failed.stderr
    assert "no offer on this page" in failed.stderr
    assert prices(offers, run["run_id"])["A2"] == 9.0
    (summary,) = lines(offers("items", "replay", "latest", "2", "3", "-y", "--json", PRICE="7"))
    assert (summary["replayed"], summary["failed"], summary["run_id"]) == (2, 0, run["run_id"])
    assert prices(offers, run["run_id"]) == {"A1": 1.0, "A2": 7.0, "A3": 1.0, "shared": 0.0}
    (shown,) = lines(offers("items", "show", "latest", "2", "--json"))
    assert (shown["state"], len(shown["attempts"])) == ("done", 3)
    assert len(site.visits()) == visits
    nowhere = offers("items", "replay", "latest", "-y", "--scraper", "nosuch.py")
    assert nowhere.returncode != 0
    assert not offers("db", "check", "--deep").returncode


def test_a_field_that_is_suddenly_empty_is_a_warning(offers: Shoal, tmp_path: Path) -> None:
    first = offers("run", "offers.py", PAGES="25")
    assert "Check the field" not in first.stderr
    broken = (tmp_path / "offers.py").read_text().replace('"price": price', '"price": None')
    (tmp_path / "offers.py").write_text(broken)
    second = offers("run", "offers.py", "--fresh", "-q", PAGES="25")
    assert second.returncode == 0
    assert "Check the field: price is empty in 24 of 25 records of page; last run 0%." in second.stderr
    (report,) = lines(offers("run", "offers.py", "--fresh", "--json", PAGES="25"))
    assert report["coverage"] == []  # the last run was not better
    assert "coverage" in offers("alerts", "ls").stdout
