"""`shoal newspapers check` and `import`: all mistakes of all files at once; what is mechanical is corrected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.recipes.newspapers import PROJECT
from shoal.recipes.newspapers.checking import check_folder
from shoal.recipes.newspapers.importing import import_folder
from tests.support.project import Project

GOOD = """\
base_url: https://paper.example
listing:
  type: pagination
  url_template: https://paper.example/news/{num}
selectors:
  thumbnail:
    container: .card
    url: h2 a
  article:
    body: .text
"""
BAD = """\
name: 7
base_url: paper.example
listing:
  type: pagination
  url_template: ["https://paper.example/news/{num}", "https://paper.example/news"]
  batch_sise: 3
selectors:
  thumbnail:
    container: '.card['
  article:
    body: .text
rate_limit: "0.5"
cleaning:
  body: nowhere
author: me
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".yaml").write_text(text)
    return folder


def test_all_mistakes_of_all_files_at_once(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "configs", fiji__bad=BAD, tonga__good=GOOD, samoa__broken="a: [", fiji__other=GOOD + "x: 1"
    )
    checked = check_folder(folder, tmp_path)
    found = {(problem.path.stem, problem.line): problem.message for problem in checked.mistakes}
    assert checked.newspapers == 4
    assert list(found) == [
        *(("bad", line) for line in (1, 2, 5, 6, 8, 9, 12, 14, 15)),
        ("other", 11),
        ("broken", 1),
    ]
    assert found["bad", 8] == "selectors.thumbnail.url is missing."
    assert found["bad", 6] == "there is no key listing.batch_sise; did you mean listing.batch_size?"
    assert "has no {num}" in found["bad", 5]
    assert "cleaning.body has no function 'nowhere'" in found["bad", 14]
    assert all(problem.remedy for problem in checked.problems)


WRONG_TYPE = """\
name: 7
base_url: paper.example
listing:
  batch_sise: 3
  end_date: 2024-06-31
  start_date: 2024-01-01
  url_template: /archive/{year}/{month}/{dy}/
  type: archiv
selectors:
  thumbnail:
    container: '.card['
    url: h2 a
  article:
    body: .text
rate_limit: fast
cleaning:
  body: nowhere
"""


@pytest.mark.parametrize("written", ["archiv", "daily"])
def test_a_wrong_type_hides_no_other_mistake(tmp_path: Path, written: str) -> None:
    file = write(tmp_path, paper=WRONG_TYPE.replace("archiv\n", f"{written}\n")) / "paper.yaml"
    mistakes = check_folder(file, tmp_path).mistakes
    assert [problem.line for problem in mistakes] == [1, 2, 4, 5, 7, 8, 11, 15, 17], "in the order of the lines"
    by_line = {problem.line: problem for problem in mistakes}
    assert "has {dy}, which is not filled in" in by_line[7].message
    assert by_line[7].remedy == "Write {day}."
    assert not any("nothing was started" in problem.remedy for problem in mistakes), "check starts nothing"


def test_a_key_of_some_type_is_right_while_the_type_is_unknown(tmp_path: Path) -> None:
    text = GOOD.replace("type: pagination", "type: none_of_them\n  start_date: 2024-01-01\n  start_page: 2")
    write(tmp_path / "old", fiji__bad=text)
    imported = import_folder(tmp_path / "old", tmp_path / "new", tmp_path)
    assert imported.corrections == ()
    assert [problem.line for problem in imported.checked.mistakes] == [3]


def test_two_files_for_one_newspaper(tmp_path: Path) -> None:
    folder = write(tmp_path / "configs", fiji__times=GOOD, samoa__times=GOOD + "country: fiji\n", tonga__times=GOOD)
    [mistake] = check_folder(folder, tmp_path).mistakes
    assert "are both fiji" in mistake.message


def test_two_files_for_one_newspaper_are_a_mistake_whatever_else_they_have(tmp_path: Path) -> None:
    noted = GOOD.replace(".card", "card wide") + "country: fiji\n"
    folder = write(tmp_path / "configs", fiji__times=GOOD, samoa__times=noted, tonga__times=noted + "x: 1\n")
    checked = check_folder(folder, tmp_path)
    clashes = [problem.path.parent.name for problem in checked.mistakes if "are both fiji" in problem.message]
    assert clashes == ["samoa", "tonga"]
    assert [problem.message for problem in checked.mistakes if "x" in problem.keys] == ["there is no key x."]
    assert sum(problem.note for problem in checked.problems) == 2, "notes are shown beside mistakes"


def test_a_file_with_very_many_mistakes_says_that_there_are_more(tmp_path: Path) -> None:
    text = GOOD + "".join(f"unknown_{number}: 1\n" for number in range(60))
    checked = check_folder(write(tmp_path, paper=text) / "paper.yaml", tmp_path)
    assert len(checked.mistakes) == 50
    assert checked.problems[-1].message == "there are more mistakes than these 50."
    fewer = write(tmp_path, paper=text.partition("unknown_50")[0]) / "paper.yaml"
    assert len(check_folder(fewer, tmp_path).problems) == 50, "these are all"


def test_functions_are_found_wherever_check_is_started(tmp_path: Path) -> None:
    write(tmp_path / "configs", fiji__times=GOOD + "cleaning:\n  body: own\n")
    (tmp_path / "configs/cleaning.py").write_text("def own(body):\n    return body\n")
    (tmp_path / "elsewhere").mkdir()
    assert check_folder(tmp_path / "configs", tmp_path / "elsewhere").problems == ()
    (tmp_path / "configs/cleaning.py").rename(tmp_path / "cleaning.py")
    [mistake] = check_folder(tmp_path / "configs", tmp_path / "elsewhere").mistakes
    assert "cleaning.body has no function 'own'" in mistake.message, "what lies above the collection may be anybody's"


def test_import_leaves_a_client_that_there_is_not(tmp_path: Path) -> None:
    """Over HTTP its pages might have no text; nobody would know why nothing is found."""
    write(tmp_path / "old", fiji__times=GOOD + "client: browser\n")
    imported = import_folder(tmp_path / "old", tmp_path / "new", tmp_path)
    assert imported.corrections == ()
    [mistake] = imported.checked.mistakes
    assert "Write client: http if its pages have their text without one" in mistake.remedy
    assert (tmp_path / "new/fiji/times.yaml").read_text().endswith("client: browser\n")


def test_the_command_exits_with_1_and_writes_json(project: Project) -> None:
    write(project.folder / "configs", fiji__bad=BAD, tonga__good=GOOD)
    done = project.shoal("newspapers", "check", "configs/", "--json", code=1)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["kind"] for line in lines} == {"mistake"}
    assert lines[0]["file"] == "configs/fiji/bad.yaml"
    assert "2 newspapers: 9 mistakes in 1 file." in done.stderr
    text = project.shoal("newspapers", "check", "configs/fiji/bad.yaml", code=1).stdout
    assert "configs/fiji/bad.yaml:2: base_url: 'paper.example' is not a valid absolute URL" in text
    assert "Write an absolute URL." in text
    project.shoal("newspapers", "check", "configs/tonga/", code=0)


def test_import_corrects_what_is_mechanical(project: Project) -> None:
    text = BAD.replace("paper.example\n", "https://paper.example\n").replace("'.card['", ".card wide\n    url: h2 a")
    text = text.replace(
        '["https://paper.example/news/{num}", "https://paper.example/news"]', "https://paper.example/{num}"
    )
    write(project.folder / "old", fiji__bad=text, tonga__good=GOOD)
    (project.folder / "old/cleaning.py").write_text("def nowhere(text):\n    return text\n")
    done = project.shoal("newspapers", "import", "old", "configs")
    assert "2 files copied, 5 lines changed." in done.stderr
    copied = (project.folder / "configs/fiji/bad.yaml").read_text()
    assert 'name: "7"' in copied
    assert "batch_size: 3" in copied
    assert "container: .card.wide" in copied
    assert "rate_limit: 0.5" in copied
    assert "# author: me" in copied
    assert (project.folder / "configs/tonga/good.yaml").read_text() == GOOD
    refused = project.shoal("newspapers", "import", "old", "configs", code=2)
    assert "exists already; nothing was copied." in refused.stderr


def test_import_keeps_the_keys_of_a_misspelt_type(tmp_path: Path) -> None:
    write(tmp_path / "old", fiji__bad=WRONG_TYPE)
    import_folder(tmp_path / "old", tmp_path / "new", tmp_path)
    copied = (tmp_path / "new/fiji/bad.yaml").read_text()
    assert "  type: archive\n" in copied
    assert "  start_date: 2024-01-01\n" in copied
    assert "  batch_size: 3\n" in copied
    assert "#" not in copied


def test_what_cannot_be_corrected_is_listed(tmp_path: Path) -> None:
    write(tmp_path / "old", fiji__bad=BAD)
    imported = import_folder(tmp_path / "old", tmp_path / "new", tmp_path)
    assert {problem.line for problem in imported.checked.mistakes} == {2, 5, 8, 9, 14}
    assert (tmp_path / "old/fiji/bad.yaml").read_text() == BAD


def test_every_file_of_the_project_is_right(tmp_path: Path) -> None:
    for name, text in PROJECT.files():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    checked = check_folder(tmp_path / "configs", tmp_path)
    assert (checked.newspapers, checked.mistakes) == (24, [])


@pytest.mark.parametrize("title", ["5", "true", "[h3, 1.5]", "{css: h2}"])
def test_a_selector_that_is_no_text_is_a_mistake_among_others(tmp_path: Path, title: str) -> None:
    folder = write(tmp_path / "configs", fiji__bad=GOOD.replace("url: h2 a", f"url: h2 a\n    title: {title}"))
    checked = check_folder(write(folder, fiji__other=GOOD + "x: 1\n"), tmp_path)
    assert [(problem.path.stem, problem.line) for problem in checked.problems] == [("bad", 9), ("other", 11)]
    assert "selectors.thumbnail.title" in checked.problems[0].message


def test_import_lists_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    write(tmp_path / "old", fiji__a=GOOD + "rate_limit: '2'\n", fiji__c=GOOD + "rate_limit: '2'\n")
    (tmp_path / "old/fiji/b.yaml").write_bytes(GOOD.encode() + "name: Le Réveil\n".encode("latin-1"))
    imported = import_folder(tmp_path / "old", tmp_path / "new", tmp_path)
    assert [fix.path.stem for fix in imported.corrections] == ["a", "c"]
    [mistake] = imported.checked.mistakes
    assert "b.yaml is not UTF-8 text" in mistake.message
    assert mistake.remedy == "Save it as UTF-8."


def test_import_copies_nothing_when_a_file_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "old", fiji__a=GOOD, fiji__b=GOOD)
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.stem == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"b\.yaml cannot be read: Permission denied; nothing was copied"):
        import_folder(tmp_path / "old", tmp_path / "new", tmp_path)
    assert not (tmp_path / "new").exists()


def test_every_mistake_in_a_list_and_in_a_template(tmp_path: Path) -> None:
    text = GOOD.replace("body: .text", "body:\n      - .b:nth-of-type(2) p\n      - div > > p\n      - .text")
    text = text.replace(
        "url_template: https://paper.example/news/{num}",
        "url_template:\n    - /{Year}/{nmu}\n    - /news/{num}\n    - /old\n    - /{num:x}",
    )
    mistakes = check_folder(write(tmp_path, paper=text) / "paper.yaml", tmp_path).mistakes
    assert [(problem.line, problem.remedy) for problem in mistakes] == [
        (5, "Write {num}."),
        (7, "Write {num} where it changes."),
        (8, "Write {num:d}, or {num:02d} for two digits."),
        (15, "Name the element before it, such as div:nth-of-type(2)."),
        (16, "Correct the file."),
    ]
    assert "has {Year} and {nmu}, which are not filled in" in mistakes[0].message
    assert "is '.b:nth-of-type(2) p', which Shoal cannot use: *:nth-of-type() is not" in mistakes[3].message
    assert "is 'div > > p', which is no CSS selector" in mistakes[4].message


UNQUOTED = GOOD.replace(
    "body: .text",
    "body: #content   # the text\n    date:  # on no page\n    tags: #tags a\n    title:\n      - h1\n      - #it's",
)


def test_a_selector_that_yaml_reads_as_a_comment(tmp_path: Path) -> None:
    checked = check_folder(write(tmp_path, paper=UNQUOTED) / "paper.yaml", tmp_path)
    assert [(problem.line, problem.note) for problem in checked.problems] == [(10, False), (12, True), (15, False)]
    assert checked.problems[0].message == "selectors.article.body has no value: #content is a comment in YAML."
    assert checked.problems[1].message == "selectors.article.tags has no value: #tags a is a comment in YAML."
    assert {problem.remedy for problem in checked.problems} == {"Put a selector that begins with # in quotes."}


def test_import_quotes_selectors_that_yaml_reads_as_comments(tmp_path: Path) -> None:
    write(tmp_path / "old", fiji__bad=UNQUOTED)
    imported = import_folder(tmp_path / "old", tmp_path / "new", tmp_path)
    lines = (tmp_path / "new/fiji/bad.yaml").read_text().splitlines()[9:]
    assert lines == [
        "    body: '#content'   # the text",
        "    date:  # on no page",
        "    tags: '#tags a'",
        "    title:",
        "      - h1",
        """      - "#it's\"""",
    ]
    assert len(imported.corrections) == 3


def test_import_keeps_the_other_keys_of_a_line(tmp_path: Path) -> None:
    """What it cannot correct alone is listed."""
    head, tail = GOOD.partition("listing:")[0], GOOD.partition("{num}\n")[2]
    table = "listing: {type: pagination, url_template: '/{num}', foo: 1, start_pag: 2}\n"
    split = "listing: {type: pagination, url_template: '/{num}',\n  author: me,\n  foo: 1}\n"
    write(tmp_path / "old", fiji__one=head + table + tail, fiji__two=head + split + tail)
    imported = import_folder(tmp_path / "old", tmp_path / "new", tmp_path)
    one, two = ((tmp_path / f"new/fiji/{name}.yaml").read_text() for name in ("one", "two"))
    assert one == head + table.replace("start_pag:", "start_page:") + tail
    assert two == head + split.replace("  author", "#   author") + tail
    assert [problem.message for problem in imported.checked.mistakes] == ["there is no key listing.foo."] * 2


def test_other_scrapers_of_the_folder_are_no_newspapers(project: Project) -> None:
    folder = write(project.folder / "configs", fiji__times=GOOD, fiji__own="scraper: own.py:own\n")
    (project.folder / "own.py").write_text(
        "from shoal import Scraper\nown = Scraper('own')\n@own.stage\ndef a(): ...\n"
    )
    (folder / "tonga").mkdir()
    (folder / "tonga/broken.py").write_text("from shoal import Scraper\nScraper('x'\n")
    done = project.shoal("newspapers", "check", "configs/", code=1)
    assert "1 newspaper and 2 other scrapers: 1 mistake in 1 file." in done.stderr
    assert "configs/tonga/broken.py:1: it is not valid Python: '(' was never closed (broken.py, line 2)" in done.stdout
