"""Messages from bytes and into bytes: what is known, what is new, and what is wrong."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.acp.protocol import codec as codec_module
from quiesce.acp.protocol.codec import InvalidMessage, decode, encode, from_dict, to_dict
from quiesce.acp.schema import (
    AgentMessageChunk,
    AuthMethodAgent,
    CreateElicitationRequest,
    CreateFormElicitationRequest,
    CreateFormRequestElicitationRequest,
    CreateOtherElicitationRequest,
    EmbeddedResourceContentBlock,
    HttpMcpServer,
    InitializeRequest,
    InitializeResponse,
    McpServerStdio,
    NewSessionRequest,
    PermissionOption,
    PromptRequest,
    ReadTextFileRequest,
    RequestPermissionResponse,
    SessionInfoUpdate,
    SessionNotification,
    SetSessionConfigOptionBooleanRequest,
    SetSessionConfigOptionRequest,
    SetSessionConfigOptionSelectRequest,
    TerminalToolCallContent,
    TextContentBlock,
    TextResourceContents,
    ToolCallStart,
    UnknownContentBlock,
    UnknownMcpServer,
    UnknownSessionUpdate,
    UnknownVariant,
    WriteTextFileResponse,
)
from tests.acp.definitions import AGENT_TYPES, CLIENT_TYPES

CHUNK = {
    "sessionId": "s1",
    "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}},
}


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def update(**fields: Any) -> Any:
    """A message with this update, read."""
    return decode(dumped({"sessionId": "s1", "update": fields}), SessionNotification).update


# The usual message --------------------------------------------------------------------------------------------


def test_a_message_is_read_into_its_class_and_written_as_it_was() -> None:
    message = decode(dumped(CHUNK), SessionNotification)
    assert message == SessionNotification(
        session_id="s1", update=AgentMessageChunk(content=TextContentBlock(text="hi"))
    )
    assert json.loads(encode(message)) == CHUNK
    assert message.extra_fields == {}


def test_the_usual_message_is_read_and_written_by_msgspec_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(*_: object) -> None:
        raise AssertionError("looked at a second time")

    monkeypatch.setattr(codec_module, "_read", slowly)
    monkeypatch.setattr(codec_module, "_plain", slowly)
    message = decode(dumped(CHUNK), SessionNotification)
    assert json.loads(encode(message)) == CHUNK
    with pytest.raises(AssertionError, match="looked at a second time"):
        decode(dumped({**CHUNK, "new": 1}), SessionNotification)


def test_a_part_of_a_frame_is_read_as_it_is() -> None:
    assert decode(msgspec.Raw(dumped(CHUNK)), SessionNotification) == decode(
        dumped(CHUNK), SessionNotification
    )


def test_what_is_none_or_a_default_is_not_written() -> None:
    assert encode(ReadTextFileRequest(session_id="s", path="/a")) == b'{"sessionId":"s","path":"/a"}'
    assert to_dict(ToolCallStart(tool_call_id="1", title="t", content=None, raw_input=None)) == {
        "sessionUpdate": "tool_call",
        "toolCallId": "1",
        "title": "t",
    }
    assert to_dict(ToolCallStart(tool_call_id="1", title="t", content=[]))["content"] == []


def test_null_for_an_optional_field_is_none() -> None:
    message = decode(
        b'{"sessionId":"s","path":"/a","line":null,"limit":null,"_meta":null}', ReadTextFileRequest
    )
    assert (message.line, message.limit, message.field_meta) == (None, None, None)
    assert message.extra_fields == {}


def test_null_for_a_list_that_must_be_there_is_an_empty_one() -> None:
    assert decode(b'{"cwd":"/","mcpServers":null}', NewSessionRequest).mcp_servers == []


def test_what_has_a_default_has_it_when_it_is_absent_or_null() -> None:
    for text in (b'{"protocolVersion":1}', b'{"protocolVersion":1,"clientCapabilities":null}'):
        message = decode(text, InitializeRequest)
        assert message.client_capabilities.fs.read_text_file is False
        assert message.client_capabilities.auth.terminal is False


def test_meta_is_read_and_written_under_its_name() -> None:
    message = decode(b'{"sessionId":"s","path":"/a","_meta":{"trace":{"id":7}}}', ReadTextFileRequest)
    assert message.field_meta == {"trace": {"id": 7}}
    assert json.loads(encode(message))["_meta"] == {"trace": {"id": 7}}


def test_a_result_may_be_null_where_the_reader_says_so() -> None:
    assert decode(b"null", WriteTextFileResponse | None) is None
    assert decode(b"{}", WriteTextFileResponse | None) == WriteTextFileResponse()


def test_messages_can_be_copied_pickled_and_compared_with_what_is_new_in_them() -> None:
    message = decode(dumped({**CHUNK, "new": [1]}), SessionNotification)
    for again in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert again == message
        assert again.extra_fields == {"new": [1]}
    assert message != decode(dumped(CHUNK), SessionNotification)


# What is new --------------------------------------------------------------------------------------------------


def test_a_field_of_the_future_is_kept_readable_and_written_again() -> None:
    value = copy.deepcopy(CHUNK)
    value["update"]["content"]["tone"] = {"warm": True}  # type: ignore[index]
    message = decode(dumped(value), SessionNotification)
    assert isinstance(message.update, AgentMessageChunk)
    assert message.update.content.extra_fields == {"tone": {"warm": True}}
    assert message.extra_fields == {}
    assert json.loads(encode(message)) == value


def test_an_update_of_a_kind_of_the_future_is_kept_with_all_it_says() -> None:
    made = update(sessionUpdate="dance", steps=[1, 2])
    assert isinstance(made, UnknownSessionUpdate)
    assert isinstance(made, UnknownVariant)
    assert (made.session_update, made.extra_fields) == ("dance", {"steps": [1, 2]})
    assert json.loads(encode(made)) == {"sessionUpdate": "dance", "steps": [1, 2]}


def test_content_of_a_kind_of_the_future_is_kept_among_what_is_known() -> None:
    value = {"sessionId": "s", "prompt": [{"type": "text", "text": "a"}, {"type": "smell", "of": "rain"}]}
    message = decode(dumped(value), PromptRequest)
    assert isinstance(message.prompt[0], TextContentBlock)
    assert isinstance(message.prompt[1], UnknownContentBlock)
    assert message.prompt[1].type == "smell"
    assert json.loads(encode(message)) == value


def test_an_outcome_of_a_kind_of_the_future_is_kept() -> None:
    value = {"outcome": {"outcome": "later", "at": "noon"}}
    message = decode(dumped(value), RequestPermissionResponse)
    assert (message.outcome.outcome, message.outcome.extra_fields) == ("later", {"at": "noon"})
    assert json.loads(encode(message)) == value


def test_more_than_the_class_can_say_is_said_by_assigning_extra_fields() -> None:
    message = SessionInfoUpdate(updated_at="now")
    message.extra_fields = {"title": None, "colour": "red"}
    assert to_dict(message) == {
        "sessionUpdate": "session_info_update",
        "updatedAt": "now",
        "title": None,
        "colour": "red",
    }
    message.title = "named"  # a field that has a value is not overwritten
    assert to_dict(message)["title"] == "named"
    message.extra_fields = {}
    assert encode(message) == b'{"sessionUpdate":"session_info_update","title":"named","updatedAt":"now"}'


def test_an_unknown_kind_can_be_made_and_sent() -> None:
    made = UnknownSessionUpdate(session_update="dance")
    assert encode(made) == b'{"sessionUpdate":"dance"}'
    made.extra_fields = {"steps": 3}
    assert json.loads(encode(made)) == {"sessionUpdate": "dance", "steps": 3}
    made.extra_fields = {}
    assert encode(made) == b'{"sessionUpdate":"dance"}'


def test_extra_fields_inside_plain_values_are_written_too() -> None:
    block = TextContentBlock(text="hi")
    block.extra_fields = {"tone": "warm"}
    written = encode({"blocks": [block], "pair": (block, None)})
    expected = {"type": "text", "text": "hi", "tone": "warm"}
    assert json.loads(written) == {"blocks": [expected], "pair": [expected, None]}


@pytest.mark.parametrize("name", ["(extra)", "(type)", "(unknown)"])
def test_no_field_of_a_peer_is_taken_for_one_of_ours(name: str) -> None:
    odd: list[Any] = [None, {}, "x", {"fields": {}}]
    for value in odd:
        text = dumped({"sessionId": "s", "prompt": [{"type": "text", "text": "a", name: value}]})
        message = decode(text, PromptRequest)
        assert message.prompt[0].extra_fields == {name: value}
        assert json.loads(encode(message)) == json.loads(text)


def test_the_mark_of_unknown_kinds_is_itself_an_unknown_kind() -> None:
    assert update(sessionUpdate="(unknown)", x=1).session_update == "(unknown)"


# Unions without a tag -----------------------------------------------------------------------------------------


def test_servers_are_told_apart_by_their_type_or_by_having_none() -> None:
    value = [
        {"name": "a", "command": "c", "args": [], "env": [{"name": "N", "value": "v"}]},
        {"type": "http", "name": "b", "url": "u", "headers": []},
        {"type": "acp", "name": "c", "serverId": "1"},
        {"type": "stdio", "name": "d", "command": "c", "args": [], "env": []},
    ]
    message = decode(dumped({"cwd": "/", "mcpServers": value}), NewSessionRequest)
    kinds = [type(one) for one in message.mcp_servers]
    assert kinds == [McpServerStdio, HttpMcpServer, UnknownMcpServer, McpServerStdio]
    assert to_dict(message)["mcpServers"] == value


def test_a_resource_is_text_or_a_blob_by_what_it_has() -> None:
    block = {"type": "resource", "resource": {"uri": "u", "text": "t", "new": 1}}
    message = decode(dumped({"sessionId": "s", "prompt": [block]}), PromptRequest)
    assert isinstance(message.prompt[0], EmbeddedResourceContentBlock)
    assert isinstance(message.prompt[0].resource, TextResourceContents)
    assert message.prompt[0].resource.extra_fields == {"new": 1}
    with pytest.raises(
        InvalidMessage, match=r"`prompt\[0\].resource` must have `text`, `uri` or `blob`, `uri`"
    ):
        decode(b'{"sessionId":"s","prompt":[{"type":"resource","resource":{"uri":"u"}}]}', PromptRequest)


def test_an_option_is_set_to_a_word_or_to_a_boolean() -> None:
    boolean = b'{"sessionId":"s","configId":"c","type":"boolean","value":true}'
    word = b'{"sessionId":"s","configId":"c","value":"fast"}'
    plain_union = SetSessionConfigOptionBooleanRequest | SetSessionConfigOptionSelectRequest
    for kind in (SetSessionConfigOptionRequest, plain_union):
        assert decode(boolean, kind) == SetSessionConfigOptionBooleanRequest(
            session_id="s", config_id="c", value=True
        )
        assert decode(word, kind) == SetSessionConfigOptionSelectRequest(
            session_id="s", config_id="c", value="fast"
        )
    assert isinstance(decode(word, SetSessionConfigOptionRequest), SetSessionConfigOptionRequest)


def test_a_question_to_the_user_is_told_by_its_mode_and_whose_it_is() -> None:
    form = {"mode": "form", "message": "m", "requestId": 3, "requestedSchema": {"properties": {}}}
    for kind in (CreateElicitationRequest, CreateFormElicitationRequest):
        message = decode(dumped(form), kind)
        assert isinstance(message, CreateFormRequestElicitationRequest)
        assert (message.mode, message.request_id) == ("form", 3)
    other = {"mode": "voice", "message": "m", "sessionId": "s"}
    message = decode(dumped(other), CreateElicitationRequest)
    assert isinstance(message, CreateOtherElicitationRequest)
    assert (message.mode, message.message, message.extra_fields) == ("voice", "m", {"sessionId": "s"})
    assert json.loads(encode(message)) == other


# What is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "value", "path", "problem"),
    [
        ("session/prompt", {"sessionId": 5, "prompt": []}, "sessionId", "must be a string, not the number 5"),
        ("session/prompt", {"sessionId": "s"}, "prompt", "is missing"),
        ("session/prompt", {"sessionId": "s", "prompt": {}}, "prompt", "must be a list, not an object"),
        ("session/prompt", {"sessionId": "s", "prompt": None}, "prompt", "must be a list, not null"),
        ("session/prompt", [], "", "must be an object, not a list"),
        (
            "session/prompt",
            {"sessionId": "s", "prompt": [{"type": "text", "text": "a"}, {"type": "text", "text": True}]},
            "prompt[1].text",
            "must be a string, not true",
        ),
        (
            "session/prompt",
            {"sessionId": "s", "prompt": [{"text": "a"}]},
            "prompt[0].type",
            "is missing, and must be one of 'text', 'image', 'audio', 'resource_link', 'resource'",
        ),
        (
            "session/prompt",
            {"sessionId": "s", "prompt": [{"type": 1}]},
            "prompt[0].type",
            "must be one of 'text', 'image', 'audio', 'resource_link', 'resource', not the number 1",
        ),
        (
            "session/prompt",
            {"sessionId": "s", "prompt": ["hi"]},
            "prompt[0]",
            "must be an object, not the string 'hi'",
        ),
        (
            "initialize",
            {"protocolVersion": "1"},
            "protocolVersion",
            "must be an integer from 0 to 65535, not the string '1'",
        ),
        (
            "initialize",
            {"protocolVersion": 65536},
            "protocolVersion",
            "must be an integer from 0 to 65535, not the number 65536",
        ),
        (
            "fs/read_text_file",
            {"sessionId": "s", "path": "/a", "line": -1},
            "line",
            "must be an integer from 0 up, not the number -1",
        ),
        (
            "fs/read_text_file",
            {"sessionId": "s", "path": "/a", "line": 1.5},
            "line",
            "must be an integer from 0 up, not the number 1.5",
        ),
        (
            "session/new",
            {"cwd": "/", "mcpServers": [{"name": "n", "command": "c", "args": [], "env": [{"name": "N"}]}]},
            "mcpServers[0].env[0].value",
            "is missing",
        ),
        (
            "session/new",
            {"cwd": "/", "mcpServers": [{"type": "http", "name": "n"}]},
            "mcpServers[0].headers",
            "is missing",
        ),
        (
            "session/set_config_option",
            {"sessionId": "s", "configId": "c", "type": "boolean", "value": "on"},
            "value",
            "must be true or false, not the string 'on'",
        ),
        (
            "session/request_permission",
            {
                "sessionId": "s",
                "toolCall": {"toolCallId": "1"},
                "options": [{"optionId": "o", "name": "n", "kind": "perhaps"}],
            },
            "options[0].kind",
            "must be one of 'allow_once', 'allow_always', 'reject_once', 'reject_always', not the string 'perhaps'",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_where_it_is_and_what_it_should_be(
    method: str, value: Any, path: str, problem: str
) -> None:
    kind = {**AGENT_TYPES, **CLIENT_TYPES}[method][0]
    with pytest.raises(InvalidMessage) as caught:
        decode(dumped(value), kind, method=method)
    error = caught.value
    assert (error.method, error.path, error.problem) == (method, path, problem)
    assert str(error) == f"{method}: {f'`{path}`' if path else 'the message'} {problem}"
    assert isinstance(error, ValueError)
    data = error.as_data()
    assert (data["method"], data.get("path", ""), data["problem"]) == (method, path, problem)
    assert json.loads(json.dumps(data)) == data
    with pytest.raises(InvalidMessage) as again:
        from_dict(kind, value, method=method)
    assert str(again.value) == str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_what_the_schema_says_may_be_wrong_counts_as_none_and_is_kept() -> None:
    made = update(sessionUpdate="tool_call", toolCallId="1", title="t", kind="browse", status=7, _meta="x")
    assert (made.kind, made.status, made.field_meta) == (None, None, None)
    assert made.extra_fields == {"kind": "browse", "status": 7, "_meta": "x"}
    written = json.loads(encode(made))
    assert (written["kind"], written["status"], written["_meta"]) == ("browse", 7, "x")


def test_of_a_list_only_what_is_wrong_in_it_is_left_out() -> None:
    content = [{"type": "diff", "path": 5}, {"type": "terminal", "terminalId": "t"}]
    made = update(sessionUpdate="tool_call", toolCallId="1", title="t", content=content)
    assert made.content == [TerminalToolCallContent(terminal_id="t")]
    assert made.extra_fields == {"content": content}
    assert json.loads(encode(made))["content"] == [{"type": "terminal", "terminalId": "t"}]
    assert update(sessionUpdate="plan", entries="all").entries == []
    assert update(sessionUpdate="plan", entries=None).entries == []


def test_a_way_to_authenticate_that_is_no_way_is_left_out() -> None:
    methods = [{"id": "a", "name": "A"}, {"id": 3}, {"type": "env_var", "id": "b", "name": "B", "vars": []}]
    message = decode(dumped({"protocolVersion": 1, "authMethods": methods}), InitializeResponse)
    assert [type(one) for one in message.auth_methods] == [AuthMethodAgent, AuthMethodAgent]
    assert message.auth_methods[1].extra_fields == {"type": "env_var", "vars": []}


def test_a_whole_number_with_a_point_is_an_integer() -> None:
    assert decode(b'{"sessionId":"s","path":"/a","line":3.0}', ReadTextFileRequest).line == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "truncated"),
        (b'{"sessionId":', "truncated"),
        (b"{'sessionId':1}", "malformed"),
        (b'{"sessionId":"\xff","path":"/a"}', "utf-8"),
        (b'{"sessionId":"s","new":"\xc3\x28"}', "utf-8"),
        (b'{"sessionId":"s","path":"/a","new":' + b"[" * 100_000, "nested too deeply"),
        (b'{"sessionId":"s","path":"/a","_meta":' + b'{"a":' * 100_000, "nested too deeply"),
        (b'{"sessionId":"s","path":"/a"} x', "malformed"),
    ],
)
def test_what_cannot_be_read_at_all_says_why(text: bytes, why: str) -> None:
    with pytest.raises(InvalidMessage, match=rf"^fs/read_text_file: the message cannot be read: .*{why}"):
        decode(text, ReadTextFileRequest, method="fs/read_text_file")


def test_what_cannot_be_written_says_why() -> None:
    deep: Any = []
    for _ in range(1_000_000):  # from 3.14 on it is the stack that counts, and has room for a tenth of that
        deep = [deep]
    call = ToolCallStart(tool_call_id="1", title="t", raw_input=deep)
    with pytest.raises(ValueError, match="nested too deeply"):
        encode(call)
    call.extra_fields = {"new": 1}
    with pytest.raises(ValueError, match="nested too deeply"):
        encode(call)
    with pytest.raises(TypeError, match="JSON has no representation for object"):
        encode(ToolCallStart(tool_call_id="1", title="t", raw_input=object()))
    while deep:  # by hand: deallocating it at once would itself go as deep
        deep = deep.pop()


@given(
    st.binary(max_size=60)
    | st.text(max_size=30).map(lambda text: dumped({"sessionId": text, "update": text}))
)
def test_whatever_is_sent_is_read_or_refused(text: bytes) -> None:
    try:
        decode(text, SessionNotification)
    except InvalidMessage:
        pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["sessionId", "update", "sessionUpdate", "content", "type", "text", "title", "entries"]
            ),
            inner | st.sampled_from(["tool_call", "plan", "agent_message_chunk", "text", "resource", "diff"]),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_json_is_sent_is_read_or_refused_and_read_the_same_again(value: Any) -> None:
    text = dumped({"sessionId": "s", "update": value})
    try:
        message = decode(text, SessionNotification)
    except InvalidMessage:
        return
    once = encode(message)
    assert encode(decode(once, SessionNotification)) == once


# Plain data ---------------------------------------------------------------------------------------------------


def test_plain_data_goes_both_ways() -> None:
    option = PermissionOption(option_id="o", name="Yes", kind="allow_once", field_meta={"k": 1})
    value = {"optionId": "o", "name": "Yes", "kind": "allow_once", "_meta": {"k": 1}}
    assert to_dict(option) == value
    assert from_dict(PermissionOption, value) == option
    assert value == json.loads(json.dumps(to_dict(option)))


def test_nothing_is_read_or_made_ready_by_importing() -> None:
    program = (
        "import quiesce.acp.schema, quiesce.acp.protocol.codec as codec, quiesce.acp.schema.reading as reading, sys\n"
        "assert codec._decoders == {} and reading._readers == {}\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
