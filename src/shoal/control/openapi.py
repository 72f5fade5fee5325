"""The OpenAPI document of the server, with an example of every answer, and the reference that is made from it.

`python -m shoal.control.openapi > FILE` prints the document; with the path of a page it writes the reference there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI

REF = "#/components/schemas/"
PREFIX = "/api/v1"
# Around the generated part of docs/api.md.
BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"
_HIDDEN_MODELS = ("HTTPValidationError", "ValidationError")


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document; each JSON answer and body has an example, made from those of its fields."""
    document = FastAPI.openapi(app)
    schemas = document.get("components", {}).get("schemas", {})
    for operation in _operations(document):
        responses = operation.get("responses", {}).items()
        contents = [response.get("content", {}) for status, response in responses if status.startswith("2")]
        contents.append(operation.get("requestBody", {}).get("content", {}))
        for content in contents:
            for kind, media in content.items():
                if kind == "application/json" and "schema" in media and "example" not in media:
                    media["example"] = example_of(media["schema"], schemas)
    return document


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """A value that the schema accepts, from the examples that it and its parts have."""
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].removeprefix(REF)], schemas)
    given = [*schema.get("examples", ()), *([schema["default"]] if "default" in schema else ())]
    given += [schema["const"]] if "const" in schema else schema.get("enum", ())
    if given:
        return given[0]
    if choices := schema.get("anyOf"):
        # An action's answer rather than its preview; null only where nothing else is possible.
        kinds = [each for each in choices if each.get("type") != "null"]
        return example_of(kinds[-1], schemas)
    fields = {name: example_of(inner, schemas) for name, inner in schema.get("properties", {}).items()}
    elements = schema.get("prefixItems", [schema["items"]] if "items" in schema else [])
    examples = {
        "object": fields,
        "array": [example_of(inner, schemas) for inner in elements],
        "boolean": False,
        "integer": schema.get("minimum", 0),
        "number": schema.get("minimum", 0),
        "string": "",
    }
    return examples.get(schema.get("type", ""))


def _operations(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in document["paths"].values() for operation in path.values()]


def reference(document: Mapping[str, Any]) -> str:
    """The calls and models of `/api/v1` as Markdown, for docs/api.md."""
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        if path.startswith(PREFIX + "/"):
            for method, operation in methods.items():
                tag = operation.get("tags", ["other"])[0]
                groups.setdefault(tag, []).append(_call_row(method, path.removeprefix(PREFIX), operation))
    lines = ["All paths are below `/api/v1`.", ""]
    for tag, rows in groups.items():
        lines += [f"### {tag.capitalize()}", "", "| call | does | takes | answers |", "|---|---|---|---|", *rows, ""]
    lines += ["### Models", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        if schema.get("type") == "object" and schema.get("properties") and name not in _HIDDEN_MODELS:
            lines += _model_lines(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _call_row(method: str, path: str, operation: Mapping[str, Any]) -> str:
    takes = [
        f"`{parameter['name']}`"
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query" and parameter["name"] not in ("preview", "cursor", "limit")
    ]
    for media in operation.get("requestBody", {}).get("content", {}).values():
        takes.append(f"a body: {_type_text(media['schema'])}")
    answers = dict.fromkeys(
        _type_text(media.get("schema", {}))
        for status, response in operation["responses"].items()
        for media in response.get("content", {}).values()
        if status.startswith("2")
    )
    shown = ", ".join(each.removeprefix("PreviewAnswer or ") for each in answers)
    does = _cell(operation.get("description", operation.get("summary", "")))
    return f"| `{method.upper()} {path}` | {does} | {', '.join(takes)} | {shown} |"


def _model_lines(name: str, schema: Mapping[str, Any]) -> list[str]:
    lines = [f"#### {_model_name(name)}", ""]
    if schema.get("description"):
        lines += [_cell(schema["description"]), ""]
    lines += ["| field | type | is |", "|---|---|---|"]
    required = schema.get("required", ())
    for field, inner in schema["properties"].items():
        optional = "" if field in required or "default" not in inner else ", optional"
        lines.append(f"| `{field}` | {_type_text(inner)}{optional} | {_cell(inner.get('description', ''))} |")
    return [*lines, ""]


def _type_text(schema: Mapping[str, Any]) -> str:
    """`RunRecord`, `list of text`, `number or null`."""
    if "$ref" in schema:
        return _model_name(schema["$ref"].removeprefix(REF))
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type_text(each) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            parts = schema.get("prefixItems", [schema.get("items", {})])
            return "list of " + ", ".join(dict.fromkeys(_type_text(each) for each in parts))
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of {_type_text(schema['additionalProperties'])}"
        case "string":
            return "time" if schema.get("format") == "date-time" else "text"
        case None:
            return "anything"
        case kind:
            return str(kind)


def _model_name(name: str) -> str:
    """`PageRecord_RunRecord_` is `PageRecord of RunRecord`."""
    outer, underscore, inner = name.rstrip("_").partition("_")
    return f"{outer} of {inner}" if underscore else name


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write_reference(document: Mapping[str, Any], page: Path) -> None:
    """Replace the generated part of a page."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    page.write_text(f"{before}{begin}\n\n{reference(document)}\n{end}{after}")


def main(arguments: Sequence[str]) -> None:
    """Print the document, or with the path of a page write the reference into it."""
    from shoal.config import load_settings
    from shoal.control.app import build_app

    document = openapi_document(build_app(load_settings({}, environ={}, folder=Path.cwd())))
    if arguments:
        write_reference(document, Path(arguments[0]))
        return
    json.dump(document, sys.stdout, indent=2, sort_keys=True)
    print()


if __name__ == "__main__":
    main(sys.argv[1:])
