# SPDX-License-Identifier: GPL-2.0-or-later
"""schemas.py: writes docs/schema from the types of the answers; `make docs` runs it.

A type NameAnswer becomes name.json. A comment on or above a key is its description; that above
an answer is the answer's, or in backquotes its verbs.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import sys
import tokenize
from enum import Enum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Dict,
    Iterator,
    List,
    Literal,
    Tuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "agent")]

from writebackd.cli import client_answers  # noqa: E402
from writebackd.notify import alert_answer  # noqa: E402
from writebackd.report import answers, metrics  # noqa: E402
from writebackd.types.quantities import Range  # noqa: E402

PLACE = ROOT / "docs" / "schema"
MODULES = (alert_answer, answers, client_answers)
Json = Dict[str, Any]
_PLAIN = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"
}  # fmt: skip
_UNITS = "Sizes in bytes, times in seconds, rates per second; unknown is null."
_HIDDEN = ("Event", "alert")  # for the verb alerts
_HELP = {name: f"{text[:1].lower()}{text[1:]}".rstrip(".") for name, _, text, _ in metrics.DEVICE}
_CLASS = re.compile(r"class (\w+)|(\w+) = (?:TypedDict|Union)\b")


def files() -> Dict[str, str]:
    """The text of each schema by the name of its file."""
    made = {}
    for module in MODULES:
        comments = _comments(inspect.getsource(module))
        for name, kind in vars(module).items():
            if not name.endswith("Answer"):
                continue
            words = re.findall("[A-Z][a-z]+", name)[:-1]
            about = comments.get((name, ""), "")
            verbs = ", ".join(re.findall("`([^`]+)`", about)) or " ".join(words).lower()
            verbs = verbs.replace("reset stats", "reset-stats")
            schema = {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "title": f"writebackctl --json {verbs}",
                "description": f"{about} {_UNITS}".strip() if "`" not in about else _UNITS,
                **_of(kind),
            }
            made["-".join(words).lower() + ".json"] = _text(schema) + "\n"
    return made


def _of(kind: Any) -> Json:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(*args)
    if origin is Literal:
        return {"enum": list(args)}
    if origin is Union:
        return _union(args)
    if origin in (list, tuple):
        return {"type": "array", "items": _of(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(args[1])}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if issubclass(kind, Enum):
        return {"enum": [each.value for each in kind]}
    hints, keys = get_type_hints(kind, include_extras=True), _keys(kind)
    required = getattr(kind, "__required_keys__", keys)
    return {
        "type": "object",
        "required": [key for key in keys if key in required],
        "properties": {key: _described(_of(hints[key]), text) for key, text in keys.items()},
    }


def _annotated(kind: Any, meaning: Any) -> Json:
    if not isinstance(meaning, Range):
        return _of(meaning)
    known = {"minimum": meaning.least, "maximum": meaning.most, "description": meaning.unit}
    return {**_of(kind), **{name: each for name, each in known.items() if each not in (None, "")}}


def _union(kinds: Tuple[Any, ...]) -> Json:
    first, *others = map(_of, kinds)
    if others != [{"type": "null"}]:
        return {"anyOf": [first, *others]}
    if "enum" in first:
        return {**first, "enum": [*first["enum"], None]}
    return {**first, "type": [first["type"], "null"]}


def _described(schema: Json, text: str) -> Json:
    if text.startswith("= "):
        text = _HELP[text[2:]]
    text = ", ".join(filter(None, (text, schema.pop("description", ""))))
    return {"description": text, **schema} if text else schema


def _keys(kind: Any) -> Dict[str, str]:
    """The keys of a part with their descriptions, those of its bases first."""
    keys: Dict[str, str] = {}
    module = sys.modules[kind.__module__]
    source = inspect.getsource(module)
    # By name: a TypedDict forgets its bases before Python 3.12.
    for name in re.findall(rf"^class {kind.__name__}\((\w+)", source, re.MULTILINE):
        base = vars(module)[name]
        if name != "NamedTuple" and inspect.isclass(base) and not issubclass(base, Enum):
            keys.update(_keys(base))
    comments = _comments(source)
    names = kind.__annotations__
    keys.update({key: comments.get((kind.__name__, key), keys.get(key, "")) for key in names})
    return {key: text for key, text in keys.items() if (kind.__name__, key) != _HIDDEN}


def _comments(source: str) -> Dict[Tuple[str, str], str]:
    """The comments by class and key; key "" is the class itself."""
    comments: Dict[int, str] = {
        token.start[0]: token.string.lstrip("# ").replace("None:", "null:")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and "fmt: skip" not in token.string
    }
    found: Dict[Tuple[str, str], str] = {}
    part = ""
    above: List[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        comment, code = comments.get(number, ""), line.strip()
        if code.startswith("#"):
            above.append(comment)
            continue
        opened = _CLASS.match(line)
        if opened:
            part = opened[1] or opened[2]
            found[part, ""] = " ".join(above)
            above = []
        for key in _named(code):
            found[part, key] = " ".join([*above, *([comment] if comment else [])])
            above = []
        if not code:
            above = []
    return found


def _named(code: str) -> Iterator[str]:
    """The keys of a line of code; one that has a comment has one key."""
    if code.startswith('"'):
        yield from re.findall(r'"(\w+)": ', code)
    else:
        field = re.match(r"(\w+): ", code)
        yield from [field[1]] if field else re.findall(r'[{ ]"(\w+)": ', code)


def _text(value: Any, indent: str = "") -> str:
    """JSON with a line for each property that has none below it."""
    if isinstance(value, list) and "properties" in str(value):
        return f"[{', '.join(_text(each, indent) for each in value)}]"
    if not isinstance(value, dict) or "'properties'" not in str(value):
        return json.dumps(value)
    inner = indent + " "
    lines = []
    for key, each in value.items():
        text = _text(each, inner)
        if key == "properties":
            rows = (f"{inner} {json.dumps(name)}: {_text(one, inner + ' ')}"
                    for name, one in each.items())  # fmt: skip
            text = "{\n" + ",\n".join(rows) + f"\n{inner}}}"
        lines.append(f"{inner}{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def main() -> int:
    for name, text in files().items():
        (PLACE / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
