"""The official JSON schema itself against the classes made from it.

It is not part of this repository. `make test-interop` sets ACP_SCHEMA to the path of `schema/v1/schema.json`
in the npm package `@agentclientprotocol/sdk`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.acp.definitions import DEFINITIONS

from quiesce.acp.protocol.codec import InvalidMessage, decode, encode

SCRIPT = Path(__file__).parent.parent / "scripts" / "generate_acp_schema.py"


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(os.environ["ACP_SCHEMA"]).read_text())["$defs"]
    return found


class Samples:
    """Values that a JSON schema describes: with and without optional parts, and one per alternative."""

    def __init__(self, definitions: dict[str, Any], *, full: bool) -> None:
        self.definitions = definitions
        self.full = full

    def of(self, node: dict[str, Any]) -> Iterator[Any]:
        if "$ref" in node:
            yield from self.of(self.definitions[node["$ref"].rpartition("/")[2]])
        elif "const" in node:
            yield node["const"]
        elif "properties" in node or node.get("type") == "object" or "allOf" in node:
            yield from self.objects(node)
        elif alternatives := [*node.get("oneOf", ()), *node.get("anyOf", ())]:
            for one in alternatives:
                if one.get("type") != "null":
                    yield from self.of(one)
        else:
            yield from self.plain(node)

    def plain(self, node: dict[str, Any]) -> Iterator[Any]:
        kind = node.get("type")
        kind = next(one for one in kind if one != "null") if isinstance(kind, list) else kind
        if kind == "array":
            for item in self.of(node["items"]):
                yield [item]
        elif kind == "object":
            yield from self.objects({**node, "type": "object"})
        else:
            yield {"string": "words", "integer": 7, "number": 0.5, "boolean": True, None: {"any": [1]}}[kind]

    def objects(self, node: dict[str, Any]) -> Iterator[Any]:
        """All that is listed, all that it extends, and each of the alternatives that it may have besides."""
        required = set(node.get("required", ()))
        fields: dict[str, list[Any]] = {}
        for name, one in node.get("properties", {}).items():
            if name in required or self.full:
                fields[name] = [{"k": 1}] if name == "_meta" else list(self.of(one))
        more = node.get("additionalProperties")
        if isinstance(more, dict) and self.full:
            fields["key"] = list(self.of(more))
        longest = max((len(one) for one in fields.values()), default=1)
        own = [{name: one[index % len(one)] for name, one in fields.items()} for index in range(longest)]
        parts = [own, *(list(self.of(one)) for one in node.get("allOf", ()))]
        if alternatives := [*node.get("oneOf", ()), *node.get("anyOf", ())]:
            parts.append([value for one in alternatives for value in self.of(one)])
        for combination in product(*parts):
            merged: dict[str, Any] = {}
            for part in combination:
                if not isinstance(part, dict):  # what it extends is no object after all
                    yield part
                    break
                merged.update(part)
            else:
                yield merged


# Definitions that are used as one variant of a union alone: their classes have its tag.
TAGGED = {
    name
    for name, kind in DEFINITIONS.items()
    if getattr(getattr(kind, "__struct_config__", None), "tag", None)
}


def without_defaults(value: Any) -> Any:
    """Without what need not be written: capabilities that say nothing, and that a form is an object."""
    if isinstance(value, list):
        return [without_defaults(one) for one in value]
    if not isinstance(value, dict):
        return value
    cleaned = {name: without_defaults(one) for name, one in value.items()}
    return {
        name: one
        for name, one in cleaned.items()
        if not (one == {} and name.endswith(("Capabilities", "fs", "auth")))
        and (name, one) != ("type", "object")
    }


def test_the_schema_has_the_definitions_that_there_are_types_for(definitions: dict[str, Any]) -> None:
    assert sorted(definitions) == sorted(DEFINITIONS)


@pytest.mark.parametrize("full", [False, True], ids=["only what it must have", "with all it can have"])
def test_whatever_the_schema_describes_is_read_and_written_again(
    definitions: dict[str, Any], full: bool
) -> None:
    samples = Samples(definitions, full=full)
    total = 0
    for name, node in definitions.items():
        for value in samples.of(node):
            message = decode(json.dumps(value).encode(), DEFINITIONS[name])
            written = json.loads(encode(message))
            if name in TAGGED:  # which the schema adds to it where it is used
                del written[DEFINITIONS[name].__struct_config__.tag_field]
            assert without_defaults(written) == without_defaults(value), name
            total += 1
    assert total > len(definitions)


def test_whatever_lacks_a_required_field_is_refused(definitions: dict[str, Any]) -> None:
    samples = Samples(definitions, full=True)
    for name, node in definitions.items():
        if node.get("type") != "object" or "anyOf" in node or "oneOf" in node:
            continue
        value = next(iter(samples.of(node)))
        for required in node.get("required", ()):
            lacking = {key: one for key, one in value.items() if key != required}
            with pytest.raises(InvalidMessage, match="is missing") as caught:
                decode(json.dumps(lacking).encode(), DEFINITIONS[name])
            assert caught.value.path == required, name


def test_the_classes_are_what_the_generator_makes_of_the_schema() -> None:
    pytest.importorskip("ruff")
    subprocess.run(
        [sys.executable, str(SCRIPT), "--check", os.environ["ACP_SCHEMA"]], check=True, timeout=120
    )
