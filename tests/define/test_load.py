"""Targets and the scrapers they name, and one clear sentence when there is none."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shoal.define.load import load_scraper
from shoal.errors import InvalidScraper, NotFound, ShoalError, UsageError

Project = Callable[[Mapping[str, str]], Path]
BOOKS = """
from shoal import Page, Scraper
books = Scraper("books")
@books.stage
def listing(page: Page): ...
"""
TWO = f"{BOOKS}\nother = Scraper('films')\nother.stage(listing.function)\nagain = books\n"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("books_a.py", "books"),
        ("books_a.py:books", "books"),
        ("books_a:books", "books"),
        ("inner/two.py:other", "films"),
        ("inner.two:books", "books"),
        ("inner/two.py:again", "books"),
        ("known", "books"),
        ("films", "films"),
    ],
)
def test_a_scraper_by_file_module_and_name(project: Project, target: str, name: str) -> None:
    folder = project({"books_a.py": BOOKS, "inner/two.py": TWO, "inner/__init__.py": ""})
    registered = {"known": "books_a.py", "films": "inner/two.py"}
    assert load_scraper(target, registered, folder).name == name


def test_files_beside_it_and_dataclasses_in_it_work(project: Project) -> None:
    folder = project(
        {
            "deep/site_words.py": "URL = 'https://shop.example/'\n",
            "deep/uses.py": "from dataclasses import dataclass\nfrom site_words import URL\n"
            f"{BOOKS}\n@dataclass\nclass Book:\n    title: 'str'\nbooks.start(URL)\n",
        }
    )
    assert load_scraper("deep/uses.py", {}, folder).has_sources


def complaint(project: Project, code: str, target: str = "broken.py") -> ShoalError:
    folder = project({"broken.py": code})
    with pytest.raises(ShoalError) as refused:
        load_scraper(target, {}, folder)
    assert "\n" not in refused.value.message
    return refused.value


def test_a_syntax_error_with_its_line(project: Project) -> None:
    error = complaint(project, "from shoal import Scraper\n\nbooks = Scraper('books'\n")
    assert isinstance(error, InvalidScraper)
    assert "is not valid Python: '(' was never closed (line 3)." in error.message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import math\n\nmath.sqrt(-1)\n", "(line 3): ValueError: math domain error"),
        ("def f():\n    raise KeyError('x')\n\nf()\n", "(line 2): KeyError: 'x'"),
        ("import sys\nsys.exit(3)\n", "(line 2): SystemExit: 3"),
        ("import no_such_library\n", "(line 1): ModuleNotFoundError: No module named 'no_such_library'"),
        ("from shoal import Scrapper\n", "(line 1): ImportError: cannot import name 'Scrapper' from 'shoal'"),
    ],
)
@pytest.mark.parametrize("target", ["broken.py", "broken:books"])
def test_an_exception_while_loading_with_the_authors_line(project: Project, code: str, words: str, target: str) -> None:
    error = complaint(project, code, target)
    assert isinstance(error, InvalidScraper)
    assert words in error.message


def test_a_wrong_use_of_shoal_is_explained_by_its_own_error(project: Project) -> None:
    error = complaint(project, f"{BOOKS}\n@books.stage(rate='fast')\ndef more(page: Page): ...\n")
    assert isinstance(error, UsageError)
    assert "'fast' is not a rate" in error.message
    assert "line 7" in error.message
    error = complaint(project, f"{BOOKS}\n@books.stage\ndef more(page): ...\n")
    assert isinstance(error, InvalidScraper)
    assert "more() (broken.py:7) has the parameter 'page'" in error.message


def test_no_scraper_and_two_scrapers(project: Project) -> None:
    none = complaint(project, "x = 1\n")
    assert "broken.py defines no scrapers." in none.message
    assert none.remedy == "Write one: books = Scraper('books')."
    two = complaint(project, TWO)
    assert "broken.py defines 2 scrapers." in two.message
    assert two.remedy == "Say which one you mean: broken.py:books, broken.py:other, broken.py:again."


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("missing.py", "There is no file"),
        ("broken.py:films", "broken.py has no scraper 'films'; it has books."),
        ("missing:books", "There is no module 'missing'."),
        ("missing.inner:books", "There is no module 'missing.inner'."),
        ("boks", "There is no scraper 'boks'."),
    ],
)
def test_targets_that_do_not_exist(project: Project, target: str, words: str) -> None:
    error = complaint(project, BOOKS, target)
    assert isinstance(error, NotFound)
    assert words in error.message
    assert error.remedy
