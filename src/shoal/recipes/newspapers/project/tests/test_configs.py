"""Every file can be used, and saved pages are read as the live ones would be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PAPER = "configs/fiji/fiji_dispatch.yaml"


def shoal(*arguments):
    command = [sys.executable, "-m", "shoal", *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.fixture
def site(shoal_site):
    shoal_site.pages(PROJECT / "tests" / "pages")
    return shoal_site.url


def tried(target, url):
    """What the page gives: records and further items."""
    done = shoal("try", target, url, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_file_can_be_used():
    checked = shoal("newspapers", "check", "configs/")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_listing_leads_to_its_articles(site):
    found = [line for line in tried(PAPER, f"{site}/listing.html") if line["kind"] == "item"]
    assert [item["url"] for item in found] == [f"{site}/story.html", f"{site}/other.html"]
    assert found[0]["payload"] == {"title": "Choir welcome a weather station", "date": "2024-06-05"}


def test_an_article_is_one_record_without_its_byline(site):
    found = tried(f"{PAPER}:article", f"{site}/story.html")
    [record] = [line["record"] for line in found if line["kind"] == "record"]
    assert record["body"] == "About 40 people came to Reef Town. It took 12 days."
    assert record["tags"] == ["Sea", "Music"]
    assert (record["source"], record["country"]) == ("Fiji Dispatch", "fiji")
