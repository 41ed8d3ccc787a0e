"""A request, as each of the three APIs wants it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from hypothesis import given, settings

from quiesce._extras import MissingExtra
from quiesce.models import (
    AnthropicModel,
    AssistantMessage,
    Image,
    Item,
    Model,
    ModelRequest,
    ModelRequestError,
    ModelSettings,
    Note,
    OpenAIChatCompletionsModel,
    OpenAIModel,
    OpenAIResponsesModel,
    OutputSpec,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    UserMessage,
)
from quiesce.models.anthropic import messages as anthropic_messages
from quiesce.models.http.errors import Endpoint
from quiesce.models.openai import chat as openai_chat
from quiesce.models.openai import responses as openai_responses
from quiesce.models.words.call_ids import CallIds
from tests.models.server import Server
from tests.models.transcripts import check_anthropic, check_chat, check_responses, transcripts
from tests.models.wires import CHAT

LOCAL = Endpoint("small", "x", "small", "http://127.0.0.1/v1", "OPENAI_API_KEY")
HOME = Endpoint("gpt-5", "OpenAI", "gpt-5", "https://api.openai.com/v1", "OPENAI_API_KEY")
TOOL = ToolSpec("add", "Adds.", {"type": "object", "properties": {}}, strict=True)
SHAPE = OutputSpec("Answer", {"type": "object"}, strict=True)


def body(api: str, request: ModelRequest, at: Endpoint = LOCAL) -> dict[str, Any]:
    if api == "chat":
        return openai_chat.body(request, at, include_usage=True)
    if api == "responses":
        return openai_responses.body(request, at)
    return anthropic_messages.body(request, at, max_tokens=8192)


def chat(*items: Item, **options: Any) -> list[dict[str, Any]]:
    return openai_chat.messages(ModelRequest(items, **options), LOCAL)


@pytest.mark.parametrize(
    ("kind", "api"), [(OpenAIChatCompletionsModel, "chat"), (OpenAIResponsesModel, "responses")]
)
def test_a_model_behind_a_client_of_ones_own_has_the_arguments_of_openais_sdk(kind: Any, api: str) -> None:
    client = openai.AsyncOpenAI(api_key="none", base_url="http://127.0.0.1/v1")
    model = kind(model="small", openai_client=client)
    assert isinstance(model, OpenAIModel)
    assert (model.model, model.path) == (
        "small",
        {"chat": "/chat/completions", "responses": "/responses"}[api],
    )
    endpoint = model._client()[1]
    assert model._client()[0] is client
    request = ModelRequest([UserMessage("Hi")])
    assert model._body(request, endpoint) == body(api, request, endpoint)


@settings(max_examples=80)
@given(transcripts())
def test_any_valid_transcript_is_valid_for_every_api(items: Sequence[Item]) -> None:
    in_chat, in_anthropic = chat(*items, instructions="Be kind."), anthropic_messages.messages(items)
    check_chat(in_chat)
    check_responses(openai_responses.input_items(ModelRequest(items)))
    check_anthropic(in_anthropic)
    said = [str(item.text).rstrip() for item in items if isinstance(item, (AssistantMessage, Note))]
    for sent in (str(in_chat), str(in_anthropic)):  # every word arrives
        for text in said:
            assert text.strip() == "" or text in sent.replace("\\n", "\n")
    results = sum(isinstance(item, ToolResult) for item in items)
    assert str(in_chat).count("'tool_call_id'") == results
    assert str(in_anthropic).count("'tool_use_id'") == results


TURN: list[Item] = [
    UserMessage("How much?"),
    Note("Be quick."),
    AssistantMessage("Let me see."),
    ToolCall("c1", "add", '{"a": 1}'),
    ToolCall("c2", "add", "{}"),
    ToolResult("c1", "3"),
    ToolResult("c2", "it broke", "failed"),
    AssistantMessage("It is 3, an", interrupted=True),
    Note("The user has interrupted you."),
    UserMessage([Text("And "), Text("this?"), Image("data:image/png;base64,aGk=")]),
]


def test_a_conversation_in_chat_completions() -> None:
    assert chat(*TURN, instructions="Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "How much?\n\nBe quick."},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
                {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "it broke"},
        {"role": "assistant", "content": "It is 3, an"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "The user has interrupted you.\n\nAnd this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
    ]


def test_a_conversation_in_the_responses_api() -> None:
    assert openai_responses.input_items(ModelRequest(TURN)) == [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "How much?\n\nBe quick."}],
        },
        {"role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"type": "function_call_output", "call_id": "c2", "output": "it broke"},
        {"role": "assistant", "content": "It is 3, an"},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "The user has interrupted you.\n\nAnd this?"},
                {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
            ],
        },
    ]


def test_a_conversation_with_anthropic() -> None:
    assert anthropic_messages.messages(TURN) == [
        {"role": "user", "content": [{"type": "text", "text": "How much?\n\nBe quick."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "c2", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "it broke", "is_error": True},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "It is 3, an"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "The user has interrupted you.\n\nAnd this?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            ],
        },
    ]


def test_a_result_and_a_word_of_the_user_are_one_message_for_anthropic() -> None:
    items: list[Item] = [
        UserMessage("go"),
        ToolCall("c", "add"),
        ToolResult("c", "", "interrupted"),
        Note("stopped"),
    ]
    assert anthropic_messages.messages(items)[-1]["content"] == [
        {"type": "tool_result", "tool_use_id": "c", "is_error": True},
        {"type": "text", "text": "stopped"},
    ]


THOUGHTS: list[Item] = [
    Reasoning("a", "anthropic", {"type": "thinking", "thinking": "a", "signature": "s"}),
    Reasoning(
        "r", "openai-responses", {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "e"}
    ),
    Reasoning("c", "openai-chat", {"field": "reasoning_content", "model": "small"}),
]


def test_what_a_model_thought_goes_to_its_own_provider_alone() -> None:
    items = [UserMessage("go"), *THOUGHTS, ToolCall("c", "add"), ToolResult("c", "1")]
    assert chat(*items)[1]["reasoning_content"] == "c"
    assert [item["type"] for item in openai_responses.input_items(ModelRequest(items))] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert anthropic_messages.messages(items)[1]["content"][0] == THOUGHTS[0].data  # type: ignore[union-attr]
    assert len(anthropic_messages.messages(items)[1]["content"]) == 2


def test_thoughts_that_led_to_nothing_are_left_out() -> None:
    for rest in ([], [AssistantMessage("ha", interrupted=True)], [UserMessage("well?")]):
        items = [UserMessage("go"), *THOUGHTS, *rest]
        sent = f"{chat(*items)}{openai_responses.input_items(ModelRequest(items))}{anthropic_messages.messages(items)}"
        assert not re.search("thinking|reasoning", sent)


SETTINGS = ModelSettings(
    temperature=0.5, top_p=0.9, max_tokens=7, parallel_tool_calls=False, reasoning_effort="low"
)


def test_settings_of_chat_completions() -> None:
    made = body("chat", ModelRequest([UserMessage("hi")], None, [TOOL], SHAPE, SETTINGS))
    del made["messages"]
    assert made == {
        "model": "small",
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "Adds.",
                    "parameters": TOOL.parameters,
                    "strict": True,
                },
            }
        ],
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "Answer", "schema": {"type": "object"}, "strict": True},
        },
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
        "reasoning_effort": "low",
    }
    at_home = body("chat", ModelRequest([], settings=ModelSettings(max_tokens=7)), HOME)
    assert at_home["max_completion_tokens"] == 7
    assert "max_tokens" not in at_home


def test_settings_of_the_responses_api() -> None:
    made = body("responses", ModelRequest([UserMessage("hi")], "Be kind.", [TOOL], SHAPE, SETTINGS))
    del made["input"]
    assert made == {
        "model": "small",
        "stream": True,
        "store": False,
        "instructions": "Be kind.",
        "include": ["reasoning.encrypted_content"],
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Adds.",
                "parameters": TOOL.parameters,
                "strict": True,
            }
        ],
        "parallel_tool_calls": False,
        "text": {
            "format": {"type": "json_schema", "name": "Answer", "schema": {"type": "object"}, "strict": True}
        },
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 7,
        "reasoning": {"effort": "low"},
    }
    assert "include" in body("responses", ModelRequest([]), HOME)
    assert "include" not in body("responses", ModelRequest([]))
    with pytest.raises(ModelRequestError, match="no stop sequences"):
        body("responses", ModelRequest([], settings=ModelSettings(stop=("x",))))


def test_settings_of_anthropic() -> None:
    made = body("anthropic", ModelRequest([UserMessage("hi")], "Be kind.", [TOOL], SHAPE, SETTINGS))
    del made["messages"]
    assert made == {
        "model": "small",
        "max_tokens": 7,
        "stream": True,
        "system": "Be kind.",
        "tools": [{"name": "add", "description": "Adds.", "input_schema": TOOL.parameters}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"},
        "temperature": 0.5,
        "top_p": 0.9,
    }
    assert body("anthropic", ModelRequest([]))["max_tokens"] == 8192


@pytest.mark.parametrize(
    ("choice", "in_chat", "in_responses", "in_anthropic"),
    [
        ("auto", "auto", "auto", {"type": "auto"}),
        ("required", "required", "required", {"type": "any"}),
        ("none", "none", "none", {"type": "none"}),
        (
            "add",
            {"type": "function", "function": {"name": "add"}},
            {"type": "function", "name": "add"},
            {"type": "tool", "name": "add"},
        ),
    ],
)
def test_the_choice_of_a_tool(choice: str, in_chat: Any, in_responses: Any, in_anthropic: Any) -> None:
    chosen = ModelSettings(tool_choice=choice)
    for api, expected in (("chat", in_chat), ("responses", in_responses), ("anthropic", in_anthropic)):
        assert body(api, ModelRequest([], tools=[TOOL], settings=chosen))["tool_choice"] == expected
        assert "tool_choice" not in body(api, ModelRequest([], settings=chosen))  # there is nothing to choose


def test_ids_stay_apart_when_they_are_shortened() -> None:
    ids = CallIds(8)
    made = [ids("x" * 20), ids("x" * 20 + "y"), ids("a:b"), ids("a/b"), ids("x" * 20)]
    assert made[0] == made[-1]
    assert len(set(made)) == 4
    assert all(re.fullmatch(r"[\w-]{1,8}", each) for each in made)


@pytest.mark.real_time
@pytest.mark.worlds("asyncio")
async def test_extra_settings_go_to_the_provider_as_they_are(server: Server) -> None:
    extra = ModelSettings(temperature=1, extra={"temperature": 0, "min_p": 0.1})
    async for _ in CHAT.model(server.url).stream(ModelRequest([UserMessage("hi")], settings=extra)):
        pass
    assert (server.requests[0].body["temperature"], server.requests[0].body["min_p"]) == (0, 0.1)


# Making a model ---------------------------------------------------------------------------------------------------


def test_they_are_models() -> None:
    assert isinstance(OpenAIModel("gpt-5"), Model)
    assert isinstance(AnthropicModel("claude"), Model)
    assert OpenAIModel("gpt-5").name == "gpt-5"
    assert repr(AnthropicModel("claude", name="critic")) == "<AnthropicModel 'critic'>"


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: OpenAIModel("gpt-5", api="completions"), ValueError, "'chat' or 'responses'"),  # type: ignore[arg-type]
        (lambda: OpenAIModel(""), TypeError, "named by a str"),
        (lambda: OpenAIModel("x", client=object(), api_key="k"), TypeError, "a client or api_key, not both"),
        (lambda: AnthropicModel("x", client=object(), base_url="u"), TypeError, "a client or base_url"),  # type: ignore[arg-type]
    ],
)
def test_a_model_that_cannot_be_made_says_why(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("package", ["openai", "anthropic"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    make = OpenAIModel if package == "openai" else AnthropicModel
    with pytest.raises(MissingExtra, match=rf"pip install 'quiesce\[{package}\]'"):
        make("small")
