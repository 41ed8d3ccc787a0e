"""Write `quiesce.acp.schema` and `tests/acp/definitions.py` from the schema of the Agent Client Protocol.

    python scripts/generate_acp_schema.py path/to/@agentclientprotocol/sdk/schema/v1/schema.json
    python scripts/generate_acp_schema.py --check path/to/…/schema.json

The JSON schema is the one in the npm package `@agentclientprotocol/sdk`. It is not part of this repository.
The version comes from the `package.json` of that package, the names come from `acp_schema_names.py`.
`--check` writes nothing, and fails if the files differ from what would be written.

A definition that only names a string or a number becomes that type. Every other one becomes a `Literal`, a
class, or a union with one class per variant. msgspec can read a union if every variant has a tag; any other
union is `by_shape`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from acp_schema_names import LINES, MORE_UNIONS, TOPICS, UNKNOWN, VARIANTS

Node = dict[str, Any]

ROOT = Path(__file__).parent.parent
PACKAGE = "src/quiesce/acp/schema"
# The table that only tests read. It would be 400 lines of the wheel.
DEFINITIONS = "tests/acp/definitions.py"
# The names that the generated modules import from `message`.
BASES = (
    "Lenient",
    "Message",
    "NonEmpty",
    "NonNegative",
    "NullIsEmpty",
    "UnknownVariant",
    "Unsigned16",
    "by_shape",
    "tagged",
)


@dataclass
class Item:
    """One statement of a module. `needs` are names it uses; those in `first` must be defined before it."""

    name: str
    text: str
    needs: set[str]
    first: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Shape:
    """One way that an object can look: its tag, the definition it extends, and its other properties."""

    labels: tuple[str, ...] = ()
    tag: tuple[str, str] | None = None
    base: str | None = None
    properties: tuple[tuple[str, Node, bool], ...] = ()

    def and_also(self, other: Shape) -> Shape:
        labels = self.labels + other.labels
        return Shape(
            labels, self.tag or other.tag, self.base or other.base, self.properties + other.properties
        )


def reference(node: Node) -> str | None:
    """Return the name of the definition that a node refers to, if it adds only remarks to it."""
    if "$ref" in node:
        return str(node["$ref"]).rpartition("/")[2]
    if "allOf" in node and len(node["allOf"]) == 1:
        return reference(node["allOf"][0])
    return None


def alternatives(node: Node) -> list[Node]:
    found: list[Node] = node.get("oneOf") or node.get("anyOf") or []
    return [one for one in found if one.get("type") != "null"]


def snake(wire: str) -> str:
    if wire == "_meta":
        return "field_meta"
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", wire)


class Generator:
    """Turns definitions into items, and those into modules."""

    def __init__(self, schema: Node, version: str) -> None:
        self.definitions: dict[str, Node] = schema["$defs"]
        self.version = version
        self.items: dict[str, list[Item]] = {topic: [] for topic in TOPICS}
        self.topic_of: dict[str, str] = {}  # by name of what is generated
        self.types: dict[str, str] = {}  # the Python type of each definition
        tagged = {(union, labels[0]): name for (union, *labels), name in VARIANTS.items()}
        self.merged = {name for (union, _), name in tagged.items() if name in self.definitions}

    # Types

    def type_of(self, node: Node) -> str:
        """Return the Python type of a node, without None."""
        if name := reference(node):
            return self.type_of_definition(name)
        kind = node.get("type")
        if isinstance(kind, list):
            (kind,) = (one for one in kind if one != "null")
        if kind is None and (options := alternatives(node)):
            (only,) = options
            return self.type_of(only)
        if kind == "array":
            return f"list[{self.type_of(node['items'])}]"
        if kind == "object":
            values = node.get("additionalProperties", True)
            return f"dict[str, {'Any' if values is True else self.type_of(values)}]"
        if kind == "integer":
            if node.get("minimum") == 0:
                return "Unsigned16" if node.get("maximum") == 65535 else "NonNegative"
            return "int"
        if kind == "string":
            return "NonEmpty" if node.get("minLength") == 1 else "str"
        return {"number": "float", "boolean": "bool", None: "Any"}[kind]

    def type_of_definition(self, name: str) -> str:
        """Return how an annotation names a definition: by its own name, or by the type that it renames."""
        node = self.definitions[name]
        options = alternatives(node)
        if "properties" in node or node.get("type") == "object":
            return name
        if not options:
            return self.type_of(node)
        if all(one.get("type") in ("string", "integer", "number", "boolean", "array") for one in options):
            if all("const" in one for one in options) or any(
                "$ref" in one.get("items", {}) for one in options
            ):
                return name
            types = dict.fromkeys(self.type_of(one) for one in options)
            nullable = len(options) < len(node.get("oneOf") or node["anyOf"])
            return " | ".join([*types, "None"] if nullable else types)
        if len(options) == 1:
            return reference(options[0]) or name
        return name

    # Shapes

    def shapes(self, node: Node) -> list[Shape]:
        """Return every shape that an object can have, except for kinds that the schema leaves open."""
        required = set(node.get("required", ()))
        consts = {key: one["const"] for key, one in node.get("properties", {}).items() if "const" in one}
        tag = next(iter(consts.items()), None)
        properties = tuple(
            (key, one, key in required)
            for key, one in node.get("properties", {}).items()
            if key != "_meta" and key not in consts
        )
        label = (tag[1],) if tag else (node["title"],) if "title" in node else ()
        found = [Shape(label, tag, None, properties)]
        if name := reference({"allOf": node["allOf"]} if "allOf" in node else {}):
            target = self.definitions[name]
            extended = self.shapes(target) if alternatives(target) else [Shape((), None, name)]
            found = [one.and_also(other) for one, other in product(found, extended)]
        options = [one for one in alternatives(node) if "not" not in one]
        if options:
            within = [shape for one in options for shape in self.shapes(one)]
            found = [one.and_also(other) for one, other in product(found, within)]
        return found

    def class_of(self, union: str, shape: Shape) -> str:
        if name := VARIANTS.get((union, *shape.labels)):
            return name
        if shape.base and shape.tag is None and not shape.properties:
            return shape.base
        raise SystemExit(f"{union}: there is no name for its variant {shape.labels}; add it to VARIANTS")

    # Items

    def add(self, topic: str, item: Item) -> None:
        self.topic_of[item.name] = topic
        self.items[topic].append(item)

    def names_in(self, expression: str) -> set[str]:
        return {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}

    def property_line(self, key: str, node: Node, *, required: bool) -> tuple[str, str | None]:
        """Return the line of a field, and the class that makes its default."""
        kind = "Any" if key in ("params", "result") else self.type_of(node)
        options: list[str] = []
        factory = None
        bare = kind  # what it is without None
        if "default" in node:
            default = node["default"]
            if isinstance(default, dict | list):
                factory = kind if kind in self.definitions else type(default).__name__
                options.append(f"default_factory={factory}")
            else:
                options.append(f"default={default!r}")
        elif not required:
            options.append("default=None")
            kind = kind if kind == "Any" or kind.endswith("None") else f"{kind} | None"
        if node.get("x-deserialize-default-on-error") and bare != "Any":
            kind = f"Lenient[{kind}]"
        elif node.get("x-deserialize-default-on-null") and required:
            kind = f"NullIsEmpty[{kind}]"
        attribute = snake(key)
        if options and "factory" not in options[0]:
            return f"{attribute}: {kind} = {options[0].removeprefix('default=')}", None
        line = f"{attribute}: {kind}" + (f" = field({', '.join(options)})" if options else "")
        return line, factory if factory in self.definitions else None

    def add_class(
        self, topic: str, name: str, shape: Shape, line: str, *, unknown: str | None = None
    ) -> None:
        """Add the class of a definition, or of one variant of a union."""
        properties = shape.properties
        base = shape.base
        if base in self.merged:
            properties = self.shapes(self.definitions[base])[0].properties + properties
            base = None
        parents = [base or ("UnknownVariant" if unknown else "Message"), "kw_only=True"]
        body = [f'    """{line}"""']
        needs = {"UnknownVariant" if unknown else "Message"}
        first = {base} if base else set()
        lines = []
        for key, node, required in properties:
            text, factory = self.property_line(key, node, required=required)
            lines.append(f"    {text}")
            needs |= self.names_in(text.partition(": ")[2].partition(" = ")[0])
            if factory:
                first.add(factory)
        if unknown:
            parents += [f"tag_field={unknown!r}", 'tag="(unknown)"']
            lines.append(f'    {snake(unknown)}: str = field(name="({unknown})")')
        elif shape.tag:
            key, value = shape.tag
            parents += [f"tag_field={key!r}", f"tag={value!r}"]
            lines.append(f'    {snake(key)}: Literal[{value!r}] = field(default={value!r}, name="({key})")')
            lines.append(f"\n    __post_init__ = tagged({snake(key)!r}, {value!r})  # type: ignore[misc]")
            needs.add("tagged")
        if any(re.match(r"    list: ", one) for one in lines) and any("list[" in one for one in lines):
            raise SystemExit(f"{name}: its field `list` hides the type that another of its fields has")
        body += ["", *lines] if lines else []
        text = f"class {name}({', '.join(parents)}):\n" + "\n".join(body)
        self.add(topic, Item(name, text, needs | first, first))

    def add_union(
        self, topic: str, name: str, members: list[str], *, shape: bool, many: bool = False
    ) -> None:
        listed = " | ".join(f"list[{one}]" for one in members) if many else " | ".join(members)
        alias = f"{name}: TypeAlias = {listed}"
        needs = set(members)
        if shape:
            made = ", ".join([repr(name), *members, *(["many=True"] if many else [])])
            alias = f"if TYPE_CHECKING:\n    {alias}\nelse:\n    {name} = by_shape({made})"
            needs |= {"by_shape"}
        self.add(topic, Item(name, alias, needs, set(members)))

    def line_of(self, name: str, node: Node) -> str:
        if method := node.get("x-method"):
            return f"The {'result' if name.endswith('Response') else 'parameters'} of `{method}`."
        if name not in LINES:
            raise SystemExit(f"{name}: there is no line about it; add it to LINES")
        return LINES[name]

    def add_definition(self, topic: str, name: str) -> None:
        node = self.definitions[name]
        self.types[name] = self.type_of_definition(name)
        options = alternatives(node)
        if name in self.merged:
            return
        if self.types[name] != name:
            if name in TOPICS[topic][1]:
                needs = self.names_in(self.types[name])
                self.add(topic, Item(name, f"{name}: TypeAlias = {self.types[name]}", needs, needs))
            return
        if not options:
            self.add_class(topic, name, self.shapes(node)[0], self.line_of(name, node))
        elif all("const" in one for one in options):
            values = ", ".join(repr(one["const"]) for one in options)
            self.add(topic, Item(name, f"{name}: TypeAlias = Literal[{values}]", set()))
        elif all(one.get("type") == "array" for one in options):
            self.add_union(
                topic, name, [self.type_of(one["items"]) for one in options], shape=True, many=True
            )
        else:
            self.add_variants(topic, name, node)

    def add_variants(self, topic: str, name: str, node: Node) -> None:
        shapes = self.shapes({key: value for key, value in node.items() if key != "title"})
        members = []
        for shape in shapes:
            member = self.class_of(name, shape)
            members.append(member)
            if member != shape.base or shape.tag:
                line = LINES.get(member) or (
                    f"The `{name}` whose `{shape.tag[0]}` is `{shape.tag[1]}`."
                    if shape.tag
                    else self.line_of(name, node)
                )
                self.add_class(topic, member, shape, line)
        tags = [shape.tag for shape in shapes]
        if name in UNKNOWN:
            discriminator, unknown = UNKNOWN[name]
            common = replace(self.shapes({**node, "anyOf": [], "oneOf": []})[0], labels=(), tag=None)
            line = f"{'An' if name[0] in 'AEIO' else 'A'} `{name}` of a kind that the schema does not have."
            self.add_class(topic, unknown, common, line, unknown=discriminator)
            members.append(unknown)
        self.add_union(topic, name, members, shape=None in tags or len(set(tags)) < len(tags))

    # Modules

    def build(self) -> dict[str, str]:
        claimed = {name: topic for topic, (_, names) in TOPICS.items() for name in names}
        for name in [*claimed, *(name for name in self.definitions if name not in claimed)]:
            if name not in self.definitions:
                raise SystemExit(f"the schema no longer has {name}")
            node = self.definitions[name]
            side = {"client": "client_methods", "agent": "agent_methods"}.get(node.get("x-side", ""), "enums")
            self.add_definition(claimed.get(name, side), name)
        for name, members in MORE_UNIONS.items():
            self.add_union(self.topic_of[members[0]], name, list(members), shape=False)
        modules = {f"{PACKAGE}/{topic}.py": self.module(topic) for topic in TOPICS}
        modules[f"{PACKAGE}/__init__.py"] = self.public_module()
        modules[DEFINITIONS] = self.definitions_module()
        return {path: formatted(text, path) for path, text in modules.items()}

    def header(self, line: str, more: str = "") -> str:
        source = (
            f"Generated by scripts/generate_acp_schema.py from the stable schema of the npm package\n"
            f"@agentclientprotocol/sdk {self.version}. Do not edit."
        )
        return f'"""{line}\n\n{more}{source}\n"""\n\nfrom __future__ import annotations\n\n'

    def module(self, topic: str) -> str:
        items = in_order(self.items[topic])
        here = {item.name for item in items}
        needs = set().union(*(item.needs for item in items))
        text = "\n\n\n".join(item.text for item in items)
        lines = []
        if typing := [
            one for one in ("TYPE_CHECKING", "Any", "Literal", "TypeAlias") if re.search(rf"\b{one}\b", text)
        ]:
            lines.append(f"from typing import {', '.join(typing)}\n")
        if "= field(" in text:
            lines.append("from msgspec import field\n")
        if bases := sorted(needs & set(BASES)):
            lines.append(f"from .message import {', '.join(bases)}")
        topics = list(TOPICS)
        earlier = topics[: topics.index(topic)]
        lines += self.imports(sorted(name for name in needs - here if self.topic_of.get(name) in earlier))
        known = here | set(BASES) | {"Any", "str", "int", "float", "bool", "list", "dict", "None"}
        if lost := {name for name in needs - known if f" {name}" not in "\n".join(lines)}:
            raise SystemExit(f"{topic} needs {', '.join(sorted(lost))} of a later topic")
        return self.header(TOPICS[topic][0]) + "\n".join(lines) + "\n\n" + text + "\n"

    def imports(self, names: list[str]) -> list[str]:
        by_topic: dict[str, list[str]] = {}
        for name in names:
            by_topic.setdefault(self.topic_of[name], []).append(name)
        return [f"from .{topic} import {', '.join(here)}" for topic, here in by_topic.items()]

    def public_module(self) -> str:
        names = {"message": ["Message", "UnknownVariant"]}
        names |= {topic: [item.name for item in items] for topic, items in self.items.items()}
        lines = [
            f"    from .{topic} import {name} as {name}"
            for topic, here in names.items()
            for name in sorted(here)
        ]
        return (
            self.header("Every message of the Agent Client Protocol, and all that they consist of.")
            + "from typing import TYPE_CHECKING\n\nfrom quiesce._lazy import offer\n\nif TYPE_CHECKING:\n"
            + "\n".join(lines)
            + "\n\noffer()\n"
        )

    def definitions_module(self) -> str:
        """The tables with the type of each definition, and with the types of each method, for tests."""
        text = (
            "DEFINITIONS: Final[dict[str, Any]] = {"
            + ", ".join(f"{name!r}: {kind}" for name, kind in sorted(self.types.items()))
            + "}\n\n"
        )
        for side, about in (
            ("agent", "The methods of an agent: the types of their parameters and of their results."),
            ("client", "The methods of a client."),
        ):
            rows = ", ".join(
                f"{method!r}: ({takes}, {answers})" for method, takes, answers in self.methods(side)
            )
            text += f"# {about}\n{side.upper()}_TYPES: Final[dict[str, tuple[Any, Any]]] = {{{rows}}}\n"
        used = self.names_in(text)
        names = sorted(used & self.topic_of.keys())
        bases = sorted(used & set(BASES))
        lines = [
            "from typing import Any, Final\n",
            f"from quiesce.acp.schema import {', '.join(names)}",
            f"from quiesce.acp.schema.message import {', '.join(bases)}",
        ]
        return self.header("The type of every definition of the schema, and the types of every method.") + (
            "\n".join(lines) + "\n\n" + text
        )

    def methods(self, side: str) -> Iterator[tuple[str, str, str | None]]:
        found: dict[str, dict[str, str]] = {}
        for name, node in self.definitions.items():
            if node.get("x-side") == side:
                answers = name.endswith("Response")
                found.setdefault(node["x-method"], {})["answers" if answers else "takes"] = self.types[name]
        for method, kinds in found.items():
            yield method, kinds["takes"], kinds.get("answers")


def in_order(items: Iterable[Item]) -> list[Item]:
    """Return the items in their order, except that each comes after those that it needs first."""
    waiting, done, placed = list(items), list[Item](), set[str]()
    here = {item.name for item in waiting}
    while waiting:
        item = next((one for one in waiting if one.first & here <= placed), None)
        if item is None:
            raise SystemExit(f"these need each other: {', '.join(one.name for one in waiting)}")
        waiting.remove(item)
        done.append(item)
        placed.add(item.name)
    return done


def formatted(text: str, path: str) -> str:
    """Return the text of the module at this path as `make format` leaves it."""
    for command in (["check", "--select", "I", "--fix-only", "--quiet"], ["format"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"]
        done = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True, cwd=ROOT)
        text = done.stdout
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("schema", type=Path, help="schema/v1/schema.json of the npm package")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    package = json.loads((options.schema.parent.parent.parent / "package.json").read_text())
    modules = Generator(json.loads(options.schema.read_text()), package["version"]).build()
    stale = []
    for name, text in modules.items():
        path = ROOT / name
        if options.check:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.write_text(text)
    if stale:
        print(f"these differ from what {options.schema.name} gives: {', '.join(stale)}; run without --check")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
