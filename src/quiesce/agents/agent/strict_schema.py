"""The strict variant of a JSON schema: objects with all their properties required and no others.

Providers that hold a model to its schema while it writes (OpenAI's "strict") accept only this variant, and
only some of the keywords. An object with free keys, a value of any kind, and a tuple have no strict variant.
Keywords that the providers do not know are left out; the decoder checks them when the arguments come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_DROPPED = frozenset(
    {
        "contentEncoding",
        "default",
        "discriminator",
        "examples",
        "maxLength",
        "maxProperties",
        "minLength",
        "minProperties",
        "title",
        "uniqueItems",
    }
)
_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})
_JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


class NotStrict(ValueError):
    """A schema has no strict variant; the message says where and why."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Make the strict variant of an object's schema, or raise `NotStrict`. It leaves the schema as it is."""
    if schema.get("type") != "object":
        raise NotStrict("it is not the schema of an object")
    strict = _strict(schema, "$")
    if "$defs" in schema:
        strict["$defs"] = {name: _strict(part, name) for name, part in schema["$defs"].items()}
    return strict


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema without titles, which only repeat names, and with the types of its enums."""
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in {"properties", "$defs", "patternProperties"} and isinstance(value, Mapping):
            plain[key] = {name: plain_schema(part) for name, part in value.items()}
        elif key in {"default", "enum", "const", "examples", "required", "discriminator"}:
            plain[key] = value
        elif isinstance(value, Mapping):
            plain[key] = plain_schema(value)
        elif isinstance(value, list):
            plain[key] = [plain_schema(part) if isinstance(part, Mapping) else part for part in value]
        else:
            plain[key] = value
    if "enum" in plain and "type" not in plain:
        types = sorted({_JSON_TYPES[type(value)] for value in plain["enum"] if type(value) in _JSON_TYPES})
        plain["type"] = types[0] if len(types) == 1 else types
    return plain


def _strict(schema: Any, where: str) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise NotStrict(f"{where} is {schema!r}")
    strict = {key: value for key, value in schema.items() if key not in _DROPPED and key != "$defs"}
    # All properties are required, so the model has to write a value. The description tells it the usual one.
    if "default" in schema and schema["default"] is not None:
        shown = msgspec.json.encode(schema["default"]).decode()
        strict["description"] = f"{schema.get('description', '')} (default: {shown})".strip()
    if strict.get("format") not in _FORMATS:
        strict.pop("format", None)
    # Strict schemas have no `oneOf`. `anyOf` says almost the same, and the decoder checks the rest.
    if "oneOf" in strict and "anyOf" not in strict:
        strict["anyOf"] = strict.pop("oneOf")
    if "prefixItems" in strict:
        raise NotStrict(f"{where} is a tuple")
    if "allOf" in strict or "patternProperties" in strict:
        raise NotStrict(f"{where} is made of parts that strict schemas do not have")
    if "$ref" in strict:
        if len(strict) == 1:
            return strict
        # A reference must not have other keywords next to it, such as a description.
        return {"anyOf": [{"$ref": strict.pop("$ref")}], **strict}
    if "anyOf" in strict:
        strict["anyOf"] = [_strict(part, where) for part in strict["anyOf"]]
        return strict
    if strict.get("type") == "object" or "properties" in strict:
        properties = strict.get("properties", {})
        if strict.get("additionalProperties", False) is not False:
            raise NotStrict(f"{where} has free keys")
        # An object that says nothing about its properties allows any. At the top it is a tool without
        # arguments.
        if not properties and "additionalProperties" not in strict and where != "$":
            raise NotStrict(f"{where} has free keys")
        strict["properties"] = {name: _strict(part, f"{where}.{name}") for name, part in properties.items()}
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
        return strict
    if "items" in strict:
        strict["items"] = _strict(strict["items"], f"{where}[...]")
    elif strict.get("type") == "array":
        raise NotStrict(f"{where} is a list of anything")
    if "type" not in strict and "enum" not in strict and "const" not in strict:
        raise NotStrict(f"{where} may be anything")
    return strict
