"""The wheel, as a stranger uses it: everything that Shoal needs is in it, and nothing comes from the repository.

The long form, `make dist`, installs dependencies too, with every Python that it finds (tests/support/dist.py).
"""

from __future__ import annotations

import re
import site
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.dist import (
    PROJECT,
    ROOT,
    Installed,
    WheelError,
    build,
    check_claims,
    claimed_pythons,
    missing_files,
    pythons,
    try_wheel,
)

# One process builds and installs for all of them.
pytestmark = pytest.mark.xdist_group("dist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (built,) = build(tmp_path_factory.mktemp("dist"), "--wheel")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel alone, with the dependencies of this environment."""
    borrowed = next(Path(path) for path in site.getsitepackages() if path.endswith("site-packages"))
    return Installed(tmp_path_factory.mktemp("installed"), sys.executable, wheel, borrowed=borrowed)


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    assert missing_files(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    outside = {name.split("/")[0] for name in names} - {"shoal", f"shoal-{PROJECT['version']}.dist-info"}
    assert not outside
    assert {"shoal/control/static/index.html", "shoal/control/static/third-party-notices.txt"} <= names
    assert "shoal/templates/common/gitignore" in names
    assert not [name for name in names if "__pycache__" in name or "/.shoal/" in name or name.endswith(".db")]


def test_an_installed_wheel_works_without_the_repository(installed: Installed) -> None:
    """`shoal serve`, `shoal init` and the tests of the new project, `shoal demo`."""
    steps = list(try_wheel(installed, projects=("shop",), demos=("shop",)))
    assert [step.partition(":")[0] for step in steps[1:]] == [
        "shoal serve",
        "shoal init --recipe shop",
        "shoal demo shop",
    ]


def test_a_file_of_the_repository_would_be_noticed(installed: Installed) -> None:
    with pytest.raises(WheelError, match="the repository was used"):
        installed.run("python", "-c", f"open({str(ROOT / 'pyproject.toml')!r})")
    with pytest.raises(WheelError, match="No module named 'tests'"):
        installed.run("python", "-c", "import tests")


def test_the_python_of_this_environment_is_found() -> None:
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in pythons()


def test_files_for_deployment_name_the_image_of_this_version() -> None:
    tags = {
        (str(path.relative_to(ROOT)), tag)
        for path in (ROOT / "deploy").rglob("*")
        if path.suffix in (".yaml", ".json")
        for tag in re.findall(r"""(?:/shoal[\w-]*:|newTag: ["']?)(\d+\.\d+[\w.]*)""", path.read_text())
    }
    assert len(tags) > 5
    assert {tag for _, tag in tags} == {PROJECT["version"]}, sorted(tags)


def test_classifiers_name_the_versions_of_python_that_are_tried() -> None:
    """`make dist` fails when it did not try one of them; README.md names the same."""
    named = claimed_pythons()
    assert named[0] == PROJECT["requires-python"].removeprefix(">=")
    assert f"(tried with {', '.join(named[:-1])} and {named[-1]})" in (ROOT / "README.md").read_text()
    check_claims([*named, "3.99"])
    for version in (named[0], named[-1]):
        with pytest.raises(WheelError, match=re.escape(f"not tried with Python {version}")):
            check_claims(set(named) - {version})
