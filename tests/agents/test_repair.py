"""`repair` on histories as stopped programs have left them. The names after `of_` are the reports that they were taken from."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from anthropic.types import Message, TextBlock, ToolUseBlock
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import ResponseFunctionToolCall

from quiesce.agents.history_repair.anthropic import BEGINNING
from quiesce.agents.history_repair.formats import Shape, repair, shape_of
from quiesce.agents.history_repair.pairs import CUT_OFF, MISSING
from quiesce.models import AssistantMessage, Note, Reasoning, ToolCall, ToolResult, UserMessage
from tests.agents.transcript_rules import problems

HELLO = {"role": "user", "content": "What is in the file?"}
GO_ON = {"role": "user", "content": "go on"}


def function(call_id: str, arguments: str = "{}", name: str = "read") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def tool(call_id: str, content: str | None = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def use(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "read", "input": {"path": "x"}, **fields}


def result(call_id: str, content: Any = "done") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def stopped(call_id: str, text: str = MISSING) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": True}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def thinking(signature: str = "signed") -> dict[str, Any]:
    return {"type": "thinking", "thinking": "hm", "signature": signature}


def claude(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def call(call_id: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "read", "arguments": arguments, **fields}


def output(call_id: str, said: str = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def reasoning(item_id: str = "rs_1") -> dict[str, Any]:
    return {"type": "reasoning", "id": item_id, "summary": []}


def repaired(history: list[Any], shape: Shape) -> list[Any]:
    """What repair makes of it: valid, stable, found to be of that shape, and the input as it was."""
    before = copy.deepcopy(history)
    assert problems(history, shape) != [], "there was nothing to repair"
    fixed = repair(history)
    assert history == before
    assert shape_of(history) == shape
    assert problems(fixed, shape) == []
    assert repair(fixed) == fixed
    return fixed


# --- Anthropic --------------------------------------------------------------------------------------------------------------------


def test_parallel_calls_that_were_interrupted_of_claude_code_3003() -> None:
    history = [HELLO, claude(text("I look."), use("toolu_1"), use("toolu_2")), user(result("toolu_1")), GO_ON]
    assert repaired(history, "anthropic") == [
        HELLO,
        claude(text("I look."), use("toolu_1"), use("toolu_2")),
        user(result("toolu_1"), stopped("toolu_2"), text("go on")),
    ]


def test_a_user_message_after_an_unanswered_call_of_claude_code_2261() -> None:
    assert repaired([HELLO, claude(use("toolu_1")), GO_ON], "anthropic") == [
        HELLO,
        claude(use("toolu_1")),
        user(stopped("toolu_1"), text("go on")),
    ]


def test_a_result_whose_call_is_not_in_the_message_before_of_claude_code_12162() -> None:
    history = [
        HELLO,
        claude(use("toolu_1")),
        GO_ON,
        claude(text("Well.")),
        user(text("?"), result("toolu_1")),
    ]
    assert repaired(history, "anthropic") == [
        HELLO,
        claude(use("toolu_1")),
        user(result("toolu_1"), text("go on")),
        claude(text("Well.")),
        user(text("?")),
    ]


def test_a_session_that_ends_in_a_call_of_pi_4189() -> None:
    assert repaired([HELLO, claude(thinking(), use("toolu_1"))], "anthropic") == [
        HELLO,
        claude(thinking(), use("toolu_1")),
        user(stopped("toolu_1")),
    ]


def test_calls_of_a_run_that_timed_out_of_letta_3308() -> None:
    calls = [use("functions_Bash_3"), use("functions_Bash_4"), use("functions_Bash_5")]
    history = [HELLO, claude(*calls), user(result("functions_Bash_4")), claude(text("Hm."))]
    assert repaired(history, "anthropic")[2] == user(
        stopped("functions_Bash_3"), result("functions_Bash_4"), stopped("functions_Bash_5")
    )


def test_a_result_in_the_assistants_turn_of_positron_15719() -> None:
    history = [HELLO, claude(result("toolu_gone"), text("Done.")), GO_ON]
    assert repaired(history, "anthropic") == [HELLO, claude(text("Done.")), GO_ON]


def test_a_result_that_a_handoff_has_left_behind_of_oh_my_pi_1165() -> None:
    history = [{"role": "user", "content": "context"}, user(result("toolu_gone")), GO_ON]
    assert repaired(history, "anthropic") == [user(text("context"), text("go on"))]


def test_an_empty_text_block_of_claude_code_49026() -> None:
    history = [HELLO, claude(text(""), use("toolu_1")), user(result("toolu_1", [text("")]), text(" \n"))]
    assert repaired(history, "anthropic") == [HELLO, claude(use("toolu_1")), user(result("toolu_1", []))]


def test_thinking_without_a_signature_of_pydantic_ai_7597() -> None:
    history = [HELLO, claude(thinking(""), text("I think")), GO_ON]
    assert repaired(history, "anthropic") == [HELLO, claude(text("I think")), GO_ON]


def test_thinking_that_came_to_nothing_of_forgecode_2107() -> None:
    history = [HELLO, claude(thinking()), GO_ON]
    assert repaired(history, "anthropic") == [user(text("What is in the file?"), text("go on"))]


def test_two_calls_of_one_id_of_hindsight_4250() -> None:
    other = use("toolu_1", input={"path": "y"})
    history = [HELLO, claude(use("toolu_1"), other), user(result("toolu_1", "x"), result("toolu_1", "y"))]
    assert repaired(history, "anthropic") == [
        HELLO,
        claude(use("toolu_1"), {**other, "id": "toolu_1_2"}),
        user(result("toolu_1", "x"), result("toolu_1_2", "y")),
    ]


def test_text_after_a_call_goes_before_it() -> None:
    history = [HELLO, claude(thinking(), use("toolu_1"), text("I look.")), user(result("toolu_1"))]
    assert repaired(history, "anthropic")[1] == claude(thinking(), text("I look."), use("toolu_1"))


def test_blocks_that_were_logged_one_a_message_become_the_message_that_they_were() -> None:
    logged = [claude(thinking()), claude(text("I look.")), claude(use("a")), claude(use("b"))]
    history = [HELLO, *logged, user(result("b")), user(result("a"))]
    assert repaired(history, "anthropic") == [
        HELLO,
        claude(thinking(), text("I look."), use("a"), use("b")),
        user(result("a"), result("b")),
    ]


def test_an_answer_that_thinks_anew_is_not_joined_to_calls_whose_results_are_lost() -> None:
    history = [HELLO, claude(thinking(), use("a")), claude(thinking(), use("b")), user(result("b"))]
    assert repaired(history, "anthropic") == [
        HELLO,
        claude(thinking(), use("a")),
        user(stopped("a")),
        claude(thinking(), use("b")),
        user(result("b")),
    ]


def test_thinking_and_what_the_server_runs_come_back_as_they_were() -> None:
    searched = claude(
        thinking(),
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        text("Found."),
        use("a"),
    )
    fixed = repaired([HELLO, searched], "anthropic")
    assert fixed[1] is searched


def test_a_conversation_that_begins_with_the_assistant_gets_a_beginning() -> None:
    history = [claude(use("a")), user(result("a"))]
    assert repaired(history, "anthropic")[0] == {"role": "user", "content": BEGINNING}


def test_input_that_was_cut_off_is_left_out_and_the_model_is_told() -> None:
    history = [HELLO, claude(use("a", input='{"path": "/etc/pa'))]
    assert repaired(history, "anthropic") == [
        HELLO,
        claude(use("a", input={})),
        user(stopped("a", MISSING + CUT_OFF)),
    ]


def test_input_that_was_kept_as_text_becomes_an_object_again() -> None:
    history = [HELLO, claude(use("a", input='{"path": "y"}')), user(result("a"))]
    assert repaired(history, "anthropic")[1] == claude(use("a", input={"path": "y"}))


def test_a_role_that_is_not_known_stays_between_its_neighbours() -> None:
    system = {"role": "system", "content": "Be brief."}
    history = [HELLO, claude(use("a")), system, user(result("a"), text("and?"))]
    assert repaired(history, "anthropic") == [
        HELLO,
        claude(use("a")),
        user(result("a")),
        system,
        user(text("and?")),
    ]


# --- Chat -------------------------------------------------------------------------------------------------------------------------


def test_a_cancelled_call_of_crush_529() -> None:
    assert repaired([HELLO, asks(function("call_1")), GO_ON], "chat") == [
        HELLO,
        asks(function("call_1")),
        tool("call_1", MISSING),
        GO_ON,
    ]


def test_a_text_between_call_and_result_of_cursor_byok_307() -> None:
    said = {"role": "assistant", "content": "I look."}
    history = [HELLO, asks(function("a"), function("b")), said, tool("b"), GO_ON, tool("a")]
    assert repaired(history, "chat") == [
        HELLO,
        asks(function("a"), function("b")),
        tool("a"),
        tool("b"),
        said,
        GO_ON,
    ]


def test_arguments_that_end_in_the_middle_of_codegraff_752() -> None:
    history = [HELLO, asks(function("a", '{"command": "ls'), function("b", '{"command": "ls'))]
    assert repaired([*history, tool("b", "missing argument")], "chat") == [
        HELLO,
        asks(function("a"), function("b")),
        tool("a", MISSING + CUT_OFF),
        tool("b", "missing argument"),
    ]


def test_a_call_that_was_cut_off_before_it_had_a_name_is_dropped() -> None:
    nameless = {"id": "b", "function": {"name": "", "arguments": ""}}
    history = [HELLO, asks(function("a"), nameless), tool("a"), asks(nameless), GO_ON]
    assert repaired(history, "chat") == [HELLO, asks(function("a")), tool("a"), GO_ON]


def test_an_assistant_that_was_stopped_before_its_first_word_is_dropped() -> None:
    empty: list[Any] = [{"role": "assistant", "content": said} for said in (None, "", [], [text("")])]
    assert repaired([HELLO, *empty, {"role": "assistant"}, asks(), tool("?")], "chat") == [HELLO]


def test_the_real_result_takes_the_place_of_the_one_that_was_made_up() -> None:
    history = [HELLO, asks(function("a")), tool("a", MISSING), GO_ON, tool("a", "done"), tool("a", "again")]
    assert repaired(history, "chat") == [HELLO, asks(function("a")), tool("a"), GO_ON]


def test_a_call_that_is_logged_twice_is_one() -> None:
    history = [HELLO, asks(function("a")), asks(function("a")), tool("a")]
    assert repaired(history, "chat") == [HELLO, asks(function("a")), tool("a")]


def test_ids_that_each_turn_uses_anew_stay_with_their_turns() -> None:
    history = [asks(function("call_0")), tool("call_0", "x"), asks(function("call_0")), GO_ON]
    assert repaired(history, "chat") == [*history[:3], tool("call_0", MISSING), GO_ON]


def test_functions_of_old_are_answered_by_name() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": '{"a'}}
    fixed = repaired([HELLO, old, GO_ON, {"role": "function", "name": "gone", "content": "x"}], "chat")
    assert fixed == [
        HELLO,
        {**old, "function_call": {"name": "read", "arguments": "{}"}},
        {"role": "function", "name": "read", "content": MISSING + CUT_OFF},
        GO_ON,
    ]


def test_a_result_of_nothing_is_an_empty_text() -> None:
    assert repaired([asks(function("a")), tool("a", None)], "chat")[1] == tool("a", "")


# --- Responses --------------------------------------------------------------------------------------------------------------------


def test_an_interrupted_function_of_livekit_5092() -> None:
    assert repaired([HELLO, call("call_1"), GO_ON], "responses") == [
        HELLO,
        call("call_1"),
        output("call_1", MISSING),
        GO_ON,
    ]


def test_an_output_that_outlived_its_call_of_pi_4570() -> None:
    assert repaired([HELLO, output("call_gone"), GO_ON], "responses") == [HELLO, GO_ON]


def test_outputs_apart_from_their_calls_of_awesome_deepseek_740() -> None:
    history = [HELLO, reasoning("rs_1"), call("a"), reasoning("rs_2"), call("b"), output("a"), output("b")]
    assert repaired(history, "responses") == [
        HELLO,
        reasoning("rs_1"),
        call("a"),
        output("a"),
        reasoning("rs_2"),
        call("b"),
        output("b"),
    ]


@pytest.mark.parametrize("after", [[], [GO_ON]])
def test_reasoning_without_its_item_of_openai_agents_1611(after: list[Any]) -> None:
    history = [HELLO, call("a"), output("a"), reasoning("rs_1"), reasoning("rs_2"), *after]
    assert repaired(history, "responses") == [HELLO, call("a"), output("a"), *after]


def test_a_repeated_item_of_macpaw_432() -> None:
    history = [
        HELLO,
        call("a", id="fc_1"),
        call("a", id="fc_1"),
        output("a"),
        reasoning(),
        reasoning(),
        GO_ON,
    ]
    assert repaired(history, "responses") == [HELLO, call("a", id="fc_1"), output("a"), GO_ON]


def test_another_item_of_the_same_id_stays_without_it() -> None:
    said = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Well."}],
    }
    more = {**said, "content": [{"type": "output_text", "text": "Well, then."}]}
    assert repaired([HELLO, said, said, more, GO_ON], "responses") == [
        HELLO,
        said,
        {name: value for name, value in more.items() if name != "id"},
        GO_ON,
    ]


def test_a_result_that_was_logged_before_its_call_goes_after_it() -> None:
    assert repaired([HELLO, output("a"), call("a")], "responses") == [HELLO, call("a"), output("a")]
    assert repaired([HELLO, tool("a"), asks(function("a"))], "chat") == [
        HELLO,
        asks(function("a")),
        tool("a"),
    ]


def test_pictures_tell_the_shapes_apart() -> None:
    for part, shape in (("image_url", "chat"), ("input_image", "responses"), ("image", "anthropic")):
        assert shape_of([user({"type": part})]) == shape


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (
            {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": "SELECT"},
            {"type": "custom_tool_call_output", "call_id": "a", "output": MISSING},
        ),
        (
            {"type": "local_shell_call", "id": "lsh_1", "call_id": "a", "action": {}, "status": "completed"},
            {"type": "local_shell_call_output", "id": "a", "output": MISSING},
        ),
        (
            {"type": "apply_patch_call", "call_id": "a", "operation": {}, "status": "completed"},
            {"type": "apply_patch_call_output", "call_id": "a", "status": "failed", "output": MISSING},
        ),
        (
            {
                "type": "mcp_approval_request",
                "id": "a",
                "name": "rm",
                "arguments": "{}",
                "server_label": "disk",
            },
            {
                "type": "mcp_approval_response",
                "approval_request_id": "a",
                "approve": False,
                "reason": MISSING,
            },
        ),
    ],
    ids=lambda item: item["type"],
)
def test_other_kinds_of_calls_are_answered_in_their_way(
    asked: dict[str, Any], answer: dict[str, Any]
) -> None:
    assert repaired([HELLO, asked, GO_ON], "responses") == [HELLO, asked, answer, GO_ON]


def test_a_click_without_its_screenshot_is_dropped_with_the_thought_of_it() -> None:
    click = {"type": "computer_call", "call_id": "a", "action": {"type": "click"}}
    assert repaired([HELLO, reasoning(), click, GO_ON], "responses") == [HELLO, GO_ON]


def test_what_a_reference_stands_for_is_not_known_and_so_left_alone() -> None:
    history = [HELLO, {"type": "item_reference", "id": "fc_1"}, output("a"), GO_ON]
    assert repair(history) == history


def test_what_the_server_runs_is_left_alone() -> None:
    history = [HELLO, reasoning(), {"type": "web_search_call", "id": "ws_1", "status": "completed"}, GO_ON]
    assert repair(history) == history


# --- our own items ----------------------------------------------------------------------------------------------------------------


def test_items_are_repaired_too() -> None:
    history = [
        UserMessage("hello"),
        Reasoning("hm", "openai", {"id": "rs_1"}),
        ToolCall("a", "read"),
        ToolCall("b", "read", '{"path'),
        Note("The user has interrupted."),
        ToolResult("a", "done"),
        ToolResult("gone", "done"),
        AssistantMessage("", interrupted=True),
        Reasoning("hm", "openai", {"id": "rs_2"}),
    ]
    assert repaired(history, "items") == [
        *history[:3],
        ToolCall("b", "read", "{}"),
        ToolResult("a", "done"),
        ToolResult("b", MISSING + CUT_OFF, "interrupted"),
        Note("The user has interrupted."),
    ]


# --- objects, texts and mistakes --------------------------------------------------------------------------------------------------


def test_the_objects_of_the_openai_client_are_read_and_come_back_themselves() -> None:
    message = ChatCompletionMessage.model_validate(asks(function("a")))
    assert repair([HELLO, message])[1:] == [message, tool("a", MISSING)]
    assert repair([HELLO, message])[1] is message
    cut = ChatCompletionMessage.model_validate(asks(function("a", '{"pa')))
    assert repair([HELLO, cut])[1] == asks(function("a"))
    item = ResponseFunctionToolCall(type="function_call", call_id="a", name="read", arguments="{}")
    assert repair([HELLO, item])[1:] == [item, output("a", MISSING)]


def test_the_objects_of_the_anthropic_client_are_read_and_come_back_themselves() -> None:
    blocks = [TextBlock(type="text", text="I look."), ToolUseBlock.model_validate(use("a"))]
    fixed = repair([HELLO, {"role": "assistant", "content": blocks}])
    assert fixed[1]["content"] == blocks
    assert fixed[2] == user(stopped("a"))
    answer = Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [use("a"), text("I look.")],
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )
    fixed = repair([HELLO, answer])
    assert fixed[1]["role"] == "assistant"
    assert [block.type for block in fixed[1]["content"]] == ["text", "tool_use"]
    assert fixed[2] == user(stopped("a"))


def test_the_text_for_missing_results_can_be_chosen_and_is_always_the_same() -> None:
    history = [HELLO, asks(function("a"))]
    assert repair(history, missing="aborted")[-1] == tool("a", "aborted")
    assert repair(history) == repair(copy.deepcopy(history))
    assert repair([*repair(history, missing="aborted"), tool("a")], missing="aborted")[-1] == tool("a")
    with pytest.raises(ValueError, match="says nothing"):
        repair(history, missing=" ")


def test_a_history_of_plain_text_is_of_every_shape_and_comes_back_equal() -> None:
    history = [
        {"role": "system", "content": "Be brief."},
        HELLO,
        {"role": "assistant", "content": "A poem."},
        GO_ON,
    ]
    assert repair(history) == history
    assert repair([]) == []
    assert repair((HELLO,)) == [HELLO]


def test_two_shapes_in_one_history_are_named() -> None:
    with pytest.raises(ValueError, match=r"chat \(message 1\) and anthropic \(message 2\).*pass shape="):
        repair([HELLO, asks(function("a")), user(result("a"))])
    with pytest.raises(ValueError, match="items"):
        repair([UserMessage("hello"), asks(function("a"))])
    assert repair([HELLO, asks(function("a")), user(result("a"))], shape="chat")[2] == tool("a", MISSING)


@pytest.mark.parametrize("wrong", ["hello", None, 3, {"role": "user", "content": "hello"}])
def test_what_is_no_list_of_messages_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="takes a list of messages, not"):
        repair(wrong)


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(TypeError, match="message 1 is not a message in any known provider format, but str"):
        repair([HELLO, "hello"])
    with pytest.raises(TypeError, match=r"message 0 is not an item of .*, but dict"):
        repair([HELLO], shape="items")
    with pytest.raises(ValueError, match="there is no shape 'gemini'"):
        repair([HELLO], shape="gemini")  # type: ignore[arg-type]


def test_an_output_of_the_local_shell_that_names_another_call_of_the_same_name_is_renamed() -> None:
    def shell(item_id: str, call_id: str) -> dict[str, Any]:
        return {"type": "local_shell_call", "id": item_id, "call_id": call_id, "action": {"type": "exec"}}

    history = [
        shell("s2", "a"),
        {"type": "local_shell_call_output", "id": "s1", "output": "one"},
        shell("s1", "a"),
    ]
    repaired = repair(history, shape="responses")
    assert repaired[:3] == [
        shell("s2", "a"),
        {"type": "local_shell_call_output", "id": "a", "output": "one"},
        shell("s1", "a_2"),
    ]
    assert problems(repaired, "responses") == []
