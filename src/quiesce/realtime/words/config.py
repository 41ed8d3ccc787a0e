"""Settings, as dictionaries of plain values: those of the model's session, of its connection, and of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

if TYPE_CHECKING:
    from quiesce import Grace
    from quiesce.agents import FunctionTool, OutputGuardrail

    from .handoff import RealtimeHandoff
    from .playback import RealtimePlaybackTracker

RealtimeAudioFormat: TypeAlias = "str | Mapping[str, Any]"
"""`"pcm16"` (24 kHz, two bytes a sample), `"g711_ulaw"` or `"g711_alaw"` (8 kHz, one byte), or as the wire has it: `{"type": "audio/pcm", "rate": 24000}`."""

RealtimeVoice: TypeAlias = "str | Mapping[str, Any]"


class RealtimeInputAudioTranscriptionConfig(TypedDict, total=False):
    """How what the user says is written down."""

    language: str
    languages: list[str]
    model: str
    prompt: str
    keywords: list[str]
    delay: Literal["minimal", "low", "medium", "high", "xhigh"]


class RealtimeInputAudioNoiseReductionConfig(TypedDict, total=False):
    """What is done about noise."""

    type: Literal["near_field", "far_field"]


class RealtimeTurnDetectionConfig(TypedDict, total=False):
    """How the server notices that the user has begun or ended to speak: without a `type`, by `"semantic_vad"`, unless there is something that only
    `"server_vad"` has.
    """

    type: Literal["semantic_vad", "server_vad"]
    create_response: bool
    eagerness: Literal["auto", "low", "medium", "high"]
    interrupt_response: bool
    prefix_padding_ms: int
    silence_duration_ms: int
    threshold: float
    idle_timeout_ms: int
    model_version: str


class RealtimeAudioInputConfig(TypedDict, total=False):
    """The user's audio."""

    format: RealtimeAudioFormat
    noise_reduction: RealtimeInputAudioNoiseReductionConfig | None
    transcription: RealtimeInputAudioTranscriptionConfig
    turn_detection: RealtimeTurnDetectionConfig | None


class RealtimeAudioOutputConfig(TypedDict, total=False):
    """The model's audio."""

    format: RealtimeAudioFormat
    voice: RealtimeVoice
    speed: float


class RealtimeAudioConfig(TypedDict, total=False):
    """Both ways."""

    input: RealtimeAudioInputConfig
    output: RealtimeAudioOutputConfig


class RealtimeSessionModelSettings(TypedDict, total=False):
    """What the model's session is like. The flat names (`voice`, `turn_detection`, ...) and those under `audio` mean the same; `audio` wins."""

    model_name: str
    instructions: str
    prompt: Mapping[str, Any]
    modalities: list[Literal["text", "audio"]]
    output_modalities: list[Literal["text", "audio"]]
    audio: RealtimeAudioConfig
    voice: RealtimeVoice
    speed: float
    max_output_tokens: int | Literal["inf"]
    input_audio_format: RealtimeAudioFormat
    output_audio_format: RealtimeAudioFormat
    input_audio_transcription: RealtimeInputAudioTranscriptionConfig
    input_audio_noise_reduction: RealtimeInputAudioNoiseReductionConfig | None
    turn_detection: RealtimeTurnDetectionConfig | None
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    reasoning: Mapping[str, Any]
    tools: Sequence[FunctionTool]
    handoffs: Sequence[RealtimeHandoff]
    tracing: Mapping[str, Any] | Literal["auto"] | None


class RealtimeModelConfig(TypedDict, total=False):
    """How to connect.

    - `api_key`: a str, or a function (async or not) that gives one; else `OPENAI_API_KEY` of the environment.
    - `url`: another server that speaks the same wire. `call_id`: join a call that is on.
    - `headers`: in place of those that carry the key.
    - `initial_model_settings`: of the session.
    - `limits`: those of the session, unless given.
    - `playback_tracker`: your own account of what was played; without one, the session assumes that audio is played from the moment when
      you take it, one piece after the other.
    """

    api_key: str | Callable[[], Awaitable[str] | str]
    url: str
    headers: Mapping[str, str]
    initial_model_settings: RealtimeSessionModelSettings
    playback_tracker: RealtimePlaybackTracker
    call_id: str
    limits: RealtimeLimits


@dataclass(frozen=True, slots=True)
class RealtimeLimits:
    """Every bound of a session, in one place.

    - `events`: how many events wait for whoever reads them, and `bytes`: how much audio, and how many bytes of raw messages, are among them.
      When there are more, nothing more is read from the model. Messages that were read by then, and wait to become events, are no more bytes than that again.
    - `unsent`: bytes that wait for a server that does not read. Whoever sends more waits. A server that makes us answer (to pings, say) that much on top is given up.
    - `frame`: bytes of one message of the server.
    - `ping`: seconds between two looks whether the other side is there, and how long it may take to answer.
    - `connect`: seconds in which it must be connected.
    """

    events: int = 4096
    bytes: int = 32 * 1024 * 1024
    unsent: int = 1024 * 1024
    frame: int = 32 * 1024 * 1024
    ping: float = 20.0
    connect: float = 30.0

    def __post_init__(self) -> None:
        _check_numbers(self, seconds=("ping", "connect"))


def _check_numbers(given: RealtimeLimits | RealtimeReconnect, seconds: tuple[str, ...]) -> None:
    """An error that names the first field that is not a number over 0: of seconds, or of things."""
    for field in fields(given):
        value = getattr(given, field.name)
        whole = field.name not in seconds
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value > 0:
            kind = "a whole number of at least 1" if whole else "a number of seconds over 0"
            raise ValueError(f"{type(given).__name__}.{field.name} must be {kind}, not {value!r}")


@dataclass(frozen=True, slots=True)
class RealtimeReconnect:
    """A session whose connection is lost tries to get it back, with the conversation so far: `config={"reconnect": RealtimeReconnect()}`.

    - `tries`: how often it connects again, and `within`: for how many seconds there may be no connection. When either is over, the session ends with an error.
      A connection that has lasted for `within` seconds begins with all of them again; one that is lost earlier goes on with what is left.
    - `held`: how many messages of the user wait meanwhile; one more is an error.
    """

    tries: int = 5
    within: float = 30.0
    held: int = 16

    def __post_init__(self) -> None:
        _check_numbers(self, seconds=("within",))


class RealtimeGuardrailsSettings(TypedDict, total=False):
    """`debounce_text_length`: how much more text there must be, in characters, before the guardrails look at it again; 100 unless given."""

    debounce_text_length: int


class RealtimeRunConfig(TypedDict, total=False):
    """What holds for a whole session.

    - `model_settings`: for every agent in it.
    - `output_guardrails`: beside the agents' own. `guardrails_settings`: how often they look.
    - `async_tool_calls`: whether tools run beside the conversation (True), or hold up what the model says next.
    - `reconnect`: what to do when the connection is lost; without it, the session ends. See `RealtimeReconnect`.
    - `limits`, `grace`: see `RealtimeLimits` and `quiesce.Grace`.
    """

    model_settings: RealtimeSessionModelSettings
    output_guardrails: Sequence[OutputGuardrail]
    guardrails_settings: RealtimeGuardrailsSettings
    async_tool_calls: bool
    reconnect: RealtimeReconnect
    limits: RealtimeLimits
    grace: Grace
    tracing_disabled: bool


class RealtimeUserInputText(TypedDict):
    """Text of the user."""

    type: Literal["input_text"]
    text: str


class RealtimeUserInputImage(TypedDict):
    """A picture: a URL, or `data:image/...`."""

    type: Literal["input_image"]
    image_url: str
    detail: NotRequired[Literal["auto", "low", "high"]]


class RealtimeUserInputMessage(TypedDict):
    """Several of those in one message."""

    type: Literal["message"]
    role: Literal["user"]
    content: list[RealtimeUserInputText | RealtimeUserInputImage]


RealtimeUserInput: TypeAlias = str | RealtimeUserInputMessage


def check_run_config(given: RealtimeRunConfig) -> None:
    """An error that explains, where something in it is not what it should be."""
    from difflib import get_close_matches

    from quiesce.agents import UserError

    if not isinstance(given, Mapping):
        raise UserError(f"the run config is a dict, not {type(given).__name__}")
    kinds: dict[str, tuple[type, ...]] = {
        "model_settings": (Mapping,),
        "output_guardrails": (Sequence,),
        "guardrails_settings": (Mapping,),
        "async_tool_calls": (bool,),
        "reconnect": (RealtimeReconnect,),
        "limits": (RealtimeLimits,),
        "grace": (),
        "tracing_disabled": (bool,),
    }
    for key, value in given.items():
        if key not in kinds:
            near = get_close_matches(key, kinds, 1)
            raise UserError(
                f"the run config has no {key!r}: "
                + (f"do you mean {near[0]!r}?" if near else f"there are {', '.join(kinds)}")
            )
        if kinds[key] and not isinstance(value, kinds[key]):
            raise UserError(
                f"{key!r} of the run config is a {kinds[key][0].__name__}, not {type(value).__name__}"
            )
    length: object = given.get("guardrails_settings", {}).get("debounce_text_length", 100)
    if isinstance(length, bool) or not isinstance(length, int):
        raise UserError(f"debounce_text_length is a number of characters, not {length!r}")
    check_guardrails("the run config", given.get("output_guardrails", ()))


def check_guardrails(owner: str, given: object) -> None:
    """Each is an `OutputGuardrail`, or an error says so."""
    from quiesce.agents import OutputGuardrail, UserError

    for each in given if isinstance(given, Sequence) else [given]:
        if not isinstance(each, OutputGuardrail):
            raise UserError(
                f"the output_guardrails of {owner} are functions decorated with @output_guardrail, in a list; "
                f"{each!r} is none"
            )
