"""Tools that both libraries serve, and the messages that their servers answer; `sdk` is claude_agent_sdk or quiesce.claude.

Annotations are real ones here, or a TypedDict could not tell which of its keys are required.
"""

from typing import Annotated, Any, List, Literal, NotRequired, Optional, TypedDict, Union  # noqa: UP035


class Place(TypedDict):
    street: str
    number: NotRequired[int]


class Person(TypedDict, total=False):
    name: str
    age: Annotated[int, "in years", "not this"]
    places: list[Place]


class NotADeclaration:
    pass


DECLARED: dict[str, Any] = {
    "nothing": {},
    "plain": {"text": str, "count": int, "size": float, "sure": bool, "many": list, "more": dict},
    "generic": {"a": list[int], "b": dict[str, int], "c": List[str], "d": List, "e": list[list[Place]]},  # noqa: UP006
    "unions": {"a": int | None, "b": Optional[str], "c": int | str, "d": Union[int, str, None]},  # noqa: UP007, UP045
    "described": {
        "a": Annotated[str, "what to say"],
        "b": Annotated[list[int], 5],
        "c": Annotated[int | None, "n"],
    },
    "others": {
        "a": bytes,
        "b": Any,
        "c": Literal["x", "y"],
        "d": tuple[int, int],
        "e": None,
        "f": "text",
        "g": [1],
    },
    "typeddict": Place,
    "typeddict of options": Person,
    "schema": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
    "schema without properties": {"type": "object"},
    "names that a schema has": {"type": str, "properties": dict},
    "class": NotADeclaration,
    "str": str,
}

RETURNED: dict[str, Any] = {
    "text": {"content": [{"type": "text", "text": "hi", "more": 1}, {"type": "text", "text": "ho"}]},
    "image": {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]},
    "link": {"content": [{"type": "resource_link", "name": "n", "uri": "file:///x", "description": "d"}]},
    "link to nothing": {"content": [{"type": "resource_link"}]},
    "text resource": {"content": [{"type": "resource", "resource": {"uri": "file:///x", "text": "inside"}}]},
    "error": {"content": [{"type": "text", "text": "no"}], "is_error": True},
    "nothing": {},
    "no content": {"content": []},
}
LEFT_OUT: dict[str, Any] = {
    "binary resource": {
        "content": [
            {"type": "resource", "resource": {"uri": "file:///x", "blob": "AAAA"}},
            {"type": "text", "text": "t"},
        ]
    },
    "unknown": {"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]},
}


def server(sdk: Any) -> Any:
    """With a tool for each declaration, one for each result, and those that the calls below are of."""

    async def echo(args: dict[str, Any]) -> dict[str, Any]:
        return {
            "content": [{"type": "text", "text": ", ".join(f"{key}={args[key]}" for key in sorted(args))}]
        }

    async def fail(args: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("it failed")

    def returning(value: Any) -> Any:
        async def give(args: dict[str, Any]) -> Any:
            return value

        return give

    hints = sdk.ToolAnnotations(read_only_hint=True, openWorldHint=False, title="T", max_result_size_chars=9)
    return sdk.create_sdk_mcp_server(
        "table",
        "2.5.0",
        [
            *(sdk.tool(f"declared {name}", name, kind)(echo) for name, kind in DECLARED.items()),
            *(
                sdk.tool(f"returns {name}", name, {})(returning(value))
                for name, value in (RETURNED | LEFT_OUT).items()
            ),
            sdk.tool("add", "Add", {"a": int, "b": float})(echo),
            sdk.tool("fail", "Fail", {})(fail),
            sdk.tool("hinted", "Hints", {}, hints)(echo),
            sdk.tool("hinted by nothing", "Hints", {}, annotations=sdk.ToolAnnotations())(echo),
        ],
    )


def _asked(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:  # noqa: A002
    return {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})


def _called(name: str, arguments: Any = None) -> dict[str, Any]:
    return _asked("tools/call", {"name": name} | ({} if arguments is None else {"arguments": arguments}))


def _hello(version: str) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "cli", "version": "2"}}


MESSAGES: list[dict[str, Any]] = [
    _asked("initialize", _hello("2025-11-25"), 0),
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    _asked("initialize", _hello("2024-11-05"), "a"),
    _asked("initialize", _hello("2025-03-26"), "b"),
    _asked("initialize", _hello("2025-06-18"), "c"),
    _asked("initialize", _hello("1999-01-01"), "d"),
    _asked("ping"),
    _asked("tools/list"),
    _asked("tools/list", {}),
    _asked("resources/list"),
    _asked("resources/templates/list"),
    _asked("prompts/list"),
    _asked("of/the/future"),
    {"jsonrpc": "2.0", "method": "notifications/of_the_future"},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}},
    {"jsonrpc": "2.0", "id": 5, "result": {}},
    *(_called(f"returns {name}") for name in RETURNED | LEFT_OUT),
    _called("add", {"a": 1, "b": 2}),
    _called("add", {"a": 1, "b": 2.5, "c": "more"}),
    _called("add", {"a": 1}),
    _called("add", {"a": "x", "b": "y"}),
    _called("add", {"a": True, "b": 1}),
    _called("add", {"a": 1.0, "b": 1}),
    _called("add"),
    _called("nowhere", {}),
    _called("fail", {}),
    _called("declared unions", {"a": None, "b": "x", "c": [], "d": 1}),
    _called("declared typeddict", {"street": "x", "number": "y"}),
    _called("declared typeddict of options", {"places": [{"street": 5}]}),
    _called("declared schema", {"a": 2}),
    _called("declared schema without properties", {"type": "x"}),
    _called("declared class", {"any": "thing"}),
]
# Answered with the same code, in other words.
REFUSED: list[dict[str, Any]] = [
    _asked("initialize", {}),
    _asked("tools/call"),
    _asked("tools/call", {"arguments": {}}),
    _asked("tools/call", {"name": "add", "arguments": [1]}),
]
