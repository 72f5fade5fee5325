"""The project of a folder is found upwards, within bounds; relative paths of its files are meant from there."""

from pathlib import Path

import pytest

from shoal.config import Settings, load_settings
from shoal.config.load import find_log_format
from shoal.project import find_project
from shoal.wiring import ledger_context
from tests.support import fork_server
from tests.support.project import Finished, clean_environment

FILES = {
    "shoal.toml": "",
    "pyproject.toml": "[tool.shoal]\n",
    ".env": "SHOAL_POOL_SIZE=3\n",
    ".shoal/ledger.db": "",
}


def write(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def below(folder: Path) -> Path:
    """A folder two levels below, without files of its own but those of other programs."""
    inner = folder / "one/two"
    write(inner / "pyproject.toml", "[tool.other]\n")
    write(inner / ".env", "OTHER=1\n")
    return inner


def load(folder: Path, **environ: str) -> Settings:
    return load_settings({}, environ=environ, folder=folder)


@pytest.mark.parametrize("name", FILES)
def test_each_of_its_files_makes_a_folder_a_project(tmp_path: Path, name: str) -> None:
    inner = below(tmp_path)
    assert find_project(inner, {}) == inner
    write(tmp_path / name, FILES[name])
    assert find_project(inner, {}) == tmp_path
    write(tmp_path / "one/shoal.toml")
    assert find_project(inner, {}) == tmp_path / "one", "the nearest"


def test_home_and_folders_open_to_everybody_end_the_search(tmp_path: Path) -> None:
    inner = below(tmp_path)
    write(tmp_path / "shoal.toml")
    assert find_project(inner, {"HOME": str(tmp_path)}) == inner
    assert find_project(tmp_path, {"HOME": str(tmp_path)}) == tmp_path
    (tmp_path / "one").chmod(0o1777)
    assert find_project(inner, {}) == inner


def test_paths_in_files_are_meant_from_the_project(tmp_path: Path) -> None:
    inner = below(tmp_path)
    sinks = '[sinks.parts]\nkind = "jsonl"\npath = "parts"\n[sinks.far]\nkind = "jsonl"\npath = "s3://bucket/parts"\n'
    tables = '[scrapers.a]\nledger = "a.db"\ntarget = "a.py"\n'
    write(tmp_path / "shoal.toml", f'store = "pages"\n{tables}{sinks}')
    write(tmp_path / ".env", "SHOAL_MEMBER_OUTPUT=out\n")
    settings = load(inner)
    assert settings.ledger == str(tmp_path / ".shoal/ledger.db")
    assert settings.log_dir == str(tmp_path / ".shoal/logs")
    assert (settings.store, settings.member_output) == (str(tmp_path / "pages"), str(tmp_path / "out"))
    assert settings.for_scraper("a").ledger == str(tmp_path / "a.db")
    assert [sink.path for sink in settings.sinks.values()] == [str(tmp_path / "parts"), "s3://bucket/parts"]
    assert load(tmp_path).ledger == ".shoal/ledger.db", "in its own folder paths stay as they are written"


def test_what_is_said_for_one_call_is_meant_from_the_current_folder(tmp_path: Path) -> None:
    inner = below(tmp_path)
    write(tmp_path / "shoal.toml", 'ledger = "postgresql://db/shoal"\nlog_format = "json"\n')
    assert load(inner).ledger == "postgresql://db/shoal"
    assert load(inner, SHOAL_LEDGER="own.db").ledger == "own.db"
    assert load_settings({"ledger": "flag.db"}, environ={}, folder=inner).ledger == "flag.db"
    assert find_log_format([], environ={}, folder=inner) == "json"


async def test_a_second_ledger_is_announced(tmp_path: Path) -> None:
    """A folder with settings of its own begins its own ledger, and says that there is another one above."""
    write(tmp_path / ".shoal/ledger.db")
    inner = below(tmp_path)
    write(inner / "shoal.toml", "")
    notices: list[str] = []
    settings = load(inner)
    assert settings.ledger_above == str(tmp_path / ".shoal/ledger.db")
    moved = str(inner / settings.ledger)
    for _ in range(2):
        async with ledger_context(
            Settings(ledger=moved, ledger_above=settings.ledger_above), on_waiting=notices.append
        ):
            pass
    (said,) = notices
    assert moved in said
    assert settings.ledger_above in said


def test_commands_work_in_a_folder_below(tmp_path: Path) -> None:
    project = tmp_path / "project"
    inner = below(project)
    write(project / "shoal.toml", '[scrapers.books]\ntarget = "books.py"\n')
    code = 'from shoal import Scraper\n\nbooks = Scraper("books")\n\n@books.stage\ndef page() -> dict[str, int]:\n'
    write(project / "books.py", f'{code}    return {{"n": 1}}\n\nbooks.start([page.item(key="a")])\n')

    def shoal(*arguments: str) -> Finished:
        return fork_server.run(arguments, inner, clean_environment(tmp_path))

    ran = shoal("run", "books", "-o", "out.jsonl")
    assert ran.returncode == 0, ran.stderr
    assert f"The ledger is {project / '.shoal/ledger.db'}." in ran.stderr
    assert (inner / "out.jsonl").read_text() == '{"n":1}\n'
    assert not (inner / ".shoal").exists()
    assert "1 done" in shoal("run", "../../books.py", "--resume").stdout
    assert "books" in shoal("runs", "ls").stdout
