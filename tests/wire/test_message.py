"""What one line says, and what is wrong with it."""

from __future__ import annotations

import json
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from quiesce.wire import FrameTooLong, RequestCancelled, RpcError, params_as
from quiesce.wire.rpc.message import Malformed, Message, Writer, error_in, parse, plain

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
WRITER = Writer(10_000)


def message(frame: bytes) -> Message:
    found = parse(frame)
    assert isinstance(found, Message), found
    return found


def malformed(frame: bytes) -> Malformed:
    found = parse(frame)
    assert isinstance(found, Malformed), found
    return found


def test_requests_notifications_and_answers_are_told_apart() -> None:
    asked = message(b'{"jsonrpc":"2.0","id":7,"method":"do","params":{"a":1}}')
    assert (asked.id, asked.method, plain(asked.params)) == (7, "do", {"a": 1})
    told = message(b'{"jsonrpc":"2.0","method":"do"}')
    assert (told.id, told.method, plain(told.params)) == (UNSET, "do", None)
    answer = message(b'{"jsonrpc":"2.0","id":7,"result":null}')
    assert (answer.method, bytes(answer.result)) == (UNSET, b"null")
    error = message(b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"no"}}')
    assert error_in(error).code == 1


@pytest.mark.parametrize("blank", [b"", b" ", b"\r", b" \t\r "])
def test_a_blank_line_says_nothing(blank: bytes) -> None:
    assert parse(blank) is None


def test_white_space_around_a_message_is_none_of_it() -> None:
    assert message(b' \t{"jsonrpc":"2.0","method":"do"} \r').method == "do"


@pytest.mark.parametrize(
    "frame",
    [
        b"nonsense",
        b"{",
        b'{"jsonrpc":"2.0","method":"do"',
        b'{"jsonrpc":"2.0","method":"do"}}',
        b'{"jsonrpc":"2.0","method":"do"}{"jsonrpc":"2.0","method":"do"}',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":01}',
        b'{"a":"\x01"}',
        b'{"a":"\\q"}',
        b'{"a":"\\ud800"}',
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"jsonrpc":"2.0","method":"\xff"}',
        b'{"jsonrpc":"2.0","method":"do","params":"\xc3"}',
        b'{"jsonrpc":"2.0","id":1,"result":"\xed\xa0\x80"}',
        b'{"jsonrpc":"2.0","id":1,"method":"do","params":' + b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b"\x00",
        "{}".encode("utf-16"),
    ],
    ids=lambda it: repr(it[:40]),
)
def test_what_is_no_json_is_a_parse_error_for_nobody(frame: bytes) -> None:
    found = malformed(frame)
    assert (found.code, found.id) == (-32700, None)
    assert found.message.startswith("Parse error: ")


@pytest.mark.parametrize(
    ("frame", "whose"),
    [
        (b"1", None),
        (b"null", None),
        (b'"text"', None),
        (b"[]", None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"do"}]', None),
        (b"{}", None),
        (b'{"jsonrpc":"2.0"}', None),
        (b'{"id":1,"method":"do"}', 1),
        (b'{"jsonrpc":"1.0","id":"a","method":"do"}', "a"),
        (b'{"jsonrpc":2.0,"id":1,"method":"do"}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":null}', 1),
        (b'{"jsonrpc":"2.0","id":true,"method":"do"}', None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"do"}', None),
        (b'{"jsonrpc":"2.0","id":{},"method":"do"}', None),
        (b'{"jsonrpc":"2.0","id":1}', 1),
    ],
    ids=str,
)
def test_json_that_is_no_message_is_an_invalid_request_of_whoever_says_so(frame: bytes, whose: Any) -> None:
    found = malformed(frame)
    assert (found.code, found.id) == (-32600, whose)
    assert found.message.startswith("Invalid request: ")


@pytest.mark.parametrize(
    "frame",
    [b'{"jsonrpc":2,"id":1,"result":1}', b'{"jsonrpc":"2.0","id":[],"error":{}}', b'{"id":true,"result":1}'],
    ids=str,
)
def test_an_answer_that_is_none_is_never_answered(frame: bytes) -> None:
    assert malformed(frame).id is UNSET


def test_an_answer_without_a_version_is_taken() -> None:
    assert plain(message(b'{"id":1,"result":5}').result) == 5


@pytest.mark.parametrize("id", [0, -1, 2**63, 2**64, -(2**70), "", "x", 1.5, 1e20, None])
def test_ids_are_whatever_they_are(id: Any) -> None:  # noqa: A002
    found = message(json.dumps({"jsonrpc": "2.0", "id": id, "method": "do"}).encode())
    assert found.id == id
    assert json.loads(WRITER.result(found.id, 1))["id"] == id  # type: ignore[arg-type]


@given(frame=st.binary(max_size=60))
def test_no_bytes_at_all_raise(frame: bytes) -> None:
    parse(frame)


@given(value=JSON)
def test_no_json_at_all_raises_and_only_objects_can_be_messages(value: Any) -> None:
    found = parse(json.dumps(value).encode())
    assert isinstance(found, (Message, Malformed))
    if not isinstance(value, dict):
        assert isinstance(found, Malformed)


@given(
    value=st.fixed_dictionaries(
        {},
        optional={
            "jsonrpc": st.just("2.0") | JSON,
            "id": st.integers() | st.text() | JSON,
            "method": st.text() | JSON,
            "params": JSON,
            "result": JSON,
            "error": st.fixed_dictionaries({"code": st.integers(), "message": st.text()}) | JSON,
        },
    )
)
def test_what_almost_is_a_message_is_one_or_says_why_not(value: dict[str, Any]) -> None:
    found = parse(json.dumps(value).encode())
    if isinstance(found, Message):
        assert found.method is UNSET or found.method == value["method"]
        assert plain(found.params) == value.get("params")
        if found.error:
            assert isinstance(error_in(found), RpcError)
    else:
        assert isinstance(found, Malformed)
        assert found.id is UNSET or found.id is None or found.id == value["id"]


@given(params=JSON, method=st.text(), number=st.integers(0))
def test_what_is_written_is_read_again(params: Any, method: str, number: int) -> None:
    for frame in (WRITER.request(number, method, params), WRITER.notification(method, params)):
        assert b"\n" not in frame
        found = message(frame)
        assert (found.method, plain(found.params)) == (method, params)
    assert plain(message(WRITER.result(number, params)).result) == params


def test_a_line_that_is_too_long_is_not_written() -> None:
    writer = Writer(50)
    with pytest.raises(FrameTooLong, match=r"'do' cannot be sent: it is \d+ bytes long, and the limit is 50"):
        writer.request(1, "do", "x" * 50)
    assert b'"code":1' in writer.error(1, 1, "x" * 5000)
    assert len(writer.error(1, 1, "x" * 5000)) < 1100


def test_what_is_nested_too_deeply_is_not_written() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(ValueError, match="'do' cannot be sent: it is nested too deeply"):
        WRITER.request(1, "do", deep)
    while deep:
        deep = deep[0]


def test_raw_json_is_written_on_one_line() -> None:
    frame = WRITER.result(1, msgspec.Raw(b'{\n "a": "x\\ny"\n}'))
    assert b"\n" not in frame
    assert json.loads(frame)["result"] == {"a": "x\ny"}


def test_parameters_as_a_type_say_what_does_not_fit() -> None:
    decode = params_as(dict[str, int])
    assert decode(msgspec.Raw(b'{"a":1}')) == {"a": 1}
    assert decode(msgspec.Raw(b"")) == {}
    with pytest.raises(ValueError, match="Expected `int`"):
        decode(msgspec.Raw(b'{"a":"1"}'))


@pytest.mark.parametrize("kind", [RpcError, RequestCancelled])
def test_errors_can_be_copied_and_say_all_they_know(kind: type[RpcError]) -> None:
    error = pickle.loads(pickle.dumps(kind(-32800, "no", {"a": 1})))
    assert type(error) is kind
    assert (error.code, error.message, error.data, str(error)) == (-32800, "no", {"a": 1}, "no")
    assert repr(error) == f"{kind.__name__}(-32800, 'no', {{'a': 1}})"


def test_the_code_of_an_error_is_a_number() -> None:
    with pytest.raises(TypeError, match="whole number"):
        RpcError("-32000", "no")  # type: ignore[arg-type]
