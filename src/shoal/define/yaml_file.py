"""Reads a YAML file as plain values, bounded in size, with the line of each key for error messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from shoal.errors import InvalidScraper, NotFound

MAX_BYTES = 256 << 10
# Aliases let a short text expand to a huge value, or to one that contains itself.
MAX_VALUES = 20_000
MAX_DEPTH = 20
_TAG = "tag:yaml.org,2002:"
_PLAIN = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "map", "seq")}


class InvalidYaml(InvalidScraper):
    """A mistake in a YAML file. `problem`: the sentence alone; `keys`: what it is about, the outermost first."""

    def __init__(self, path: Path, line: int, problem: str, remedy: str, keys: Sequence[str | int]) -> None:
        super().__init__(f"{path}, line {line}: {problem}", remedy=remedy)
        self.path = path
        self.line = line
        self.problem = problem
        self.keys = tuple(keys)


class _Loader(yaml.SafeLoader):
    """Loads the types of JSON only: a date stays text, and tags are refused."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != f"{_TAG}timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class YamlFile(msgspec.Struct, frozen=True):
    """A file: `values` of its mapping, and `root`, the node that has their lines."""

    path: Path
    values: dict[str, Any]
    root: yaml.Node

    def error(self, keys: Sequence[str | int], message: str, *, remedy: str | None = None) -> InvalidScraper:
        """An error that names the file and the line of these keys, the outermost first."""
        return _error(self.path, self.line_of(keys), message, remedy, keys)

    def line_of(self, keys: Sequence[str | int]) -> int:
        """The line of the innermost of these keys that exists."""
        return _line_of(self.root, keys)


def read_yaml(path: Path) -> YamlFile:
    """Read a file. Raises NotFound, or InvalidScraper in one sentence with the line."""
    text = _text(path)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise _error(path, 1, "this is no mapping of keys to values.", "Begin with a line such as name: fijitimes.")
        _check(path, root)
        values = loader.construct_document(root)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        why = " ".join(str(problem.problem or problem.context).split())
        raise _error(path, mark.line + 1 if mark else 1, f"this is not valid YAML: {why}.", None) from None
    except yaml.reader.ReaderError as problem:
        line = text.count("\n", 0, problem.position) + 1
        raise _error(path, line, f"this is not valid YAML: the character #x{problem.character:04x}.", None) from None
    except ValueError as problem:  # such as 0x_, which looks like a number
        raise InvalidScraper(f"{path} is not valid YAML: {problem}.", remedy="Put the value in quotes.") from None
    except RecursionError:
        raise _too_large_error(path) from None
    return YamlFile(path, values, root)


def _text(path: Path) -> str:
    try:
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            raise InvalidScraper(
                f"{path} is larger than {MAX_BYTES >> 10} kB.", remedy="Split it, or write the scraper in Python."
            )
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFound(f"There is no file {path}.", remedy="Check the path.") from None
    except UnicodeDecodeError as problem:
        raise InvalidScraper(f"{path} is not UTF-8 text: {problem}.", remedy="Save it as UTF-8.") from None
    except OSError as problem:
        raise InvalidScraper(f"{path} cannot be read: {problem.strerror}.", remedy="Check the path.") from None


def _check(path: Path, root: yaml.Node) -> None:
    """Check the number of values (aliases expanded), the depth, and that keys are unique texts."""
    left = [(root, 0)]
    count = 0
    while left:
        node, depth = left.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise _too_large_error(path)
        if node.tag not in _PLAIN:
            shown = node.tag.replace(_TAG, "!!")
            raise _error(path, node.start_mark.line + 1, f"the tag {shown} is not allowed.", "Write the plain value.")
        if isinstance(node, yaml.SequenceNode):
            left += [(value, depth + 1) for value in node.value]
        elif isinstance(node, yaml.MappingNode):
            _check_keys(path, node)
            left += [(value, depth + 1) for _, value in node.value]


def _check_keys(path: Path, node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
            raise _error(path, key.start_mark.line + 1, f"{shown} is no name of a key.", "Put it in quotes.")
        if key.value in seen:
            raise _error(path, key.start_mark.line + 1, f"{key.value} is given twice.", "Remove one of the two.")
        seen.add(key.value)


def _line_of(root: yaml.Node, keys: Sequence[str | int]) -> int:
    """The line of the innermost of these keys that exists; for a key of a merged alias, that of its parent."""
    node, line = root, root.start_mark.line + 1
    for name in keys:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == name), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(name, int) and name < len(node.value):
            found = (node.value[name], node.value[name])
        else:
            found = None
        if found is None:
            return line
        line, node = found[0].start_mark.line + 1, found[1]
    return line


def _error(path: Path, line: int, message: str, remedy: str | None, keys: Sequence[str | int] = ()) -> InvalidYaml:
    return InvalidYaml(path, line, message, remedy or "Correct the file.", keys)


def _too_large_error(path: Path) -> InvalidScraper:
    return InvalidScraper(
        f"{path} holds more than {MAX_VALUES:,} values, or nests them more than {MAX_DEPTH} deep.",
        remedy="Use fewer aliases, or write the scraper in Python.",
    )
