"""The shape of the source tree: declared dependencies, one name for one thing, few modules, documented packages."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shoal"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules whose distribution has another name.
DISTRIBUTIONS = {"dotenv": "python-dotenv", "yaml": "pyyaml"}
# Stubs that only type checkers read.
TYPING_ONLY = {"_typeshed"}
MAX_MODULES = 440
MAX_CLI_FILES = 44


@cache
def modules() -> tuple[tuple[Path, ast.Module], ...]:
    """Every module of Shoal itself; what `shoal init` copies belongs to the user's project."""
    names = (path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py")))
    return tuple(
        (name, ast.parse((SOURCE / name).read_text()))
        for name in names
        if not (name.parts[0] == "templates" and len(name.parts) > 2) and "project" not in name.parts
    )


def imported(tree: ast.Module) -> Iterator[str]:
    """The top-level names of what a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    return {normalized(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in requirements}


def test_direct_imports_are_declared_and_declared_dependencies_are_imported() -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules():
        for name in set(imported(tree)) - sys.stdlib_module_names - TYPING_ONLY - {"shoal"}:
            users[normalized(DISTRIBUTIONS.get(name, name))].add(str(path))
    extras = {name: declared(needed) for name, needed in PROJECT["optional-dependencies"].items()}
    required = declared(PROJECT["dependencies"])
    undeclared = {name: paths for name, paths in users.items() if name not in required.union(*extras.values())}
    assert not undeclared
    assert not required - users.keys()


def test_every_extra_that_a_text_names_exists_and_every_extra_is_documented() -> None:
    named: dict[str, set[str]] = defaultdict(set)
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *SOURCE.rglob("*.py")]
    for path in texts:
        for found in re.findall(r"(?:shoal|/clone)\[([a-z0-9, ]+)\]", path.read_text()):
            for extra in found.split(","):
                named[extra.strip()].add(path.name)
    extras = PROJECT["optional-dependencies"]
    assert not named.keys() - extras.keys(), named
    table = set(re.findall(r"^\| `([a-z0-9]+)` \|", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE))
    assert table == set(extras)
    assert extras["all"] == [f"shoal[{','.join(sorted(set(extras) - {'all', 'testing'}))}]"]


def test_a_package_that_uses_an_extra_names_it() -> None:
    """Whoever lacks an optional library is told which extra to install."""
    extras = {name: declared(needed) for name, needed in PROJECT["optional-dependencies"].items()}
    del extras["all"], extras["testing"]
    required = declared(PROJECT["dependencies"])
    for path, tree in modules():
        used = {normalized(name) for name in imported(tree)} - required
        for extra in (name for name, needed in extras.items() if used & needed):
            folder = SOURCE / path.parts[0] if len(path.parts) > 1 else SOURCE / path
            told = "".join(file.read_text() for file in ([folder] if folder.is_file() else folder.rglob("*.py")))
            assert f"shoal[{extra}]" in told, f"{path} needs {extra}, but nothing in {folder.name} says so"


def declared_in(requirements: Path) -> set[str]:
    return declared([line for line in requirements.read_text().splitlines() if line and line[:1] != "#"])


def test_a_new_project_imports_what_it_declares() -> None:
    templates = SOURCE / "templates"
    common = templates / "common" / "requirements.txt"
    assert declared_in(common) == {"shoal", "pytest"}
    folders = [path for path in templates.iterdir() if path.is_dir() and path.name not in ("common", "__pycache__")]
    for folder in [*folders, *(SOURCE / "recipes").glob("*/project")]:
        requirements = folder / "requirements.txt"
        declared_there = declared_in(requirements if requirements.exists() else common)
        own = {path.stem for path in folder.rglob("*.py")}
        for path in folder.rglob("*.py"):
            used = set(imported(ast.parse(path.read_text()))) - sys.stdlib_module_names - own
            assert {normalized(name) for name in used} <= declared_there, path


def test_a_recipe_uses_the_public_interface_only() -> None:
    """What `shoal init --recipe` copies is code that a user could have written."""
    allowed = {"shoal", "shoal.errors", "shoal.serve", "shoal.testing"}
    for path in (SOURCE / "recipes").glob("*/project/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "shoal":
                assert node.module in allowed, f"{path}: {node.module}"
            elif isinstance(node, ast.Import):
                internal = [alias.name for alias in node.names if alias.name.startswith("shoal.")]
                assert not set(internal) - allowed, f"{path}: {internal}"


def test_pytest_finds_the_fixtures_of_authors() -> None:
    declared_there = PROJECT["entry-points"]["pytest11"]
    assert declared_there == {"shoal.pytest_plugin": "shoal.pytest_plugin"}
    installed = {point.name for point in distribution("shoal").entry_points if point.group == "pytest11"}
    assert installed == set(declared_there), "this environment is older than pyproject.toml: make setup"


def test_a_public_class_name_is_defined_once() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_every_package_has_a_docstring() -> None:
    missing = [str(path) for path, tree in modules() if path.name == "__init__.py" and not ast.get_docstring(tree)]
    assert missing == []


def test_the_tree_stays_small() -> None:
    """Files that are read together are one file; a package's docstring alone does not count as a module."""
    counted = [path for path, tree in modules() if path.name != "__init__.py" or len(tree.body) > 1]
    assert len(counted) <= MAX_MODULES
    commands = [path for path in counted if path.parts[0] == "cli"]
    assert len(commands) <= MAX_CLI_FILES
