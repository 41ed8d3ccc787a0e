"""A realtime session that is fed from a WAV file, with a server on this machine: no key, no network, no microphone.

    python examples/realtime_wav.py                     # makes a recording of its own: two questions, as tones
    python examples/realtime_wav.py recording.wav       # any PCM file: 8 to 32 bits, any rate, any number of channels

The server (`quiesce.realtime.testing.LocalRealtimeServer`) speaks OpenAI's Realtime wire over a real
WebSocket and hears when somebody speaks. It understands nothing: what it answers is in a script. To talk to
the real one, leave out `url`, and set OPENAI_API_KEY.

Printed are a timeline, the transcript, and the report of how the session has ended. The second question comes
while the agent still speaks: that is interrupted, and cut in the conversation to what was heard of it.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
import time
import wave
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quiesce import Scope
from quiesce.agents import function_tool
from quiesce.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession
from quiesce.realtime.testing import LocalRealtimeServer, Speech
from quiesce.testing import call

RATE = 24_000  # what the wire wants: mono, 16 bits, little-endian
FRAME = 0.04  # seconds of audio that are sent at once
QUIET_AFTER = 0.4  # seconds without an event, after which the conversation counts as over


# Audio


def make_recording(path: Path) -> None:
    """Two questions with a pause between, in stereo and at 44.1 kHz, so that there is something to convert."""
    rate = 44_100
    plan = [(0.2, 0.0), (0.8, 220.0), (1.1, 0.0), (0.6, 330.0), (0.8, 0.0)]  # seconds, hertz
    samples = array("h")
    for seconds, hertz in plan:
        for n in range(int(seconds * rate)):
            voice = math.sin(2 * math.pi * hertz * n / rate) * (1 + math.sin(2 * math.pi * 4 * n / rate)) / 2
            samples.extend([round(9000 * voice), round(6000 * voice)])
    if sys.byteorder == "big":
        samples.byteswap()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())


def read_recording(path: Path) -> bytes:
    """The file as 24 kHz, mono, 16 bits."""
    with wave.open(str(path), "rb") as file:
        channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
        raw = file.readframes(file.getnframes())
    return to_bytes(resampled(mixed(decoded(raw, width), channels), rate))


def decoded(raw: bytes, width: int) -> list[int]:
    """Samples of 16 bits, whatever the file has."""
    if width == 1:  # these have no sign
        return [(byte - 128) << 8 for byte in raw]
    raw = raw[: len(raw) // width * width]
    # The two highest bytes of each sample are all that is wanted.
    return [
        int.from_bytes(raw[at + width - 2 : at + width], "little", signed=True)
        for at in range(0, len(raw), width)
    ]


def mixed(samples: list[int], channels: int) -> list[int]:
    """All channels in one."""
    if channels == 1:
        return samples
    return [
        sum(samples[at : at + channels]) // channels for at in range(0, len(samples) - channels + 1, channels)
    ]


def resampled(samples: list[int], rate: int) -> list[int]:
    """At 24 kHz, by straight lines between the samples: enough for speech."""
    if rate == RATE or not samples:
        return samples
    count = len(samples) * RATE // rate
    last = len(samples) - 1
    result = []
    for n in range(count):
        place, rest = divmod(n * rate, RATE)
        here, after = samples[min(place, last)], samples[min(place + 1, last)]
        result.append(here + (after - here) * rest // RATE)
    return result


def to_bytes(samples: list[int]) -> bytes:
    encoded = array("h", samples)
    if sys.byteorder == "big":
        encoded.byteswap()
    return encoded.tobytes()


def frames_of(audio: bytes) -> Iterator[bytes]:
    size = int(RATE * FRAME) * 2
    return (audio[at : at + size] for at in range(0, len(audio), size))


# The agent


@function_tool
async def departures(city: str) -> str:
    """The next trains to a city."""
    return f"{city}: 14:02 from platform 7, 14:32 from platform 3"


AGENT = RealtimeAgent(name="station", instructions="You answer travellers. Be brief.", tools=[departures])
SCRIPT: list[Any] = [
    call("departures", city="Lyon"),
    Speech(
        "The next train to Lyon leaves at two minutes past two, and the one after that half an hour later, which is slower and "
        "stops in Dijon, but has a restaurant car, a quiet one, and room for bicycles.",
        pace=0.1,
    ),
    "From platform seven.",
    *["I am only a script, and that was all of it."] * 50,
]
QUESTIONS = ["When does the next train to Lyon leave?", "Which platform?"]


# The session


class Timeline:
    """Prints what happens, and when."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._heard = 0  # bytes of the agent's audio

    async def until_quiet(self) -> None:
        """Until nothing has happened for a while."""
        while (rest := self._last + QUIET_AFTER - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(rest)

    def note(self, who: str, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.2f} s  {who:<8}{what}")

    def show(self, event: Any) -> None:
        self._last = time.monotonic()
        if event.type == "raw_model_event":
            self._show_raw(event.data)
        elif event.type == "audio":
            if not self._heard:
                self.note("agent", "begins to speak")
            self._heard += len(event.audio.data)
        elif event.type == "audio_end" and self._heard:
            self.note("agent", f"has said all of it: {self._heard / RATE / 2:.1f} s of audio")
            self._heard = 0
        elif event.type == "audio_interrupted":
            self.note(
                "agent", f"is interrupted: of {self._heard / RATE / 2:.1f} s of audio the rest is not played"
            )
            self._heard = 0
        elif event.type == "tool_start":
            self.note("tool", f"{event.tool.name}({event.arguments})")
        elif event.type == "tool_end":
            self.note("tool", f"-> {event.output}")
        elif event.type == "error":
            self.note("error", str(event.error))

    def _show_raw(self, event: Any) -> None:
        if event.type == "input_audio_transcription_completed":
            self.note("user", f"has said: {event.transcript}")
        elif event.type == "raw_server_event":
            kind = event.data.get("type")
            if kind == "input_audio_buffer.speech_started":
                self.note("user", "begins to speak")
            elif kind == "conversation.item.truncated":
                self.note("server", f"forgets what was not heard, after {event.data['audio_end_ms']} ms")


async def speak(session: RealtimeSession, audio: bytes, speed: float) -> None:
    """Send the recording as a microphone would, `speed` times as fast."""
    for frame in frames_of(audio):
        await session.send_audio(frame)
        await asyncio.sleep(FRAME / speed)


async def listen(session: RealtimeSession, timeline: Timeline) -> None:
    async for event in session:
        timeline.show(event)


def transcript(session: RealtimeSession) -> Iterator[str]:
    for item in session.history:
        if item.type == "function_call":
            yield f"  {item.name}: {item.output}"
            continue
        said = " ".join(
            getattr(part, "transcript", None) or getattr(part, "text", None) or "(not known)"
            for part in item.content
        )
        yield f"  {item.role}: {said.strip()}" + (
            " ..." if getattr(item, "status", None) == "incomplete" else ""
        )


async def converse(path: Path, speed: float, transcripts: list[str]) -> None:
    audio = read_recording(path)
    print(f"{path.name}: {len(audio) / RATE / 2:.1f} s, sent at {speed:g} times its speed\n")
    with LocalRealtimeServer(SCRIPT, transcripts=transcripts) as server:
        runner = RealtimeRunner(
            AGENT,
            config={
                "model_settings": {
                    "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
                    "input_audio_transcription": {"model": "gpt-4o-mini-transcribe"},
                }
            },
        )
        timeline = Timeline()
        async with (
            Scope("conversation") as conversation,
            await runner.run(model_config={"url": server.url}) as session,
        ):
            timeline.note("session", "is connected")
            conversation.spawn(listen, session, timeline)  # ends with the session
            await speak(session, audio, speed)
            await timeline.until_quiet()
            report = await session.close()
            timeline.note("session", "is closed")
        print("\nTranscript:", *transcript(session), sep="\n")
        print(f"\n{report}")
        if server.complaints:
            sys.exit("\n".join(["the server complains:", *server.complaints]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Talk to a local realtime server from a WAV file.")
    parser.add_argument(
        "recording", nargs="?", type=Path, help="a PCM WAV file; one is made if none is given"
    )
    parser.add_argument(
        "--speed", type=float, default=3.0, help="how many times its own speed; 3 unless given"
    )
    options = parser.parse_args()
    if options.recording is not None:
        heard = [f"(the user's utterance {number})" for number in range(1, 51)]
        asyncio.run(converse(options.recording, options.speed, heard))
        return
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "two-questions.wav"
        make_recording(recording)
        asyncio.run(converse(recording, options.speed, QUESTIONS))


if __name__ == "__main__":
    main()
