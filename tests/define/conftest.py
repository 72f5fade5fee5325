"""A folder of modules that can be imported; they are removed from `sys.modules` afterwards."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Callable[[Mapping[str, str]], Path]]:
    """Write these files into a folder of their own."""
    paths, modules = list(sys.path), set(sys.modules)
    made = 0

    def write(files: Mapping[str, str]) -> Path:
        nonlocal made
        made += 1
        folder = tmp_path / str(made)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        importlib.invalidate_caches()
        return folder

    yield write
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]
