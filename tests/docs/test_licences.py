"""docs/licences.md is true, and nothing that Shoal installs or contains has a licence that surprises."""

from __future__ import annotations

import re

import pytest

from tests.support.licences import PAGE, Licensed, bundled_libraries, installed_packages


def test_the_page_has_every_package_with_its_licence() -> None:
    listed = set(re.findall(r"^\| (\S+) \| (.*?) \|", PAGE.read_text(), re.MULTILINE))
    # Other platforms and versions of Python need a few packages more.
    missing = {(package.name, package.licence) for package in (*installed_packages(), *bundled_libraries())} - listed
    assert not missing, f"docs/licences.md is out of date: make licences ({sorted(missing)})"


def test_no_licence_is_a_surprise() -> None:
    packages = [*installed_packages(), *bundled_libraries()]
    assert len(packages) > 50
    assert [package for package in packages if not package.is_acceptable] == []
    restricted = [package.name for package in packages if not package.is_permissive]
    named = re.findall(r"^- `(\S+)`: ", PAGE.read_text(), re.MULTILINE)
    assert set(restricted) <= set(named)


@pytest.mark.parametrize(
    ("licence", "permissive", "acceptable"),
    [
        ("MIT", True, True),
        ("Apache-2.0 AND MIT", True, True),
        ("GPL-2.0-only OR MIT", True, True),
        ("MPL-2.0", False, True),
        ("MIT AND GPL-3.0-only", False, False),
        ("AGPL-3.0-or-later", False, False),
        ("(MIT OR GPL-3.0-only) AND Unicode-3.0", True, True),
        ("(MIT OR GPL-3.0-only) AND GPL-2.0-only", False, False),
        ("MIT OR (GPL-3.0-only AND MIT)", True, True),
        ("Apache-2.0 WITH LLVM-exception", True, True),
        ("unknown", False, False),
    ],
)
def test_what_a_licence_allows(licence: str, permissive: bool, acceptable: bool) -> None:
    package = Licensed(name="x", licence=licence)
    assert (package.is_permissive, package.is_acceptable) == (permissive, acceptable)
