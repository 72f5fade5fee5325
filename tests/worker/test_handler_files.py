"""Files that a handler writes: whole, in their place, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import Files, Page, Permanent, Throttled, Transient
from shoal.errors import StoreFailed
from tests.support.project import Project


async def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert await files.write("a/b c.txt", "one") == f"{tmp_path}/a/b c.txt"
    await files.write("a/b c.txt", b"two")
    assert [file.read_bytes() for file in (tmp_path / "a").iterdir()] == [b"two"]


@pytest.mark.parametrize("name", ["", "../x", "/etc/x", "a//b", ".hidden", "a/.b", "a\\b", "a\nb", "a/.."])
async def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Permanent, match="relative path"):
        await Files(tmp_path / "files").write(name, "x")
    assert list(tmp_path.iterdir()) == []


async def test_a_place_that_cannot_be_written_is_no_fault_of_the_item(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed):
        await Files(tmp_path / "file").write("x.txt", "x")
    with pytest.raises(StoreFailed):
        await Files(tmp_path / "file" / "below").write("x.txt", "x")
    with pytest.raises(StoreFailed):
        await Files(tmp_path / ("n" * 300)).write("x.txt", "x")
    with pytest.raises(Permanent, match="set `files`"):
        await Files(None).write("x.txt", "x")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("n" * 256, "too long"),
        ("é" * 128, "too long"),
        (f"new/{'n' * 256}/x.txt", "too long"),
        ("/".join(["n" * 250] * 20), "too long"),
        ("a", "same name"),
        ("a/b/c", "same name"),
        ("a/b/c/d", "same name"),
    ],
)
async def test_a_name_that_cannot_be_a_file_is_the_fault_of_the_item(tmp_path: Path, name: str, why: str) -> None:
    files = Files(tmp_path / "files")
    await files.write("a/b", "x")
    with pytest.raises(Permanent, match=why):
        await files.write(name, "x")
    assert [file.name for file in (tmp_path / "files").rglob("*") if file.is_file()] == ["b"]


async def test_a_name_may_be_as_long_as_a_file_system_allows(tmp_path: Path) -> None:
    for name in ("n" * 255, "é" * 127, f"{'n' * 250}/{'ü' * 127}"):
        assert Path(await Files(tmp_path).write(name, name)).read_text() == name


async def test_the_key_of_an_object_has_a_limit() -> None:
    with pytest.raises(Permanent, match="more than 1024 bytes"):
        await Files("s3://bucket/files").write("/".join(["n" * 250] * 5), "x")


def test_one_bad_name_stops_no_worker(project: Project) -> None:
    project.write(
        """
        from shoal import Files
        notes = Scraper("notes")

        @notes.stage
        async def note(item: Item, files: Files):
            yield {"path": await files.write(item.key, "text")}

        notes.start(note.item(key=key) for key in ("a/b", "n" * 300, "c"))
        """
    )
    project.shoal("run", "shop.py", "-q", SHOAL_FILES="out", code=1)
    assert {record["path"] for record in project.export()} == {"out/a/b", "out/c"}


def test_a_handler_asks_for_files(project: Project) -> None:
    project.write(
        """
        from shoal import Files
        notes = Scraper("notes")

        @notes.stage
        async def note(item: Item, files: Files):
            yield {"path": await files.write(f"{item.key}.txt", item.key)}

        notes.start(note.item(key="one"))
        """
    )
    project.shoal("run", "shop.py", "-q", SHOAL_FILES="out")
    assert [record["path"] for record in project.export()] == ["out/one.txt"]
    assert (project.folder / "out" / "one.txt").read_text() == "one"


def test_a_registered_scraper_outranks_a_folder_of_its_name(project: Project) -> None:
    """The files of a scraper may lie in a folder of its name."""
    project.write(
        'notes = Scraper("notes")\n\n@notes.stage\nasync def note(item: Item): ...\n\nnotes.start(note.item(key="a"))'
    )
    (project.folder / "shoal.toml").write_text('[scrapers.notes]\ntarget = "shop.py"\n')
    (project.folder / "notes").mkdir()
    project.shoal("run", "notes", "-q")


def test_a_page_is_judged_later() -> None:
    for status, outcome in ((404, Permanent), (429, Throttled), (503, Transient)):
        with pytest.raises(outcome):
            Page.of("https://a.example/", "", status=status).check()
    Page.of("https://a.example/", "").check()
