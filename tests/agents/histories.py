"""Histories for tests of `repair`: anything at all, and valid ones that can be cut anywhere."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from quiesce.models import AssistantMessage, Note, Reasoning, ToolCall, ToolResult, UnknownItem, UserMessage

SHAPES = ("chat", "responses", "anthropic", "items")

ids = st.sampled_from(["a", "b", "c", "a_2"])
maybe_ids = st.sampled_from(["a", "b", "c", "", None])
names = st.sampled_from(["read", "write", "", None])
words = st.sampled_from(["one", "two", "three", " ", ""])
arguments = st.sampled_from(
    ["{}", '{"path":"x"}', '{"path":"/etc/pa', "{", "", None, "[1]", '"text"', {"path": "x"}, "nul"]
)


def record(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A dict of these strategies and values, of which those that give `...` are left out."""
    drawn = {
        name: value if isinstance(value, st.SearchStrategy) else st.just(value)
        for name, value in fields.items()
    }
    return st.fixed_dictionaries(drawn).map(
        lambda found: {name: value for name, value in found.items() if value is not ...}
    )


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.just(...) | strategy


# --- anything at all: no message is like the other, and none need be right ------------------------------------------------------

_text_parts = st.lists(record(type="text", text=words), max_size=3)
_chat_call = record(
    id=maybe_ids,
    type=st.sampled_from(["function", None, ...]),
    function=record(name=names, arguments=arguments),
) | record(id=ids, type="custom", custom=record(name="patch", input=words))
any_chat = st.lists(
    record(role=st.sampled_from(["user", "system", "developer", "critic"]), content=st.none() | words)
    | record(
        role="assistant",
        content=st.just(...) | st.none() | words | _text_parts,
        tool_calls=st.just(...) | st.none() | st.lists(_chat_call, max_size=3),
        function_call=st.just(...) | st.none() | record(name=names, arguments=arguments),
        refusal=st.sampled_from([..., None, "no"]),
    )
    | record(role="tool", tool_call_id=maybe_ids, content=st.none() | words)
    | record(role="function", name=names, content=st.none() | words),
    max_size=12,
)

_item_ids = st.sampled_from([..., "i1", "i2"])
any_responses = st.lists(
    record(
        role=st.sampled_from(["user", "assistant", "system"]),
        content=st.none() | words,
        id=_item_ids,
        type=st.sampled_from([..., "message"]),
    )
    | record(
        type="message", role="assistant", content=st.lists(record(type="output_text", text=words), max_size=2)
    )
    | record(type="function_call", id=_item_ids, call_id=maybe_ids, name=names, arguments=arguments)
    | record(type="function_call_output", call_id=maybe_ids, output=words)
    | record(type="custom_tool_call", call_id=maybe_ids, name=names, input=words | st.none())
    | record(type="custom_tool_call_output", call_id=maybe_ids, output=words)
    | record(
        type="local_shell_call", id=st.sampled_from(["s1", "s2"]), call_id=maybe_ids, action={"type": "exec"}
    )
    | record(type="local_shell_call_output", id=st.sampled_from(["a", "b", "s1"]), output=words)
    | record(type="shell_call", call_id=maybe_ids, action={"commands": ["ls"]})
    | record(type="apply_patch_call", call_id=maybe_ids, operation={"type": "delete_file"})
    | record(type="computer_call", call_id=maybe_ids, action={"type": "click"})
    | record(type="computer_call_output", call_id=maybe_ids, output={"type": "computer_screenshot"})
    | record(type="mcp_approval_request", id=maybe_ids, name=names, arguments=arguments, server_label="disk")
    | record(type="mcp_approval_response", approval_request_id=maybe_ids, approve=st.booleans())
    | record(type="reasoning", id=st.sampled_from(["r1", "r2", "r3"]), summary=[])
    | record(
        type=st.sampled_from(["web_search_call", "mcp_call", "something_new"]),
        id=st.sampled_from(["w1", "w2"]),
    ),
    max_size=12,
)

_blocks = (
    record(type="text", text=words)
    | record(type="tool_use", id=maybe_ids, name=names, input=st.just(...) | arguments)
    | record(
        type="tool_result", tool_use_id=maybe_ids, content=st.just(...) | st.none() | words | _text_parts
    )
    | record(type="thinking", thinking="hm", signature=st.sampled_from([..., "", "signed"]))
    | record(type="redacted_thinking", data=st.sampled_from([..., "sealed"]))
    | record(type=st.sampled_from(["server_tool_use", "web_search_tool_result", "something_new"]), id="srv")
)
any_anthropic = st.lists(
    record(
        role=st.sampled_from(["user", "assistant", "user", "assistant", "system"]),
        content=st.none() | words | st.lists(_blocks, max_size=5),
    ),
    max_size=10,
)

any_items = st.lists(
    st.builds(UserMessage, words)
    | st.builds(Note, words)
    | st.builds(AssistantMessage, words, interrupted=st.booleans())
    | st.builds(Reasoning, words, data=st.sampled_from([None, {"id": "rs"}]))
    | st.builds(
        ToolCall,
        st.sampled_from(["a", "b", "c", ""]),
        st.sampled_from(["read", "write", ""]),
        arguments.filter(lambda found: isinstance(found, str)),
    )
    | st.builds(ToolResult, ids, words)
    | st.just(UnknownItem({"type": "newer"})),
    max_size=12,
)

ANYTHING: dict[str, st.SearchStrategy[list[Any]]] = {
    "chat": any_chat,
    "responses": any_responses,
    "anthropic": any_anthropic,
    "items": any_items,
}


# --- valid ones -------------------------------------------------------------------------------------------------------------------


@st.composite
def valid(draw: st.DrawFn, shape: str) -> list[Any]:
    """A history as a run writes it that nothing has stopped: each turn some text, some calls, their results."""
    history: list[Any] = []
    number = 0
    for turn in range(draw(st.integers(1, 4))):
        history += _user(shape, f"question {turn}")
        for step in range(draw(st.integers(0, 2))):
            calls = [f"call{number + extra}" for extra in range(draw(st.integers(1, 3)))]
            number += len(calls)
            said = draw(st.sampled_from(["", f"let me see {turn} {step}"]))
            history += _calls(shape, said, calls, thinks=draw(st.booleans()))
            history += _results(shape, calls)
        history += _answer(shape, f"answer {turn}", thinks=draw(st.booleans()), number=turn)
    return history


def _user(shape: str, text: str) -> list[Any]:
    return [UserMessage(text)] if shape == "items" else [{"role": "user", "content": text}]


def _calls(shape: str, said: str, calls: list[str], *, thinks: bool) -> list[Any]:
    if shape == "items":
        first = [Reasoning("hm", "openai", {"id": "rs"})] if thinks else []
        then = [AssistantMessage(said)] if said else []
        return [*first, *then, *(ToolCall(call, "read", '{"path":"x"}') for call in calls)]
    if shape == "chat":
        asked = [
            {"id": call, "type": "function", "function": {"name": "read", "arguments": '{"path":"x"}'}}
            for call in calls
        ]
        return [{"role": "assistant", "content": said or None, "tool_calls": asked}]
    if shape == "responses":
        thought = [{"type": "reasoning", "id": f"rs_{calls[0]}", "summary": []}] if thinks else []
        told = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}]
        return [
            *thought,
            *(told if said else []),
            *(
                {
                    "type": "function_call",
                    "id": f"fc_{call}",
                    "call_id": call,
                    "name": "read",
                    "arguments": "{}",
                }
                for call in calls
            ),
        ]
    return [
        {
            "role": "assistant",
            "content": [
                *([{"type": "thinking", "thinking": "hm", "signature": "signed"}] if thinks else []),
                *([{"type": "text", "text": said}] if said else []),
                *({"type": "tool_use", "id": call, "name": "read", "input": {"path": "x"}} for call in calls),
            ],
        }
    ]


def _results(shape: str, calls: list[str]) -> list[Any]:
    if shape == "items":
        return [ToolResult(call, f"result of {call}") for call in calls]
    if shape == "chat":
        return [{"role": "tool", "tool_call_id": call, "content": f"result of {call}"} for call in calls]
    if shape == "responses":
        return [
            {"type": "function_call_output", "call_id": call, "output": f"result of {call}"} for call in calls
        ]
    return [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call, "content": f"result of {call}"} for call in calls
            ],
        }
    ]


def _answer(shape: str, text: str, *, thinks: bool, number: int) -> list[Any]:
    if shape == "items":
        return [AssistantMessage(text)]
    if shape == "responses":
        thought = [{"type": "reasoning", "id": f"rs_{number}", "summary": []}] if thinks else []
        return [
            *thought,
            {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text}],
            },
        ]
    if shape == "anthropic":
        thought = [{"type": "thinking", "thinking": "", "signature": "signed"}] if thinks else []
        return [{"role": "assistant", "content": [*thought, {"type": "text", "text": text}]}]
    return [{"role": "assistant", "content": text}]


def said_by_people_and_models(history: list[Any]) -> list[str]:
    """The texts of users and assistants in their order, blank ones aside."""
    said: list[str] = []
    for message in history:
        if isinstance(message, (UserMessage, AssistantMessage)):
            said.append(message.content if isinstance(message, UserMessage) else message.text)  # type: ignore[arg-type]
        elif isinstance(message, dict) and message.get("role") in ("user", "assistant"):
            content = message.get("content")
            parts = [content] if isinstance(content, str) else [part.get("text") for part in content or ()]
            said += [part for part in parts if part]
    return [text for text in said if text.strip()]
