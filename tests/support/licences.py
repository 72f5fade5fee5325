"""The licences of all that Shoal installs or contains: written to docs/licences.md by `make licences`.

Installed are its dependencies, of every extra and transitively; contained are the libraries of the dashboard's scripts.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "licences.md"
# Where the metadata has only a name, or a text. SPDX has an identifier for each.
_SPDX = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "dual license": "Apache-2.0 OR BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit": "MIT",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "mpl-2.0": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CNRI-Python", "ISC", "MIT", "MIT-0", "PSF-2.0"),
    *("Unicode-3.0", "Unlicense", "Zlib", "BlueOak-1.0.0", "Apache-2.0 WITH LLVM-exception"),
}
# Copyleft of the package alone: it may be used and passed on with any program; who changes its files publishes that.
FILE_COPYLEFT = {"MPL-1.1", "MPL-2.0", "LGPL-2.1", "LGPL-2.1-or-later", "LGPL-3.0-or-later"}
_HEAD = """\
# Licences

Shoal is licensed under the Apache License 2.0 ([LICENSE](../LICENSE)). This page lists what `pip install shoal` and
each of its extras install, transitively (also `testing`, which `all` leaves out), and what the scripts of the dashboard
contain. `make licences` writes it from the metadata of the packages; a test compares it with what is installed, and
fails for a licence that is neither permissive nor of the kind below.

## Not purely permissive

The licences of these packages concern the packages' own files: they may be used and passed on unchanged with any
program; who changes these files and passes them on publishes the changes. Nothing of them is in Shoal's own files.
Where there is a choice, one of these licences is enough.

"""


class Licensed(msgspec.Struct, frozen=True, kw_only=True):
    """A package. `licence`: an SPDX expression. `extras`: those that need it; empty when Shoal itself does."""

    name: str
    licence: str
    extras: tuple[str, ...] = ()

    @property
    def choices(self) -> list[set[str]]:
        """The licences that may be chosen; all of a set apply together."""
        return _choices(re.findall(r"[()]|[^()\s]+(?: WITH [^()\s]+)?|\S+", self.licence))

    @property
    def is_permissive(self) -> bool:
        return any(choice <= PERMISSIVE for choice in self.choices)

    @property
    def is_acceptable(self) -> bool:
        return any(choice <= PERMISSIVE | FILE_COPYLEFT for choice in self.choices)


def _choices(words: list[str]) -> list[set[str]]:
    """What an SPDX expression allows, as far as it goes; its words are removed. AND binds closer than OR."""
    found: list[set[str]] = []
    together: list[set[str]] = [set()]
    while words:
        word = words.pop(0)
        if word == ")":
            break
        if word == "OR":
            found, together = [*found, *together], [set()]
        elif word != "AND":
            more = _choices(words) if word == "(" else [{word}]
            together = [one | other for one in together for other in more]
    return [*found, *together]


def installed_packages() -> list[Licensed]:
    """Every distribution that Shoal or one of its extras needs on this platform, by name."""
    needed: dict[str, set[str]] = {}
    extras = [extra for extra in distribution("shoal").metadata.get_all("Provides-Extra") or [] if extra != "all"]
    for extra in ("", *extras):
        for name in _needed_by("shoal", extra):
            needed.setdefault(name, set()).add(extra)
    found = []
    for name, reasons in sorted(needed.items()):
        why = () if "" in reasons else tuple(sorted(reasons))
        found.append(Licensed(name=name, licence=_licence(distribution(name)), extras=why))
    return found


def bundled_libraries() -> list[Licensed]:
    """The libraries of the dashboard's scripts, by name."""
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())["packages"]
    runtime = {path: entry for path, entry in lock.items() if path and not entry.get("dev")}
    names = {path.rpartition("node_modules/")[2]: entry["license"] for path, entry in runtime.items()}
    return [Licensed(name=name, licence=licence) for name, licence in sorted(names.items())]


def _needed_by(name: str, extra: str) -> set[str]:
    """What a distribution needs, with what that needs in turn."""
    found: set[str] = set()
    left = [(name, extra)]
    seen = set(left)
    while left:
        current, its_extra = left.pop()
        try:
            requirements = distribution(current).requires or []
        except PackageNotFoundError:  # for other platforms
            found.discard(current)
            continue
        for requirement in map(Requirement, requirements):
            if current == name and its_extra and "extra" not in str(requirement.marker or ""):
                continue
            if requirement.marker and not requirement.marker.evaluate({"extra": its_extra}):
                continue
            needed = canonicalize_name(requirement.name)
            if needed == name:
                continue
            found.add(needed)
            steps = {(str(needed), asked) for asked in ("", *requirement.extras)} - seen
            seen |= steps
            left += steps
    return found


def _licence(package: Distribution) -> str:
    metadata = package.metadata
    if expression := metadata.get_all("License-Expression"):
        return str(expression[0])
    classified = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or [] if "License ::" in text]
    given = str((metadata.get_all("License") or [""])[0]).strip()
    for text in (given, *classified):
        if text.lower() in _SPDX:
            return _SPDX[text.lower()]
    return given if given and "\n" not in given else " / ".join(classified) or "unknown"


def page() -> str:
    """The text of docs/licences.md."""
    packages, libraries = installed_packages(), bundled_libraries()
    restricted = [package for package in (*packages, *libraries) if not package.is_permissive]
    text = _HEAD
    for package in restricted:
        text += f"- `{package.name}`: {package.licence}\n"
    text += "\n## Packages\n\n| package | licence | installed by |\n|---|---|---|\n"
    for package in packages:
        reason = ", ".join(f"`{extra}`" for extra in package.extras) or "`shoal`"
        text += f"| {package.name} | {package.licence} | {reason} |\n"
    text += "\n## Libraries in the scripts of the dashboard\n\n"
    text += "The wheel has their texts: `shoal/control/static/third-party-notices.txt`, written by the build.\n\n"
    text += "| library | licence |\n|---|---|\n"
    return text + "".join(f"| {library.name} | {library.licence} |\n" for library in libraries)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"Wrote {PAGE.relative_to(ROOT)}.\n")
