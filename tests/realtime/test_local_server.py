"""The local server speaks the Realtime wire, and does wrong what it is asked to, over a real socket."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest
from openai.types.realtime.realtime_server_event import RealtimeServerEvent
from websockets.client import ClientProtocol
from websockets.exceptions import (
    ConnectionClosed,
    ConnectionClosedError,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
)
from websockets.sync.client import ClientConnection, connect
from websockets.uri import parse_uri

from quiesce.realtime.testing import Faults, LocalRealtimeServer, Speech
from quiesce.realtime.testing.server.faults import MALFORMED
from quiesce.realtime.testing.speech import Turn
from quiesce.realtime.testing.tones import loudness, silence, tone
from quiesce.realtime.words.audio_format import bytes_per_millisecond
from quiesce.testing import call

OFFICIAL = {
    get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in get_args(get_args(RealtimeServerEvent)[0])
}
PATIENCE = 10.0

NO_VAD = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}


class Client:
    """A plain client. Everything it hears must be as the official client's types have it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.heard: list[dict[str, Any]] = []

    def say(self, kind: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": kind, **fields}))

    def hear(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.connection.recv(PATIENCE))
        parsed = OFFICIAL[event["type"]].model_validate(event, strict=True)
        assert not parsed.model_extra or event["type"] == "session.created", event
        self.heard.append(event)
        return event

    def until(self, kind: str) -> list[dict[str, Any]]:
        """All that is heard up to the next event of this type."""
        heard = [self.hear()]
        while heard[-1]["type"] != kind:
            heard.append(self.hear())
        return heard

    def ask(self, text: str = "Hello") -> None:
        content = [{"type": "input_text", "text": text}]
        self.say("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        self.say("response.create")

    def speak(self, audio: bytes) -> None:
        self.say("input_audio_buffer.append", audio=base64.b64encode(audio).decode())


@contextmanager
def client_of(server: LocalRealtimeServer, **options: Any) -> Iterator[Client]:
    with connect(
        server.url + "?model=gpt-realtime", close_timeout=10, max_size=None, **options
    ) as connection:
        client = Client(connection)
        assert client.hear()["type"] == "session.created"
        yield client


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


# What it says -----------------------------------------------------------------------------------------------


def test_a_session_is_created_and_updated() -> None:
    with LocalRealtimeServer() as server, client_of(server) as client:
        session = client.heard[0]["session"]
        assert session["model"] == "gpt-realtime"
        assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
        client.say(
            "session.update",
            session={
                "type": "realtime",
                "instructions": "Be brief.",
                "audio": {"input": {"turn_detection": {"type": "semantic_vad"}}, "output": {"voice": "ash"}},
            },
        )
        updated = client.hear()["session"]
        assert updated["instructions"] == "Be brief."
        assert updated["audio"]["output"] == {**session["audio"]["output"], "voice": "ash"}
        assert updated["audio"]["input"]["format"] == session["audio"]["input"]["format"]
        assert updated["audio"]["input"]["turn_detection"]["interrupt_response"] is True
        assert not server.complaints


def test_an_answer_is_said_with_audio_in_the_order_of_the_wire() -> None:
    with LocalRealtimeServer(["Good morning."]) as server, client_of(server) as client:
        client.ask()
        heard = client.until("response.done")
    piece = ["response.output_audio_transcript.delta", "response.output_audio.delta"]
    assert types(heard) == [
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        *piece,
        *piece,
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    audio = [base64.b64decode(e["delta"]) for e in heard if e["type"] == "response.output_audio.delta"]
    assert [len(piece) for piece in audio] == [4800, 4800]
    assert loudness(audio[0]) > 0.1
    done = heard[-1]["response"]
    assert done["status"] == "completed"
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Good morning."}]
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"] > 0
    user, assistant = heard[0]["item"]["id"], done["output"][0]["id"]
    assert heard[5]["previous_item_id"] == user
    assert heard[5]["item"]["id"] == assistant
    assert not server.complaints
    assert types(server.received) == ["conversation.item.create", "response.create"]


def test_a_tool_is_called_and_its_output_answered() -> None:
    turns: list[Turn] = [call("weather", city="Paris"), "It rains."]
    with LocalRealtimeServer(turns) as server, client_of(server) as client:
        client.ask()
        heard = client.until("response.done")
        asked = heard[-1]["response"]["output"][0]
        assert (asked["type"], asked["name"]) == ("function_call", "weather")
        assert json.loads(asked["arguments"]) == {"city": "Paris"}
        assert "response.function_call_arguments.done" in types(heard)
        output = {"type": "function_call_output", "call_id": asked["call_id"], "output": "rain"}
        client.say("conversation.item.create", item=output)
        client.say("response.create")
        heard = client.until("response.done")
        assert heard[-1]["response"]["output"][0]["content"][0]["transcript"] == "It rains."
        assert not server.complaints


def test_text_is_written_where_the_session_or_the_response_wants_text() -> None:
    with LocalRealtimeServer(["One two", "Three", "Four"]) as server, client_of(server) as client:
        client.say("response.create", response={"output_modalities": ["text"]})
        heard = client.until("response.done")
        assert [e["delta"] for e in heard if e["type"] == "response.output_text.delta"] == ["One ", "two"]
        assert "response.output_audio.delta" not in types(heard)
        client.say("session.update", session={"type": "realtime", "output_modalities": ["text"]})
        client.say("response.create")
        heard = client.until("response.done")
        assert heard[-1]["response"]["output"][0]["content"] == [{"type": "output_text", "text": "Three"}]
        assert not server.complaints


def test_a_response_can_stay_out_of_the_conversation() -> None:
    with LocalRealtimeServer(["Apart", "In it"]) as server, client_of(server) as client:
        client.say("response.create", response={"conversation": "none", "metadata": {"topic": "x"}})
        heard = client.until("response.done")
        assert "conversation.item.added" not in types(heard)
        assert heard[-1]["response"]["conversation_id"] is None
        assert heard[-1]["response"]["metadata"] == {"topic": "x"}
        client.say("response.create")
        added = next(e for e in client.until("response.done") if e["type"] == "conversation.item.added")
        assert added["previous_item_id"] is None


def test_a_function_writes_the_turn_from_what_the_client_has_sent() -> None:
    async def later(event: dict[str, Any]) -> str:
        return f"You sent {event['type']}"

    turns: list[Turn] = [lambda event: f"You sent {event['event_id']}", later]
    with LocalRealtimeServer(turns) as server, client_of(server) as client:
        client.say("response.create", event_id="mine")
        assert (
            client.until("response.done")[-1]["response"]["output"][0]["content"][0]["transcript"]
            == "You sent mine"
        )
        client.say("response.create")
        said = client.until("response.done")[-1]["response"]["output"][0]["content"][0]["transcript"]
        assert said == "You sent response.create"


def test_an_exception_is_a_response_that_has_failed_and_so_is_the_end_of_the_script() -> None:
    with LocalRealtimeServer([LookupError("no model today")]) as server, client_of(server) as client:
        client.say("response.create")
        failed = client.until("response.done")[-1]["response"]
        assert failed["status"] == "failed"
        assert failed["status_details"]["error"]["message"] == "no model today"
        client.say("response.create")
        failed = client.until("response.done")[-1]["response"]
        assert failed["status_details"]["error"]["code"] == "ScriptExhausted"


def test_a_response_is_cancelled_in_the_middle_and_the_next_one_can_begin() -> None:
    turns: list[Turn] = [Speech("one two three four", pace=3600), "Next."]
    with LocalRealtimeServer(turns) as server, client_of(server) as client:
        client.ask()
        client.until("response.output_audio.delta")
        client.say("response.cancel")
        heard = client.until("response.done")
        assert types(heard) == [
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "conversation.item.done",
            "response.output_item.done",
            "response.done",
        ]
        assert heard[1]["transcript"] == "one "
        done = heard[-1]["response"]
        assert done["status"] == "cancelled"
        assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        assert done["output"][0]["status"] == "incomplete"
        client.say("response.create")
        assert client.until("response.done")[-1]["response"]["status"] == "completed"
        assert not server.complaints


def test_items_are_put_where_they_belong_truncated_retrieved_and_deleted() -> None:
    with LocalRealtimeServer(["one two"]) as server, client_of(server) as client:
        client.ask()
        item_id = client.until("response.done")[-1]["response"]["output"][0]["id"]
        client.say("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=150)
        truncated = client.hear()
        assert (truncated["type"], truncated["audio_end_ms"]) == ("conversation.item.truncated", 150)
        client.say("conversation.item.retrieve", item_id=item_id)
        assert client.hear()["item"]["content"] == [
            {"type": "output_audio"}
        ]  # nobody knows which words were heard
        system = {
            "type": "message",
            "role": "system",
            "content": [{"type": "input_text", "text": "Be brief."}],
        }
        client.say("conversation.item.create", item={"id": "first", **system}, previous_item_id="root")
        assert client.until("conversation.item.done")[-1]["previous_item_id"] is None
        client.say("conversation.item.create", item={"id": "second", **system}, previous_item_id="first")
        assert client.until("conversation.item.done")[-1]["previous_item_id"] == "first"
        client.say("conversation.item.delete", item_id="second")
        assert client.hear()["type"] == "conversation.item.deleted"
        assert not server.complaints


# What it hears ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["audio/pcm", "audio/pcmu", "audio/pcma"])
def test_the_server_notices_when_somebody_speaks_and_answers(kind: str) -> None:
    form = {"type": kind, "rate": 24000} if kind == "audio/pcm" else {"type": kind}
    with LocalRealtimeServer(["I heard you."], transcripts=["Hello?"]) as server, client_of(server) as client:
        hears = {"format": form, "transcription": {"model": "gpt-4o-transcribe"}}
        client.say(
            "session.update",
            session={"type": "realtime", "audio": {"input": hears, "output": {"format": form}}},
        )
        client.hear()
        audio = silence(1000, kind) + tone(400, kind) + silence(700, kind)
        chunk = int(bytes_per_millisecond(kind) * 37)  # no multiple of anything
        for start in range(0, len(audio), chunk):
            client.speak(audio[start : start + chunk])
        heard = client.until("response.done")
        assert types(heard)[:8] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "conversation.item.input_audio_transcription.delta",
            "conversation.item.input_audio_transcription.completed",
            "response.created",
        ]
        assert heard[0]["audio_start_ms"] == 700  # with the padding
        assert heard[1]["audio_end_ms"] == pytest.approx(1900, abs=20)
        assert len({heard[n]["item_id"] for n in (0, 1, 2, 6)} | {heard[3]["item"]["id"]}) == 1
        assert heard[6]["transcript"] == "Hello?"
        delta = next(e["delta"] for e in heard if e["type"] == "response.output_audio.delta")
        assert len(base64.b64decode(delta)) == 100 * bytes_per_millisecond(kind)
        client.say("conversation.item.retrieve", item_id=heard[0]["item_id"])
        said = base64.b64decode(client.hear()["item"]["content"][0]["audio"])
        assert len(said) == pytest.approx(1200 * bytes_per_millisecond(kind), rel=0.05)
        assert not server.complaints


def test_speech_interrupts_the_response_that_is_on() -> None:
    with LocalRealtimeServer([Speech("one two three", pace=3600)]) as server, client_of(server) as client:
        client.ask()
        client.until("response.output_audio.delta")
        client.speak(tone(100))
        assert client.hear()["type"] == "input_audio_buffer.speech_started"
        done = client.until("response.done")[-1]["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}


def test_speech_leaves_the_response_alone_where_the_session_says_so() -> None:
    quiet = {"type": "server_vad", "create_response": False, "interrupt_response": False}
    with LocalRealtimeServer([Speech("one two", pace=3600)]) as server, client_of(server) as client:
        client.say(
            "session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": quiet}}}
        )
        client.ask()
        client.until("response.output_audio.delta")
        client.speak(tone(100) + silence(600))
        client.say("input_audio_buffer.clear")
        heard = client.until("input_audio_buffer.cleared")
        assert "input_audio_buffer.committed" in types(heard)
        assert "response.done" not in types(heard)
        client.say("response.cancel")
        done = client.until("response.done")[-1]["response"]
        assert done["status_details"]["reason"] == "client_cancelled"


def test_without_turn_detection_the_client_commits() -> None:
    with LocalRealtimeServer(["I heard you."]) as server, client_of(server) as client:
        client.say("session.update", session=NO_VAD)
        client.hear()
        client.speak(tone(100) + silence(1000))
        client.say("input_audio_buffer.commit")
        heard = client.until("conversation.item.done")
        assert types(heard) == [
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
        ]
        client.say("response.create")
        client.until("response.done")
        assert not server.complaints


ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"event_id": "mine"}, "missing_required_parameter", "type"),
        ({"type": "response.sing"}, "invalid_value", "type"),
        ({"type": 17}, "invalid_value", "type"),
        ({"type": "conversation.item.create"}, "missing_required_parameter", "item"),
        (
            {"type": "session.update", "session": {"type": "realtime", "mood": "good"}},
            "unknown_parameter",
            "session.mood",
        ),
        (
            {
                "type": "session.update",
                "session": {"type": "realtime", "audio": {"output": {"speed": "fast"}}},
            },
            "invalid_value",
            None,
        ),
        (
            {"type": "conversation.item.create", "item": ITEM, "previous_item_id": "x"},
            "invalid_value",
            "previous_item_id",
        ),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "function_call_output", "call_id": "x", "output": ""},
            },
            "invalid_tool_call_id",
            "item.call_id",
        ),
        ({"type": "conversation.item.delete", "item_id": "x"}, "item_delete_invalid_item_id", "item_id"),
        ({"type": "conversation.item.retrieve", "item_id": "x"}, "item_retrieve_invalid_item_id", "item_id"),
        (
            {"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": 1},
            "item_truncate_invalid_item_id",
            "item_id",
        ),
        ({"type": "input_audio_buffer.append", "audio": "%%"}, "invalid_value", "audio"),
        ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty", None),
        ({"type": "response.cancel"}, "response_cancel_not_active", None),
        ({"type": "response.cancel", "response_id": "x"}, "response_cancel_not_active", None),
    ],
)
def test_nonsense_is_answered_with_an_error_that_names_it_and_the_session_goes_on(
    event: dict[str, Any], code: str, param: str | None
) -> None:
    with LocalRealtimeServer(["Still here."]) as server, client_of(server) as client:
        client.connection.send(json.dumps({"event_id": "mine", **event}))
        error = client.hear()
        assert error["type"] == "error"
        assert (error["error"]["type"], error["error"]["code"]) == ("invalid_request_error", code)
        assert error["error"]["event_id"] == "mine"
        assert param is None or error["error"]["param"] == param
        assert len(server.complaints) == 1
        client.say("response.create")
        client.until("response.done")


@pytest.mark.parametrize("message", ["no JSON", "[]", b"\x00"])
def test_what_is_no_event_is_answered_with_an_error(message: str | bytes) -> None:
    with LocalRealtimeServer() as server, client_of(server) as client:
        client.connection.send(message)
        assert client.hear()["error"]["type"] == "invalid_request_error"
        assert len(server.complaints) == 1


def test_one_response_at_a_time() -> None:
    with LocalRealtimeServer([Speech("one two", pace=3600)]) as server, client_of(server) as client:
        client.say("response.create")
        client.until("response.output_audio.delta")
        client.say("response.create")
        assert client.hear()["error"]["code"] == "conversation_already_has_active_response"
        client.say("response.cancel")
        assert client.until("response.done")[-1]["response"]["status"] == "cancelled"


def test_more_cannot_be_truncated_than_was_said() -> None:
    with LocalRealtimeServer(["one two"]) as server, client_of(server) as client:
        client.ask()
        heard = client.until("response.done")
        user, said = heard[0]["item"]["id"], heard[-1]["response"]["output"][0]["id"]
        client.say("conversation.item.truncate", item_id=said, content_index=0, audio_end_ms=201)
        assert "200ms is already shorter than 201ms" in client.hear()["error"]["message"]
        client.say("conversation.item.truncate", item_id=user, content_index=0, audio_end_ms=1)
        assert client.hear()["error"]["param"] == "item_id"
        client.say("conversation.item.create", item={"id": said, **ITEM})
        assert client.hear()["error"]["code"] == "item_create_duplicate_id"


# Many, and the end ------------------------------------------------------------------------------------------


def test_connections_are_apart_and_each_begins_the_script_anew() -> None:
    with LocalRealtimeServer([call("weather"), "Done."]) as server:
        with client_of(server) as one, client_of(server) as two:
            calls = []
            for client in (one, two):
                client.ask()
                calls.append(client.until("response.done")[-1]["response"]["output"][0]["call_id"])
            assert calls[0] != calls[1]
            foreign = {"type": "function_call_output", "call_id": calls[0], "output": "rain"}
            two.say("conversation.item.create", item=foreign)
            assert two.hear()["error"]["code"] == "invalid_tool_call_id"
            assert len(server.open_connections) == 2
        server.wait_for(lambda: not server.open_connections)
        assert [connection.ended for connection in server.connections] == ["closed", "closed"]
        assert [connection.close_code for connection in server.connections] == [1000, 1000]
        assert server.connections[0].path == "/v1/realtime?model=gpt-realtime"
        assert server.connections[0].headers["upgrade"] == "websocket"


def test_connections_may_share_a_script_and_transcripts() -> None:
    with LocalRealtimeServer(["One.", "Two."], transcripts=["first", "second"], shared=True) as server:
        said = []
        for _ in range(2):
            with client_of(server) as client:
                settings = {
                    **NO_VAD,
                    "audio": {"input": {"turn_detection": None, "transcription": {"model": "m"}}},
                }
                client.say("session.update", session=settings)
                client.speak(tone(200))
                client.say("input_audio_buffer.commit")
                heard = client.until("conversation.item.input_audio_transcription.completed")
                said.append(heard[-1]["transcript"])
                client.say("response.create")
                said.append(
                    client.until("response.done")[-1]["response"]["output"][0]["content"][0]["transcript"]
                )
        assert said == ["first", "One.", "second", "Two."]


def test_sessions_are_bounded_in_count() -> None:
    with LocalRealtimeServer(sessions=1) as server, client_of(server):
        with pytest.raises(InvalidStatus) as refused, client_of(server):
            pass
        assert refused.value.response.status_code == 429
        assert "there are 1 sessions already" in server.complaints[0]


def test_sessions_are_bounded_in_time() -> None:
    with LocalRealtimeServer(seconds=0.05) as server, client_of(server) as client:
        assert client.hear()["error"]["code"] == "session_expired"
        with pytest.raises(ConnectionClosed):
            client.hear()
        server.wait_for(lambda: not server.open_connections)


def test_closing_the_server_leaves_neither_threads_nor_sockets() -> None:
    server = LocalRealtimeServer([Speech("one two", pace=3600)])
    with (
        connect(server.url),
        client_of(server) as busy,
        socket.create_connection(("127.0.0.1", server.port)),
    ):
        busy.ask()
        busy.until("response.output_audio.delta")
        assert (
            len(server.wait_for(lambda: len(server.open_connections) == 3 and server.open_connections)) == 3
        )
        server.close()
        assert f"realtime server {server.port}" not in {thread.name for thread in threading.enumerate()}
        assert not server.open_connections
        with pytest.raises(ConnectionClosed) as closed:
            busy.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
    server.close()
    with pytest.raises(RuntimeError, match="is closed"):
        server.send({"type": "response.created"})


def test_waiting_for_something_gives_it_or_says_what_came_instead() -> None:
    with LocalRealtimeServer(["Hello."]) as server, client_of(server) as client:
        client.ask("first")
        client.until("response.done")
        client.say("input_audio_buffer.clear", event_id="mine")
        assert server.wait_for("input_audio_buffer.clear")["event_id"] == "mine"
        assert server.wait_for(lambda: server.connections[0].bytes_sent) > 1000
        with pytest.raises(TimeoutError, match=r"'response.create'.*'conversation.item.create'"):
            server.wait_for("response.create", count=2, seconds=0.01)


def test_a_test_can_say_something_of_its_own() -> None:
    with LocalRealtimeServer() as server, client_of(server) as client:
        server.send(
            {
                "type": "input_audio_buffer.timeout_triggered",
                "item_id": "x",
                "audio_start_ms": 1,
                "audio_end_ms": 2,
            }
        )
        assert client.hear()["item_id"] == "x"


def test_a_client_that_does_not_read_slows_down_what_is_said_to_it() -> None:
    megabytes = 40
    turn = Speech("much", audio=bytes(1_000_000) * megabytes, piece=100_000)
    with LocalRealtimeServer([turn]) as server, client_of(server) as client:
        client.connection.send(json.dumps({"type": "response.create"}))
        server.wait_for("response.create")
        connection = server.connections[0]
        sent = -1
        while sent < connection.bytes_sent:  # until it sends no more
            sent = connection.bytes_sent
            time.sleep(0.1)
        assert sent < megabytes * 1_000_000
        assert len(connection._unsent) < 1_000_000
        heard = client.until("response.done")
        audio = sum(len(e["delta"]) for e in heard if e["type"] == "response.output_audio.delta")
        assert audio == pytest.approx(megabytes * 1_000_000 * 4 / 3, rel=0.01)


# It uses the synchronous client of websockets in a way that websockets has deprecated.
@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
def test_the_official_client_speaks_with_it() -> None:
    from openai import OpenAI

    with LocalRealtimeServer([call("weather", city="Paris"), "It rains."]) as server:
        official = OpenAI(api_key="none", websocket_base_url=server.url.removesuffix("/realtime"))
        with official, official.realtime.connect(model="gpt-realtime") as connection:
            connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
            connection.conversation.item.create(item=ITEM)
            connection.response.create()
            heard = []
            for event in connection:
                heard.append(event)
                if event.type == "response.done":
                    break
        assert [event.type for event in heard][:2] == ["session.created", "session.updated"]
        assert heard[-1].response.output[0].name == "weather"
        assert server.connections[0].headers["authorization"] == "Bearer none"
        assert not server.complaints


# What it does wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 500])
def test_it_refuses_the_handshake(status: int) -> None:
    with LocalRealtimeServer(faults=Faults(handshake=status)) as server:
        with pytest.raises(InvalidStatus) as refused:
            connect(server.url)
        assert refused.value.response.status_code == status
        server.wait_for(lambda: server.connections[0].ended == f"refused with {status}")


def test_it_answers_the_handshake_with_garbage() -> None:
    with LocalRealtimeServer(faults=Faults(handshake="garbage")) as server, pytest.raises(InvalidMessage):
        connect(server.url)


def test_it_never_answers_the_handshake() -> None:
    with LocalRealtimeServer(faults=Faults(handshake="silence")) as server:
        with pytest.raises(TimeoutError):
            connect(server.url, open_timeout=0.1)
        server.wait_for(
            lambda: server.connections and server.connections[0].ended == "the client has disconnected"
        )


def test_it_is_slow() -> None:
    rate = 20_000
    with LocalRealtimeServer(["Hello."], faults=Faults(slow=rate)) as server, client_of(server) as client:
        begun = time.monotonic()
        client.ask()
        client.until("response.done")
        assert time.monotonic() - begun > (server.connections[0].bytes_sent - 5000) / rate > 0.1


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("size", [0, 1, 2, 3000])
def test_it_drops_the_connection_in_the_middle_of_a_frame(size: int, reset: bool) -> None:
    faults = Faults(drops_after=size, reset=reset)
    with LocalRealtimeServer(["Hello."], faults=faults) as server, raw_client_of(server) as raw:
        raw.say(b'{"type": "response.create"}')
        assert raw.hear_all() == reset
        # The protocol tells a frame that is not all there from an end between two.
        assert raw.bytes_of_a_frame > 0
        server.wait_for(lambda: server.connections[0].ended == ("reset" if reset else "dropped"))


def test_it_resets_the_connection() -> None:
    faults = Faults(reset=True, after="session.updated")
    with LocalRealtimeServer(faults=faults) as server, client_of(server) as client:
        client.say("session.update", session=NO_VAD)
        with pytest.raises(ConnectionClosedError) as closed:
            client.until("response.done")
        assert isinstance(closed.value.__cause__, ConnectionResetError)


def test_it_goes_silent_and_keeps_the_socket() -> None:
    faults = Faults(half_open=True, after="session.updated")
    with LocalRealtimeServer(["Never."], faults=faults) as server, raw_client_of(server) as raw:
        raw.say(json.dumps({"type": "session.update", "session": NO_VAD}).encode())
        raw.hear_until(b"session.updated")
        raw.say(b'{"type": "response.create"}')
        raw.protocol.send_ping(b"?")
        raw.flush()
        raw.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            raw.socket.recv(1)
        # Nor does it read: sooner or later nothing more can be sent.
        with pytest.raises(TimeoutError):
            while True:
                raw.socket.sendall(bytes(1_000_000))
        assert len(server.received) == 1
        assert server.connections[0].ended is None


def test_it_floods() -> None:
    with LocalRealtimeServer(["Hello."], faults=Faults(floods=3)) as server, client_of(server) as client:
        client.say("response.create")
        heard = client.until("response.done")
    audio = sum(
        len(base64.b64decode(e["delta"])) for e in heard if e["type"] == "response.output_audio.delta"
    )
    assert audio == 3_000_000 + 4800


@pytest.mark.parametrize("kind", MALFORMED)
def test_it_sends_malformed_events(kind: Any) -> None:
    faults = Faults(malformed=(kind,))
    with LocalRealtimeServer(["Hello."], faults=faults) as server, client_of(server) as client:
        client.say("response.create")
        client.until("response.created")
        if kind in ("protocol", "bad_utf8"):
            with pytest.raises(ConnectionClosedError) as closed:
                client.connection.recv(PATIENCE)
            assert closed.value.sent is not None
            assert closed.value.sent.code == (1002 if kind == "protocol" else 1007)
            return
        message = client.connection.recv(PATIENCE)
        assert isinstance(message, bytes) == (kind == "binary")
        if kind == "not_json":
            with pytest.raises(ValueError):
                json.loads(message)
        else:
            event = json.loads(message)
            known = OFFICIAL.get(event.get("type")) if isinstance(event, dict) else None
            assert (known is None) == (kind in ("not_object", "no_type", "unknown_type"))
            if kind == "wrong_types":
                with pytest.raises(ValueError):
                    OFFICIAL[event["type"]].model_validate(event)
            if kind == "bad_base64":
                with pytest.raises(ValueError):
                    base64.b64decode(event["delta"], validate=True)
        client.until("response.done")


def test_it_sends_a_message_that_is_too_large() -> None:
    faults = Faults(oversized=3_000_000)
    with LocalRealtimeServer(["Hello."], faults=faults) as server, client_of(server) as client:
        client.say("response.create")
        client.until("response.output_audio.delta")
        assert len(client.heard[-1]["delta"]) == 4_000_000


@pytest.mark.parametrize("code", [1000, 1011, 4000])
def test_it_closes_with_a_code(code: int) -> None:
    with LocalRealtimeServer(["Hello."], faults=Faults(closes_with=code)) as server:
        with client_of(server) as client:
            client.say("response.create")
            with pytest.raises(ConnectionClosed) as closed:
                client.until("response.done")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == code
            assert types(client.heard)[-1] == "response.created"
        server.wait_for(lambda: not server.open_connections)


def test_it_never_answers_a_close_frame() -> None:
    faults = Faults(never_answers_close=True)
    with LocalRealtimeServer(faults=faults) as server, raw_client_of(server) as raw:
        raw.protocol.send_close(1000)
        raw.flush()
        server.wait_for(lambda: server.connections[0].close_code == 1000)
        raw.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            while raw.socket.recv(4096):
                pass
        assert server.connections[0].ended is None


def test_a_test_can_choose_the_moment_and_later_connections_are_as_the_faults_are_then() -> None:
    with LocalRealtimeServer([Speech("one two", pace=3600)]) as server:
        with client_of(server) as client:
            client.ask()
            client.until("response.output_audio.delta")
            server.inflict(Faults(closes_with=4000))
            with pytest.raises(ConnectionClosed):
                client.hear()
        server.faults = Faults(handshake=403)
        with pytest.raises(InvalidHandshake):
            connect(server.url)


def test_each_connection_may_have_its_own_faults_and_those_after_them_have_none() -> None:
    faults = [Faults(handshake=503), Faults(closes_with=1011, after="session.created")]
    with LocalRealtimeServer(["Hello."], faults=faults) as server:
        with pytest.raises(InvalidStatus):
            connect(server.url)
        with client_of(server) as client, pytest.raises(ConnectionClosed):
            client.hear()
        with client_of(server) as client:
            client.ask()
            client.until("response.done")


def test_what_an_assistant_has_said_is_taken_as_text_alone() -> None:
    with LocalRealtimeServer() as server, client_of(server) as client:
        for part, is_taken in (
            ({"type": "output_text", "text": "Hi."}, True),
            ({"type": "output_audio", "transcript": "Hi."}, False),
        ):
            client.say(
                "conversation.item.create", item={"type": "message", "role": "assistant", "content": [part]}
            )
            answer = client.hear()
            if is_taken:
                assert answer["type"] == "conversation.item.added"
                client.until("conversation.item.done")
            else:
                assert answer["error"]["param"] == "item.content[0].text"


def test_faults_that_make_no_sense_are_refused() -> None:
    for wrong in ({"slow": 0}, {"malformed": ("odd",)}, {"handshake": 200}):
        with pytest.raises(ValueError, match="Faults"):
            Faults(**wrong)


# By hand ----------------------------------------------------------------------------------------------------


class Raw:
    """A client that sees the bytes."""

    def __init__(self, server: LocalRealtimeServer) -> None:
        self.protocol = ClientProtocol(parse_uri(server.url), max_size=None)
        self.socket = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        self.data = b""
        self.protocol.send_request(self.protocol.connect())
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(b"".join(self.protocol.data_to_send()))

    def say(self, message: bytes) -> None:
        self.protocol.send_text(message)
        self.flush()

    def hear_until(self, text: bytes) -> None:
        while text not in self.data:
            data = self.socket.recv(65536)
            assert data
            self.data += data
            self.protocol.receive_data(data)

    def hear_all(self) -> bool:
        """Whether it ended by a reset."""
        while True:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return True
            if not data:
                return False
            self.data += data
            self.protocol.receive_data(data)

    @property
    def bytes_of_a_frame(self) -> int:
        """What has come of a frame that is not complete."""
        rest = self.data.partition(b"\r\n\r\n")[2]
        while len(rest) >= 2:
            size, head = rest[1] & 127, 2
            if size >= 126:
                head = 4 if size == 126 else 10
                if len(rest) < head:
                    break
                size = int.from_bytes(rest[2:head], "big")
            if len(rest) < head + size:
                break
            rest = rest[head + size :]
        return len(rest)


@contextmanager
def raw_client_of(server: LocalRealtimeServer) -> Iterator[Raw]:
    raw = Raw(server)
    with raw.socket:
        raw.hear_until(b"session.created")
        yield raw
