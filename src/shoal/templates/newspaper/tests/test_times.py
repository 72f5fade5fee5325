"""Saved pages, served on this machine, are read with `shoal try` as the real ones would be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PAPER = "configs/fiji/times.yaml"
HERE = Path(__file__).parent


@pytest.fixture
def site(shoal_site):
    shoal_site.pages(HERE / "pages")
    return shoal_site.url


def tried(target, url):
    """What the page gives: records and further items."""
    command = [sys.executable, "-m", "shoal", "try", target, url, "--json"]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_listing_leads_to_its_articles(site):
    found = [line for line in tried(PAPER, f"{site}/listing.html") if line["kind"] == "item"]
    assert [item["url"] for item in found] == [f"{site}/article.html", f"{site}/other.html"]
    assert found[0]["payload"] == {"title": "Larch Planter"}


def test_an_article_is_one_record(site):
    [record] = [
        line["record"] for line in tried(f"{PAPER}:article", f"{site}/article.html") if line["kind"] == "record"
    ]
    assert record["body"] == "Larch planter for the shady corner. It keeps for years."
    assert record["tags"] == ["Garden"]
    assert (record["source"], record["country"]) == ("Times", "fiji")
