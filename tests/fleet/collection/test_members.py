"""Which scrapers a folder holds, which are meant, which belong to a group."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import NotFound, UsageError
from shoal.fleet import process
from shoal.fleet.collection.members import Member, MemberFilter, discover, plan_members
from shoal.service.collection import CollectionPlanned


def write(folder: Path, path: str, text: str = "{}") -> None:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def keys(members: list[Member] | tuple[Member, ...]) -> list[str]:
    return [member.key for member in members]


def test_members_are_found_and_other_files_ignored(tmp_path: Path) -> None:  # S2.1, S2.16
    write(tmp_path, "fiji/fijitimes.yaml")
    write(tmp_path, "tonga/matangi.yml")
    write(tmp_path, "samoa/observer.py", "from shoal import Scraper\nobserver = Scraper('observer')\n")
    write(tmp_path, "samoa/common.py", "HOSTS = []\n")
    write(tmp_path, "samoa/test_observer.py", "Scraper('x')\n")
    write(tmp_path, "fiji/template.yaml", "name: x")
    write(tmp_path, "fiji/notes.txt")
    write(tmp_path, "_old/gone.yaml")
    write(tmp_path, "fiji/.hidden.yaml")
    write(tmp_path, "fiji/off.yaml", "enabled: false")
    assert sorted(keys(discover(tmp_path))) == ["fiji/fijitimes", "samoa/observer", "tonga/matangi"]


def test_names_come_from_the_path_or_the_yaml(tmp_path: Path) -> None:
    write(tmp_path, "fiji/a.yaml", "name: The Fiji Times\ncountry: Fiji Islands")
    (member,) = discover(tmp_path)
    assert (member.key, member.name) == ("fiji_islands/a", "fiji_islands.the_fiji_times")


def test_a_file_that_cannot_be_used_is_a_member_too(tmp_path: Path) -> None:  # S2.11
    write(tmp_path, "fiji/good.yaml")
    write(tmp_path, "fiji/bad.yaml", "timeout: soon")
    write(tmp_path, "fiji/worse.py", "Scraper('x'")
    broken = {member.key: member.broken for member in discover(tmp_path)}
    assert broken["fiji/good"] is None
    assert "timeout is 'soon'" in (broken["fiji/bad"] or "")
    assert broken["fiji/worse"] is None  # its own process will say what is wrong with it


def test_of_two_files_for_one_member_one_is_broken(tmp_path: Path) -> None:
    """The file whose place says what it is keeps the name, wherever the other one stands in the alphabet."""
    write(tmp_path, "fiji/times.yaml")
    write(tmp_path, "fiji/other.yaml", "name: times")  # the same name in the ledger
    write(tmp_path, "america/times.yaml", "country: fiji")  # the same key
    write(tmp_path, "samoa/sun.yaml")
    write(tmp_path, "samoa/sun.yml")
    write(tmp_path, "tonga/sun.yaml", "timeout: soon")
    members = {member.key: member for member in discover(tmp_path)}
    assert sorted(key for key, member in members.items() if member.broken is None) == ["fiji/times", "samoa/sun"]
    assert sorted(key for key, member in members.items() if member.broken is not None) == [
        "america/times.yaml",
        "fiji/other.yaml",
        "samoa/sun.yml",
        "tonga/sun",
    ]
    assert "other.yaml and" in (members["fiji/other.yaml"].broken or "")
    assert "are both fiji.times: rename one of them" in (members["fiji/other.yaml"].broken or "")
    assert "are both fiji/times" in (members["america/times.yaml"].broken or "")
    # A file that claims another's name makes no group of it, and is chosen by its own place.
    assert keys(plan_members(members.values(), MemberFilter(include=["fiji/*"], exclude=["other"])).singles) == [
        "fiji/times"
    ]
    assert keys(plan_members(members.values(), MemberFilter(include=["america/times"])).members) == [
        "america/times.yaml"
    ]


def test_an_unreadable_file_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, "fiji/good.yaml")
    write(tmp_path, "fiji/tabs.yaml", "a:\n\t- b")
    write(tmp_path, "fiji/group.yaml", "group: '\u65e5\u672c'")
    write(tmp_path, "fiji/long.yaml", f"group: {'x' * 200}")
    write(tmp_path, "fiji/deep.yaml", "a: " + "[" * 5_000 + "]" * 5_000)
    write(tmp_path, "fiji/deeper.py", "Scraper(" + "(" * 5_000)
    (tmp_path / "fiji/link.yaml").symlink_to("nowhere")
    (tmp_path / "fiji/bytes.yaml").write_bytes(b"name: \xff\xfe")
    broken = {member.title: member.broken for member in discover(tmp_path)}
    assert broken.pop("good") is None
    assert broken.pop("deeper") is None  # its own process will say what is wrong with it
    assert sorted(broken) == ["bytes", "deep", "group", "link", "long", "tabs"]
    assert all(broken.values())


def test_a_folder_that_cannot_be_read_is_a_broken_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "fiji/good.yaml")
    write(tmp_path, "tonga/hidden.yaml")
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("tonga"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    members = {member.key: member.broken for member in discover(tmp_path)}
    assert members.pop("fiji/good") is None
    assert all(members.values())
    assert len(members) == 1


def test_an_empty_or_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no scraper in"):
        discover(tmp_path)
    with pytest.raises(NotFound, match="There is no folder"):
        discover(tmp_path / "nowhere")


def test_a_newspaper_in_several_countries_is_a_group(tmp_path: Path) -> None:  # S2.1
    for country in ("fiji", "tonga", "samoa"):
        write(tmp_path, f"{country}/islands.yaml")
    write(tmp_path, "fiji/times.yaml")
    write(tmp_path, "fiji/a.yaml", "group: one-host")
    write(tmp_path, "tonga/b.yaml", "group: one-host\npriority: -1")
    found = plan_members(discover(tmp_path), MemberFilter())
    assert keys(found.singles) == ["fiji/times"]
    assert {name: keys(group) for name, group in found.groups.items()} == {
        "islands": ["fiji/islands", "samoa/islands", "tonga/islands"],
        "one-host": ["tonga/b", "fiji/a"],
    }


def test_the_name_that_a_file_states_makes_the_group(tmp_path: Path) -> None:  # S2.1
    write(tmp_path, "fiji/rnz_fiji.yaml", "name: RNZ")
    write(tmp_path, "samoa/rnz.yaml")
    write(tmp_path, "tonga/rnz_tonga.yaml", "name: RNZ")
    write(tmp_path, "fiji/times.yaml", "name: Fiji Times")
    write(tmp_path, "tonga/times.yaml", "name: Tonga Times")
    found = plan_members(discover(tmp_path), MemberFilter())
    assert keys(found.singles) == ["fiji/times", "tonga/times"], "two newspapers"
    assert {name: keys(group) for name, group in found.groups.items()} == {
        "rnz": ["fiji/rnz_fiji", "samoa/rnz", "tonga/rnz_tonga"]
    }
    assert [member.name for member in found.groups["rnz"]] == ["fiji.rnz", "samoa.rnz", "tonga.rnz"]


def test_members_without_a_group_take_that_of_their_namesakes(tmp_path: Path) -> None:
    """Otherwise they would run at the same time."""
    for country in ("fiji", "samoa", "tonga"):
        write(tmp_path, f"{country}/islands.yaml")
        write(tmp_path, f"{country}/weekly.yaml")
    write(tmp_path, "samoa/islands.yaml", "group: islands")
    write(tmp_path, "samoa/weekly.yaml", "group: one-host")
    found = plan_members(discover(tmp_path), MemberFilter())
    assert {name: keys(group) for name, group in found.groups.items()} == {
        "islands": ["fiji/islands", "samoa/islands", "tonga/islands"],
        "one-host": ["fiji/weekly", "samoa/weekly", "tonga/weekly"],
    }


def test_priority_goes_before_the_name(tmp_path: Path) -> None:  # S2.19
    write(tmp_path, "fiji/a.yaml", "priority: 5")
    write(tmp_path, "fiji/b.yaml")
    write(tmp_path, "fiji/c.yaml", "priority: -5")
    assert keys(plan_members(discover(tmp_path), MemberFilter()).singles) == ["fiji/c", "fiji/b", "fiji/a"]


def test_groups_start_before_singles_and_the_longest_first(tmp_path: Path) -> None:  # S2.3, S2.17
    write(tmp_path, "fiji/a.yaml")
    write(tmp_path, "fiji/first.yaml", "priority: -1")
    for country in ("fiji", "tonga"):
        write(tmp_path, f"{country}/pair.yaml")
    for country in ("fiji", "samoa", "tonga"):
        write(tmp_path, f"{country}/three.yaml")
    assert keys(plan_members(discover(tmp_path), MemberFilter()).members) == [
        "fiji/first",
        *("fiji/three", "samoa/three", "tonga/three"),
        *("fiji/pair", "tonga/pair"),
        "fiji/a",
    ]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        (MemberFilter(where={"country": ["Fiji"]}), ["fiji/times", "fiji/islands"]),
        (MemberFilter(include=["*times"]), ["fiji/times"]),
        (MemberFilter(include=["*times*"]), ["fiji/times", "tonga/times2"]),
        (MemberFilter(include=["tonga/*"], exclude=["islands"]), ["tonga/times2"]),
        (MemberFilter(exclude=["times*"]), ["fiji/islands", "tonga/islands"]),
    ],
)
def test_members_are_chosen(tmp_path: Path, choice: MemberFilter, chosen: list[str]) -> None:
    for key in ("fiji/times", "tonga/times2", "fiji/islands", "tonga/islands"):
        write(tmp_path, f"{key}.yaml")
    assert sorted(keys(plan_members(discover(tmp_path), choice).members)) == sorted(chosen)


def test_members_are_chosen_by_any_label(tmp_path: Path) -> None:
    """Every text of a YAML file is a label; a Python file has its folder."""
    write(tmp_path, "fiji/times.yaml", "language: English")
    write(tmp_path, "fiji/sun.yaml", "language: Fijian")
    write(tmp_path, "tonga/times2.yaml", "language: English\ncountry: Fiji")
    write(tmp_path, "fiji/news.py", "Scraper('news')")

    def chosen(**labels: list[str]) -> list[str]:
        return sorted(keys(plan_members(discover(tmp_path), MemberFilter(where=labels)).members))

    assert chosen(language=["english"]) == ["fiji/times", "fiji/times2"]
    assert chosen(language=["english", "Fijian"]) == ["fiji/sun", "fiji/times", "fiji/times2"]
    assert chosen(language=["fijian"], country=["fiji"]) == ["fiji/sun"]
    assert chosen(country=["fiji"]) == ["fiji/news", "fiji/sun", "fiji/times", "fiji/times2"]
    with pytest.raises(UsageError, match="The options select no scraper of the folder"):
        chosen(planet=["mars"])


def test_a_group_stays_a_group_when_one_member_is_chosen(tmp_path: Path) -> None:
    for country in ("fiji", "tonga", "samoa"):
        write(tmp_path, f"{country}/islands.yaml")
    found = plan_members(discover(tmp_path), MemberFilter(where={"country": ["tonga"]}))
    assert {name: keys(group) for name, group in found.groups.items()} == {"islands": ["tonga/islands"]}


def test_the_plan_counts_members(tmp_path: Path) -> None:  # S2.14
    for country in ("fiji", "tonga"):
        write(tmp_path, f"{country}/islands.yaml")
        write(tmp_path, f"{country}/{country}.yaml")

    def text(*countries: str) -> str:
        found = plan_members(discover(tmp_path), MemberFilter(where={"country": countries}))
        return CollectionPlanned.of(found, 2).text

    assert text("tonga") == "2 configurations: 1 single, 1 group (1 member); at most 2 at once."
    assert text("fiji", "tonga") == "4 configurations: 2 singles, 1 group (2 members); at most 2 at once."


def test_choosing_nothing_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "fiji/times.yaml")
    with pytest.raises(UsageError, match="The options select no scraper of the folder") as caught:
        plan_members(discover(tmp_path), MemberFilter(where={"country": ["tonga"]}))
    assert "it has fiji" in caught.value.remedy


# Its memory


async def test_one_reading_of_the_process_table_serves_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is made beside the event loop."""
    looks: list[int] = []
    memory_by_session = process.memory_by_session

    def look() -> dict[int, int]:
        looks.append(threading.get_ident())
        return memory_by_session()

    monkeypatch.setattr(process, "POLL_SECONDS", 60.0)
    monkeypatch.setattr(process, "memory_by_session", look)
    memory = process.SessionMemory()
    own, nobody, *_ = await asyncio.gather(
        memory.used_by(os.getsid(0)), memory.used_by(0), *(memory.used_by(os.getsid(0)) for _ in range(20))
    )
    assert own > 1 << 20
    assert nobody >= 0
    assert len(looks) == 1
    assert looks[0] != threading.get_ident()
