"""The shape of the source tree: declared dependencies, one name for one thing, few modules, documented packages."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shoal"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules whose distribution has another name.
DISTRIBUTIONS = {"dotenv": "python-dotenv", "yaml": "pyyaml"}
# Stubs that only type checkers read.
TYPING_ONLY = {"_typeshed"}
MAX_MODULES = 260
MAX_CLI_FILES = 40


@cache
def modules() -> tuple[tuple[Path, ast.Module], ...]:
    """Every module of Shoal itself; what `shoal init` copies belongs to the user's project."""
    names = (path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py")))
    return tuple(
        (name, ast.parse((SOURCE / name).read_text()))
        for name in names
        if not (name.parts[0] == "templates" and len(name.parts) > 2)
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
