"""Scrapers declared in YAML: their common keys, and the code that gets their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shoal.define.load import load_scraper
from shoal.define.yaml_file import MAX_BYTES
from shoal.define.yaml_scraper import YamlHeader, read_yaml_header
from shoal.errors import InvalidScraper, NotFound, ShoalError

Project = Callable[[Mapping[str, str]], Path]
TEMPLATE = """
from dataclasses import dataclass
from shoal import Page, Scraper

@dataclass
class Paper:
    name: str
    country: str
    section: str
    pages: int = 3

paper = Scraper("paper", settings=Paper)

@paper.stage
async def front(page: Page, settings: Paper): ...

bare = Scraper("bare")
bare.stage(name="only")(lambda: None)

def made(declared):
    scraper = Scraper(declared.name)
    scraper.stage(name=declared.settings["section"])(lambda: None)
    return scraper

def nothing(declared):
    return None

number = 7
"""


def declared(folder: Path, text: str, name: str = "fiji/times.yaml") -> YamlHeader:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return read_yaml_header(file)


def test_missing_keys_come_from_the_path(tmp_path: Path) -> None:
    found = declared(tmp_path, "base_url: https://times.example\n")
    assert (found.name, found.country, found.scraper_name) == ("times", "fiji", "fiji.times")
    assert found.scraper == "shoal.recipes.newspapers.kind:newspaper"
    assert (found.group, found.priority, found.timeout, found.memory, found.stale) == (None, 0, None, None, None)
    assert found.enabled is True
    assert found.settings == {"base_url": "https://times.example"}


def test_every_common_key(tmp_path: Path) -> None:
    found = declared(
        tmp_path,
        "name: Fiji Tímes\ncountry: Papua New Guinea\nscraper: templates/paper.py:paper\ngroup: rnz\npriority: -3\n"
        "timeout: 7200\nmemory: 512\nstale: 600.5\nenabled: false\nfrom: 2024-01-31\nnested: {a: [1, null, true]}\n",
    )
    assert found.scraper_name == "papua_new_guinea.fiji_times"
    assert (found.name, found.country) == ("Fiji Tímes", "Papua New Guinea")
    assert (found.scraper, found.group, found.priority) == ("templates/paper.py:paper", "rnz", -3)
    assert (found.timeout, found.memory, found.stale, found.enabled) == (7200, 512, 600.5, False)
    assert found.settings == {"from": "2024-01-31", "nested": {"a": [1, None, True]}}, "a date stays a text"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("country: no\n", "line 1: country is False; it must be a text; put it in quotes."),
        ("name: 1974\n", "line 1: name is 1974; it must be a text"),
        ("a: 1\nname: 北京\n", "line 2: name is '北京', which has no letter from a to z and no digit."),
        (f"name: {'x' * 200}\n", "is not a valid scraper name"),
        ("priority: high\n", "line 1: priority is 'high'; it must be a whole number from -1000000 to 1000000."),
        ("timeout: 0\n", "line 1: timeout is 0; it must be a number of seconds from 1 to "),
        ("stale: .inf\n", "line 1: stale is inf; it must be a number of seconds"),
        ("memory: 0.5\n", "line 1: memory is 0.5; it must be a whole number of MB from 16 to 1048576."),
        ("enabled: maybe\n", "line 1: enabled is 'maybe'; it must be true or false."),
        ("scraper: paper\n", "line 1: scraper is 'paper'; it must be file.py:name or module:name"),
        ("a: 1\nb: 2\na: 3\n", "line 3: a is given twice."),
        ("a: 1\n2: b\n", "line 2: 2 is no name of a key."),
        ("a: 1\n b: 2\n", "line 2: this is not valid YAML: mapping values are not allowed here."),
        ("- a\n", "line 1: this is no mapping of keys to values."),
        ("", "line 1: this is no mapping of keys to values."),
        ("a: 1\n---\nb: 2\n", "line 2: this is not valid YAML: but found another document."),
        ("a: !!python/object/apply:os.getcwd []\n", "line 1: the tag !!python/object/apply:os.getcwd is not allowed."),
        ("a: !!binary aGk=\n", "line 1: the tag !!binary is not allowed."),
        ("a: 0x_\n", "is not valid YAML"),
        ("a: '\x01'\n", "line 1: this is not valid YAML: the character #x0001."),
        ("a: &a [*a]\n", "holds more than 20,000 values, or nests them more than 20 deep."),
        ("a: " + "[" * 5_000, "holds more than 20,000 values, or nests them more than 20 deep."),
        (
            "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
            "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]\n"
            "e: [*d, *d, *d]\n",
            "holds more than 20,000 values",
        ),
        (f"a: {'x' * MAX_BYTES}\n", "is larger than 256 kB."),
    ],
)
def test_an_error_in_a_file_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidScraper) as refused:
        declared(tmp_path, text)
    assert words in refused.value.message
    assert "times.yaml" in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.remedy


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"There is no file .*times\.yaml"):
        load_scraper("times.yaml", {}, tmp_path)


def test_a_file_gives_its_settings_to_a_scraper(project: Project) -> None:
    folder = project(
        {
            "papers.py": TEMPLATE,
            "fiji/times.yaml": "scraper: papers.py:paper\nsection: sport\n",
            "fiji/sun.yaml": "scraper: papers:paper\nsection: news\npages: 9\n",
            "tonga/sun.yaml": "name: Sun\nscraper: papers:paper\nsection: sea\n",
        }
    )
    papers = {}
    for path in ("fiji/times.yaml", "fiji/sun.yaml", "tonga/sun.yaml"):
        papers[path] = load_scraper(path, {}, folder)
        papers[path].configure(settings={}, stages={"front": {"retries": 7}})
    assert [paper.name for paper in papers.values()] == ["fiji.times", "fiji.sun", "tonga.sun"]
    assert papers["fiji/sun.yaml"].settings.pages == 9
    assert papers["tonga/sun.yaml"].settings.name == "Sun"
    assert papers["fiji/times.yaml"].run_spec().settings == {"name": "times", "country": "fiji", "section": "sport"}
    papers["fiji/sun.yaml"].configure(settings={"pages": 4}, stages={})
    assert papers["fiji/sun.yaml"].settings.pages == 4, "the configuration goes over the file"
    assert papers["tonga/sun.yaml"].settings.pages == 3, "and belongs to one of them"


def test_a_file_gives_its_settings_to_a_function(project: Project) -> None:
    folder = project({"papers.py": TEMPLATE, "fiji/times.yaml": "scraper: papers.py:made\nsection: sport\n"})
    scraper = load_scraper("known", {"known": "fiji/times.yaml"}, folder)
    assert (scraper.name, list(scraper.stages)) == ("fiji.times", ["sport"])
    scraper.configure(settings={}, stages={})
    assert scraper.run_spec().settings == {"section": "sport"}


def test_the_code_version_changes_with_the_file_and_with_the_code(project: Project) -> None:
    folder = project({"papers.py": TEMPLATE, "a.yaml": "scraper: papers.py:made\nsection: sport\n"})
    versions = [load_scraper("a.yaml", {}, folder).code_version]
    (folder / "a.yaml").write_text("scraper: papers.py:made\nsection: news\n")
    versions.append(load_scraper("a.yaml", {}, folder).code_version)
    (folder / "papers.py").write_text(TEMPLATE + "\n# another\n")
    versions.append(load_scraper("a.yaml", {}, folder).code_version)
    assert None not in versions
    assert len(set(versions)) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scraper: papers.py:paper\npages: 2\n", "line 1: section is missing."),
        ("scraper: papers.py:paper\nsection: a\npage: 2\n", "line 3: there is no key page; did you mean pages?"),
        (
            "scraper: papers.py:paper\nsection: a\npriorty: 2\n",
            "line 3: there is no key priorty; did you mean priority?",
        ),
        ("scraper: papers.py:paper\nsection: a\npages: b\n", "line 3: pages is not right: it must be a whole number"),
        ("a: 1\nscraper: papers.py:bare\n", "line 1: a is for papers.py:bare, which takes no settings."),
        ("scraper: papers.py:papr\n", "line 1: papers.py has no 'papr'."),
        ("scraper: nowhere:paper\n", "line 1: There is no module 'nowhere'."),
        ("scraper: papers.py:nothing\n", "line 1: papers.py:nothing makes no Scraper."),
        ("scraper: papers.py:number\n", "line 1: papers.py:number is neither a Scraper nor a function that makes one."),
        ("scraper: broken.py:paper\n", "broken.py fails when it is loaded (line 1): ZeroDivisionError"),
    ],
)
def test_settings_that_do_not_fit_the_code_are_one_sentence(project: Project, text: str, words: str) -> None:
    folder = project({"papers.py": TEMPLATE, "broken.py": "1 / 0\n", "fiji/times.yaml": text})
    with pytest.raises(ShoalError) as refused:
        load_scraper("fiji/times.yaml", {}, folder)
    assert words in refused.value.message
    assert "times.yaml" in refused.value.message
    assert refused.value.remedy
