"""Takes over a folder of existing files: copies them, corrects what is mechanical, and reports the rest.

Only lines with a mistake are changed, so comments and the order of the keys are kept.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.define.yaml_file import read_yaml
from shoal.define.yaml_scraper import SUFFIXES
from shoal.errors import NotFound, ShoalError, UsageError
from shoal.recipes.newspapers.checking import (
    SELECTOR_IN_COMMENT,
    CheckedFolder,
    FileProblem,
    check_file,
    check_folder,
)
from shoal.recipes.newspapers.selectors import class_reading

# Each round corrects one line of a file.
MAX_ROUNDS = 40
_UNKNOWN = re.compile(r"there is no key ([\w.\-]+)(?:; did you mean ([\w.\-]+)\?)?")
_CHOICE = re.compile(r"[\w.\-]+ must be .*; did you mean (\w+)\?")
_CLOSE = 0.85


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a file that was changed."""

    path: Path
    line: int
    message: str


class ImportedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied and corrected, and what is left to do."""

    copied: int
    corrections: tuple[Correction, ...]
    checked: CheckedFolder


def import_folder(source: Path, destination: Path, start: Path) -> ImportedFolder:
    """Copy YAML and Python files and correct the copies. Raises NotFound, or UsageError when a file exists already."""
    if not source.is_dir():
        raise NotFound(f"There is no folder {source}.", remedy="Check the path.")
    files = [
        path
        for path in sorted(source.rglob("*"))
        if path.is_file() and (path.suffix in SUFFIXES or path.suffix == ".py") and "__pycache__" not in path.parts
    ]
    targets = [destination / path.relative_to(source) for path in files]
    existing = [path for path in targets if path.exists()]
    if existing:
        raise UsageError(f"{existing[0]} exists already; nothing was copied.", remedy="Choose an empty folder.")
    for content, target in zip([_content(path) for path in files], targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    corrections = [fix for target in targets if target.suffix in SUFFIXES for fix in _correct(target, start)]
    copied = sum(target.suffix in SUFFIXES for target in targets)
    checked = check_folder(destination, start) if copied else CheckedFolder(newspapers=0, problems=())
    return ImportedFolder(copied=copied, corrections=tuple(corrections), checked=checked)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}; nothing was copied.",
            remedy="Change its permissions, or move it.",
        ) from None


def _correct(path: Path, start: Path) -> list[Correction]:
    made: list[Correction] = []
    tried: set[str] = set()
    for _ in range(MAX_ROUNDS):
        left = [problem for problem in check_file(path, start) if problem.message not in tried]
        if not left:
            break
        problem = left[0]
        tried.add(problem.message)
        if not problem.keys:  # it may be no UTF-8 text
            continue
        text = path.read_text(encoding="utf-8-sig")
        lines = text.splitlines()
        if (fixed := _fix(lines, problem)) is None:
            continue
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            read_yaml(path)
        except ShoalError:  # such as a line that also ended a table
            path.write_text(text, encoding="utf-8")
        else:
            made.append(Correction(path=path, line=problem.line, message=fixed))
    return made


def _fix(lines: list[str], problem: FileProblem) -> str | None:
    """Change the lines if the mistake is mechanical. Returns what was changed."""
    at = problem.line - 1
    if at >= len(lines):
        return None
    key = str(problem.keys[-1])
    if found := _UNKNOWN.match(problem.message):
        return _fix_unknown(lines, at, key, found[2])
    if found := _CHOICE.match(problem.message):
        return _replace_value(lines, at, r"(:\s*)([\"']?)\w+\2(?=\s*(?:#|$))", rf"\1{found[1]}", f"{key} is {found[1]}")
    if (found := SELECTOR_IN_COMMENT.search(lines[at])) and problem.message.endswith("is a comment in YAML."):
        quote = '"' if "'" in found["selector"] else "'"
        quoted = f"{quote}{found['selector']}{quote}"
        lines[at] = f"{lines[at][: found.start()]}{found['before']}{quoted}{found['after']}"
        return f"{quoted} is in quotes"
    if problem.note and problem.keys[0] == "selectors":
        return _join_classes(lines, at)
    if "must be a number" in problem.message or "must be a whole number" in problem.message:
        return _replace_value(lines, at, r"""(:\s*)["']([\d.]+)["']""", r"\1\2", f"{key} is a number, without quotes")
    if "put it in quotes" in problem.message:
        return _replace_value(lines, at, r"(:\s*)([^\s\"'#][^#]*?)(\s*(?:#.*)?)$", r'\1"\2"\3', f"{key} is in quotes")
    return None


def _fix_unknown(lines: list[str], at: int, key: str, meant: str | None) -> str | None:
    last = (meant or "").rpartition(".")[2]
    if last and difflib.SequenceMatcher(None, key, last).ratio() >= _CLOSE and not _has_sibling(lines, at, last):
        lines[at] = re.sub(rf"\b{re.escape(key)}(?=\s*:)", last, lines[at], count=1)
        return f"{key} is called {last}"
    if not re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*:", lines[at]):
        return None  # one of several keys in the line
    for position in _block(lines, at):
        lines[position] = f"# {lines[position]}"
    return f"{key} is not used, and is a comment now"


def _block(lines: Sequence[str], at: int) -> list[int]:
    """The line of a key, and those below it that belong to it."""
    indent = len(lines[at]) - len(lines[at].lstrip())
    end = at + 1
    while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
        end += 1
    return [position for position in range(at, end) if lines[position].strip()]


def _has_sibling(lines: Sequence[str], at: int, key: str) -> bool:
    if re.search(rf"\b{re.escape(key)}\s*:", lines[at]):
        return True
    indent = re.match(r"\s*", lines[at])
    return any(re.match(rf"{indent[0] if indent else ''}{re.escape(key)}\s*:", line) for line in lines)


def _join_classes(lines: list[str], at: int) -> str | None:
    found = re.search(r":\s*([\"']?)(?P<selector>[^\"'\[#][^\"'#]*?)\1\s*(?:#.*)?$", lines[at])
    read = class_reading(found["selector"]) if found else None
    if found is None or read is None:
        return None
    lines[at] = lines[at][: found.start("selector")] + read + lines[at][found.end("selector") :]
    return f"{found['selector']!r} is {read!r}"


def _replace_value(lines: list[str], at: int, pattern: str, by: str, what: str) -> str | None:
    changed = re.sub(pattern, by, lines[at], count=1)
    if changed == lines[at]:
        return None
    lines[at] = changed
    return what
