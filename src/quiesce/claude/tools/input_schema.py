"""The JSON schema of a tool's input, from what it was declared with.

Declarations mean what they mean to claude-agent-sdk. A dict with `type` and `properties` is a JSON schema.
Any other dict maps names to types, all of them required. A TypedDict says itself which keys are required. A
type without a counterpart in JSON becomes a string; any other declaration accepts an object of any shape.
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
    """Return the schema that goes to the CLI."""
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
        if descriptions := [word for word in args[1:] if isinstance(word, str)]:
            schema["description"] = descriptions[0]
        return schema
    # `X | None` is the schema of X: whether a key may be missing is decided by the TypedDict, not by its
    # type.
    if origin in (Union, UnionType):
        kinds = [one for one in args if one is not NoneType]
        return _schema(kinds[0]) if len(kinds) == 1 else {"anyOf": [_schema(one) for one in kinds]}
    if origin is list and args:
        return {"type": "array", "items": _schema(args[0])}
    if is_typeddict(kind):
        return _of_typeddict(kind)
    try:
        return {"type": _PLAIN.get(origin or kind, "string")}
    except TypeError:  # an unhashable declaration, such as a list
        return {"type": "string"}
