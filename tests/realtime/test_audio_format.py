"""Names of audio formats, and how long audio lasts in them."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import pytest
from openai.types.realtime.realtime_audio_formats import AudioPCM, AudioPCMA, AudioPCMU

from quiesce.realtime.words.audio_format import bytes_per_millisecond, wire_format

PCM = {"type": "audio/pcm", "rate": 24000}


@pytest.mark.parametrize(
    ("given", "wire", "rate"),
    [
        ("pcm16", PCM, 48),
        ("PCM16", PCM, 48),
        ("audio/pcm", PCM, 48),
        (PCM, PCM, 48),
        ({"type": "audio/pcm"}, PCM, 48),
        ({"type": "pcm16"}, PCM, 48),
        (MappingProxyType(PCM), PCM, 48),
        ({"type": "audio/pcm", "rate": 16000}, {"type": "audio/pcm", "rate": 16000}, 32),
        ("g711_ulaw", {"type": "audio/pcmu"}, 8),
        ({"type": "g711_ulaw"}, {"type": "audio/pcmu"}, 8),
        ("pcmu", {"type": "audio/pcmu"}, 8),
        ("g711_alaw", {"type": "audio/pcma"}, 8),
        ("audio/pcma", {"type": "audio/pcma"}, 8),
        (AudioPCM(type="audio/pcm", rate=24000), PCM, 48),
        (AudioPCMU(type="audio/pcmu"), {"type": "audio/pcmu"}, 8),
        (AudioPCMA(type="audio/pcma"), {"type": "audio/pcma"}, 8),
    ],
    ids=[str(place) for place in range(16)],
)
def test_a_format_may_be_given_in_any_way_that_is_usual(
    given: Any, wire: dict[str, Any], rate: float
) -> None:
    assert wire_format(given) == wire
    assert bytes_per_millisecond(given) == rate


def test_what_the_wire_gets_is_a_copy() -> None:
    wire_format("pcm16")["rate"] = 1
    assert wire_format("pcm16") == PCM


@pytest.mark.parametrize("given", ["mp3", "", 7, None, {}, {"type": 7}, {"rate": 24000}, object()])
def test_what_is_no_format_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="is not an audio format"):
        wire_format(given)


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, "24000", True, [1]])
def test_a_rate_is_a_number_over_nothing(rate: Any) -> None:
    with pytest.raises(ValueError, match="its rate must be a number from 1 to"):
        bytes_per_millisecond({"type": "audio/pcm", "rate": rate})
