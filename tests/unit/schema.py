# SPDX-License-Identifier: GPL-2.0-or-later
"""As much of JSON Schema as docs/schema uses; any other keyword is an error here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "schema"
_TYPES: Dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_KNOWN = {
    "$schema", "title", "description", "type", "enum", "minimum", "maximum", "properties",
    "required", "items", "anyOf", "additionalProperties",
}  # fmt: skip


def load(name: str) -> Dict[str, Any]:
    schema: Dict[str, Any] = json.loads((DIRECTORY / f"{name}.json").read_text())
    return schema


def problems(value: Any, schema: Dict[str, Any], at: str = "$") -> Iterator[str]:
    """What is wrong with `value`, a key that the schema does not describe included.

    Readers have to put up with keys they do not know, so the schema allows
    them; the program itself must not print what is not described.
    """
    unknown = set(schema) - _KNOWN
    assert not unknown, f"this validator does not know {unknown}"
    if "anyOf" in schema:
        tried = [list(problems(value, each, at)) for each in schema["anyOf"]]
        if all(tried):
            yield f"{at}: none of the alternatives: {tried}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not one of {schema['enum']}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{at}: {value!r} is not {' or '.join(kinds)}"
        return
    if isinstance(value, (int, float)):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            yield f"{at}: {value} is out of range"
    if isinstance(value, dict) and "object" in kinds:
        yield from _object_problems(value, schema, at)
    if isinstance(value, list) and "array" in kinds:
        for index, item in enumerate(value):
            yield from problems(item, schema["items"], f"{at}[{index}]")


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _object_problems(value: Dict[str, Any], schema: Dict[str, Any], at: str) -> Iterator[str]:
    described = schema.get("properties", {})
    for key in schema.get("required", []):
        if key not in value:
            yield f"{at}: {key} is missing"
    for key, item in value.items():
        each = described.get(key, schema.get("additionalProperties"))
        if each is None:
            yield f"{at}: {key} is not described"
        else:
            yield from problems(item, each, f"{at}.{key}")
