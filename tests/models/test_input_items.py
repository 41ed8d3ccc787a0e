"""What a program may pass as items: dicts as OpenAI's APIs have them, and our own items as plain data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from quiesce.models import (
    AssistantMessage,
    Image,
    Item,
    ItemDone,
    ModelRequest,
    ModelRequestError,
    ModelSettings,
    Note,
    Reasoning,
    ReasoningDelta,
    ResponseDone,
    Text,
    TextDelta,
    Tokens,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    Usage,
    UserMessage,
)
from quiesce.models.inner import as_items
from tests.models.test_asking import LOCAL, SHAPE, body

URL = "https://example.org/cat.png"


@pytest.mark.parametrize(
    ("given", "item"),
    [
        ({"role": "user", "content": "Hi"}, UserMessage("Hi")),
        ({"type": "message", "role": "user", "content": "Hi"}, UserMessage("Hi")),
        (
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": URL, "detail": "auto"},
                ],
            },
            UserMessage([Text("What is this?"), Image(URL)]),
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]},
            UserMessage([Image(URL)]),
        ),
        ({"role": "developer", "content": "Be brief."}, Note("Be brief.")),
        ({"role": "system", "content": [{"type": "input_text", "text": "Be brief."}]}, Note("Be brief.")),
        ({"role": "assistant", "content": "Hello."}, AssistantMessage("Hello.")),
        (
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "Hel", "annotations": []},
                    {"type": "output_text", "text": "lo."},
                ],
            },
            AssistantMessage("Hello."),
        ),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, AssistantMessage("No.")),
        (
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}', "id": "fc_1"},
            ToolCall("c1", "add", '{"a":1}'),
        ),
        ({"type": "function_call_output", "call_id": "c1", "output": "3"}, ToolResult("c1", "3")),
        (
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "3"}],
            },
            ToolResult("c1", "3"),
        ),
        (
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
            Reasoning("Hm."),
        ),
    ],
)
def test_a_dict_of_openais_apis_becomes_an_item(given: dict[str, Any], item: Item) -> None:
    assert as_items([given]) == [item]
    assert as_items(given) == [item]


@pytest.mark.parametrize(
    "item",
    [
        UserMessage([Text("Hi"), Image(URL)]),
        Note("The user interrupted you."),
        AssistantMessage("Hel", interrupted=True),
        Reasoning("Hm.", "openai-responses", {"id": "rs_1"}),
        ToolCall("c1", "add"),
        ToolResult("c1", "3", "interrupted", 0.5),
    ],
    ids=lambda item: type(item).__name__,
)
def test_an_item_as_plain_data_becomes_the_same_item(item: Item) -> None:
    assert as_items([msgspec.to_builtins(item)]) == [item]


def test_items_and_dicts_may_be_mixed_and_keep_their_order() -> None:
    mixed: list[Any] = [UserMessage("1"), {"role": "assistant", "content": "2"}, UserMessage("3")]
    assert as_items(mixed) == [UserMessage("1"), AssistantMessage("2"), UserMessage("3")]
    assert isinstance(mixed[1], dict), "the list of the caller was changed"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"role": "tool", "content": "secret"},
            "the role 'tool' is not one of user, assistant, system and developer",
        ),
        (
            {"role": "user", "content": [{"type": "input_file", "file_data": "secret"}]},
            "'input_file' is not text",
        ),
        ({"role": "assistant", "content": [{"type": "input_image"}]}, "'input_image' is not text"),
        ({"role": "user", "content": ["secret"]}, "its content must be a str or a list of dicts, not str"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "secret"}]}, "needs an image_url"),
        (
            {"type": "function_call", "call_id": "c1", "arguments": "secret"},
            "its name must be a str, not NoneType",
        ),
        (
            {"type": "web_search_call", "id": "secret"},
            "{'type': 'web_search_call'} with type, id; write {'role'",
        ),
        ({"type": "tool_call", "call_id": 3, "name": "secret"}, "Expected `str`, got `int`"),
        ({"secret": 1}, "{} with secret; write"),
    ],
)
def test_a_dict_that_is_not_an_item_is_refused_without_its_content(given: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError) as refused:
        as_items([given])
    assert says in str(refused.value)
    if "secret" not in given:
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (TextDelta("a"), "response.output_text.delta"),
        (ReasoningDelta("a"), "response.reasoning_summary_text.delta"),
        (ToolCallDelta("c1", "add", "a"), "response.function_call_arguments.delta"),
        (Tokens(Usage()), "response.in_progress"),
        (ItemDone(UserMessage("a")), "response.output_item.done"),
        (ResponseDone(Usage()), "response.completed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_events_have_the_types_of_the_responses_api_and_pieces_a_delta(event: Any, kind: str) -> None:
    assert event.type == kind
    assert getattr(event, "delta", "a") == "a"
    assert hasattr(event, "delta") == kind.endswith(".delta")


def test_items_say_what_they_are_and_are_their_own_raw_item() -> None:
    types: dict[Any, str] = {
        ToolCall("c1", "add"): "tool_call_item",
        ToolResult("c1", "3"): "tool_call_output_item",
        AssistantMessage("Hi"): "message_output_item",
        Reasoning("Hm."): "reasoning_item",
    }
    for item, kind in types.items():
        assert item.type == kind
        assert item.raw_item is item
        assert kind not in msgspec.json.encode(item).decode(), "the JSON of items has changed"


# Settings -----------------------------------------------------------------------------------------------------


class OpenAIsReasoning:
    """As `openai.types.shared.Reasoning`, a model of pydantic."""

    def model_dump(self) -> dict[str, Any]:
        return {"effort": "low", "summary": "auto", "generate_summary": None}


@pytest.mark.parametrize("reasoning", [{"effort": "low", "summary": "auto"}, OpenAIsReasoning()])
def test_reasoning_is_sent_as_the_api_has_it(reasoning: Any) -> None:
    request = ModelRequest([UserMessage("Hi")], settings=ModelSettings(reasoning=reasoning))
    assert body("responses", request)["reasoning"] == {"effort": "low", "summary": "auto"}
    assert body("chat", request)["reasoning_effort"] == "low"
    assert body("anthropic", request)["output_config"] == {"effort": "low"}


def test_a_later_effort_replaces_the_one_in_reasoning() -> None:
    early = ModelSettings(reasoning={"effort": "low", "summary": "auto"})
    request = ModelRequest(
        [UserMessage("Hi")], settings=early.resolve(ModelSettings(reasoning_effort="high"))
    )
    assert body("responses", request)["reasoning"] == {"effort": "high", "summary": "auto"}


def test_settings_that_only_openai_has_are_sent_to_openai() -> None:
    settings = ModelSettings(verbosity="low", metadata={"user": "ada"}, store=True)
    request = ModelRequest([UserMessage("Hi")], output=SHAPE, settings=settings)
    chat, responses = body("chat", request), body("responses", request)
    assert (chat["verbosity"], chat["metadata"], chat["store"]) == ("low", {"user": "ada"}, True)
    assert (responses["text"]["verbosity"], responses["metadata"], responses["store"]) == (
        "low",
        {"user": "ada"},
        True,
    )
    assert responses["text"]["format"]["name"] == "Answer"
    assert not {"verbosity", "metadata", "store"} & body("anthropic", request).keys()


def test_penalties_are_sent_where_the_api_has_them_and_refused_where_it_has_not() -> None:
    settings = ModelSettings(frequency_penalty=0.5, presence_penalty=-0.5)
    request = ModelRequest([UserMessage("Hi")], settings=settings)
    assert body("chat", request)["frequency_penalty"] == 0.5
    assert body("chat", request)["presence_penalty"] == -0.5
    with pytest.raises(ModelRequestError, match="has no penalties: use api='chat'"):
        body("responses", request, LOCAL)


def test_extra_body_and_extra_args_are_extra() -> None:
    settings = ModelSettings(extra={"a": 1, "b": 1}, extra_args={"b": 2, "c": 2}, extra_body={"c": 3})
    assert settings.extra == {"a": 1, "b": 2, "c": 2}
    assert settings.resolve(ModelSettings(temperature=0.5)).extra == settings.extra


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"reasoning": "low"}, "write reasoning={'effort': 'low'}, or reasoning_effort='low'"),
        ({"reasoning": SimpleNamespace(effort="low")}, "reasoning of ModelSettings must be a dict"),
        ({"verbosity": 3}, "verbosity of ModelSettings must be a str, not 3"),
        ({"metadata": "ada"}, "metadata of ModelSettings must be a dict, not 'ada'"),
        ({"frequency_penalty": "much"}, "frequency_penalty of ModelSettings must be a number, not 'much'"),
        ({"extra_body": ["a"]}, "extra_body of ModelSettings must be a dict, not ['a']"),
        ({"extra_args": "a"}, "extra_args of ModelSettings must be a dict, not 'a'"),
    ],
)
def test_wrong_settings_are_refused_with_what_to_write(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError) as refused:
        ModelSettings(**settings)
    assert says in str(refused.value)
