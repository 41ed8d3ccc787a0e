"""Settings, mostly dicts of plain values: of the model's session, of its connection, and of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

if TYPE_CHECKING:
    from quiesce import Grace
    from quiesce.agents import FunctionTool, OutputGuardrail

    from .agent import RealtimeHandoff
    from .audio_format import RealtimeAudioFormat
    from .playback import RealtimePlaybackTracker

RealtimeVoice: TypeAlias = "str | Mapping[str, Any]"


class RealtimeInputAudioTranscriptionConfig(TypedDict, total=False):
    """How the user's speech is transcribed."""

    language: str
    languages: list[str]
    model: str
    prompt: str
    keywords: list[str]
    delay: Literal["minimal", "low", "medium", "high", "xhigh"]


class RealtimeInputAudioNoiseReductionConfig(TypedDict, total=False):
    """How noise is reduced."""

    type: Literal["near_field", "far_field"]


class RealtimeTurnDetectionConfig(TypedDict, total=False):
    """How the server notices that the user starts or stops speaking.

    Without a `type` it is `"semantic_vad"`, unless there is a setting that only `"server_vad"` has.
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
    """The audio in both directions."""

    input: RealtimeAudioInputConfig
    output: RealtimeAudioOutputConfig


class RealtimeSessionModelSettings(TypedDict, total=False):
    """The settings of the model's session.

    The flat names (`voice`, `turn_detection`, ...) and those under `audio` mean the same; `audio` wins.
    """

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

    - `api_key`: a str, or a function (async or sync) that returns one; by default `OPENAI_API_KEY` of the
      environment.
    - `url`: another server with the same protocol. `call_id`: join an existing call.
    - `headers`: used instead of those with the key.
    - `initial_model_settings`: the settings of the model's session.
    - `limits`: by default those of the session.
    - `playback_tracker`: your own record of what was played. Without one, the session assumes that audio is
      played from the moment when you take it, one piece after the other.
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
    """All limits of a session.

    - `events`: how many events may wait to be read. `bytes`: how many bytes of audio and raw messages may be
      among them. Beyond that, nothing more is read from the model. Messages that were read before and are not
      events yet may have as many bytes again.
    - `unsent`: bytes that wait for a server that does not read. If there are more, sending waits. If a server
      makes us answer (to pings, say) that much on top, the connection is closed.
    - `frame`: bytes of one message of the server.
    - `ping`: seconds between two pings, and for the answer to one.
    - `connect`: seconds to connect.
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
    """Raise ValueError for a field that is not a positive number; only `seconds` may be fractions."""
    for field in fields(given):
        value = getattr(given, field.name)
        whole = field.name not in seconds
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value > 0:
            kind = "a whole number of at least 1" if whole else "a number of seconds over 0"
            raise ValueError(f"{type(given).__name__}.{field.name} must be {kind}, not {value!r}")


@dataclass(frozen=True, slots=True)
class RealtimeReconnect:
    """Makes a session restore a lost connection, with the conversation so far.

    Use it as `config={"reconnect": RealtimeReconnect()}`.

    - `tries`: how often to try. `within`: how many seconds may pass without a connection. When either is used
      up, the session ends with an error. A connection that lasted for `within` seconds restores both in full;
      one that is lost earlier continues with the rest.
    - `held`: how many messages of the user may wait meanwhile; one more is an error.
    """

    tries: int = 5
    within: float = 30.0
    held: int = 16

    def __post_init__(self) -> None:
        _check_numbers(self, seconds=("within",))


class RealtimeGuardrailsSettings(TypedDict, total=False):
    """`debounce_text_length`: guardrails check a text again after so many characters; 100 by default."""

    debounce_text_length: int


class RealtimeRunConfig(TypedDict, total=False):
    """Settings for a whole session.

    - `model_settings`: for all its agents.
    - `output_guardrails`: in addition to those of the agents. `guardrails_settings`: how often they check.
    - `async_tool_calls`: whether the conversation goes on while tools run (the default), or waits for them.
    - `reconnect`: what to do when the connection is lost (`RealtimeReconnect`); by default the session ends.
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
    """Text from the user."""

    type: Literal["input_text"]
    text: str


class RealtimeUserInputImage(TypedDict):
    """An image: a URL, or `data:image/...`."""

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
    """Raise `UserError` for an unknown or wrong setting."""
    from difflib import get_close_matches

    from quiesce.agents import UserError

    from .agent import check_guardrails

    if not isinstance(given, Mapping):
        raise UserError(f"the run config must be a dict, not {type(given).__name__}")
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
                + (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(kinds)}")
            )
        if kinds[key] and not isinstance(value, kinds[key]):
            raise UserError(
                f"{key!r} of the run config must be a {kinds[key][0].__name__}, not {type(value).__name__}"
            )
    length: object = given.get("guardrails_settings", {}).get("debounce_text_length", 100)
    if isinstance(length, bool) or not isinstance(length, int):
        raise UserError(f"debounce_text_length must be a number of characters, not {length!r}")
    check_guardrails("the run config", given.get("output_guardrails", ()))
