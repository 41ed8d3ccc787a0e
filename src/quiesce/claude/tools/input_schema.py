"""The JSON schema of a tool's input, from what it was declared with.

As claude-agent-sdk reads it: a JSON schema is one (`type` and `properties` are in it), any other dict is names and types, all required, and a
TypedDict says itself what is. A type that says nothing in JSON is a string; anything else that is declared takes an object of any shape.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

InputSchema: TypeAlias = "type | dict[str, Any]"

_PLAIN: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}


def input_schema_of(declared: InputSchema) -> dict[str, Any]:
    """The schema that the CLI is told."""
    if isinstance(declared, dict):
        if "properties" in declared and isinstance(declared.get("type"), str):
            return declared
        properties = {name: _schema(kind) for name, kind in declared.items()}
        return {"type": "object", "properties": properties, "required": list(properties)}
    if is_typeddict(declared):
        return _of_typeddict(declared)
    return {"type": "object", "properties": {}}


def _of_typeddict(declared: Any) -> dict[str, Any]:
    hints = get_type_hints(declared, include_extras=True)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema(kind) for name, kind in hints.items()},
    }
    if required := sorted(declared.__required_keys__):
        schema["required"] = required
    return schema


def _schema(kind: Any) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (NotRequired, Required) or getattr(origin, "_name", None) == "ReadOnly":
        return _schema(args[0])
    if origin is Annotated:
        schema = _schema(args[0])
        if said := [word for word in args[1:] if isinstance(word, str)]:
            schema["description"] = said[0]
        return schema
    if origin in (Union, UnionType):
        kinds = [one for one in args if one is not NoneType]
        return _schema(kinds[0]) if len(kinds) == 1 else {"anyOf": [_schema(one) for one in kinds]}
    if origin is list and args:
        return {"type": "array", "items": _schema(args[0])}
    if is_typeddict(kind):
        return _of_typeddict(kind)
    try:
        return {"type": _PLAIN.get(origin or kind, "string")}
    except TypeError:  # not even hashable
        return {"type": "string"}
