"""Generated audio: tones, silence, and loudness, in each audio format."""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left
from functools import lru_cache

from quiesce.realtime.words import wire_format

_LOUD = 8000  # of 32767


@lru_cache(maxsize=64)
def tone(milliseconds: float, kind: str = "audio/pcm", hertz: float = 440.0) -> bytes:
    """Return a tone of this length."""
    rate = _rate(kind)
    samples = [
        round(_LOUD * math.sin(2 * math.pi * hertz * n / rate))
        for n in range(int(rate * milliseconds / 1000))
    ]
    return _encoded(samples, kind)


@lru_cache(maxsize=64)
def silence(milliseconds: float, kind: str = "audio/pcm") -> bytes:
    """Return silence of this length."""
    return _encoded([0] * int(_rate(kind) * milliseconds / 1000), kind)


def loudness(audio: bytes, kind: str = "audio/pcm") -> float:
    """Return the root mean square of some audio, from 0 to 1."""
    if kind == "audio/pcm":
        samples = array("h", audio[: len(audio) // 2 * 2])
        if sys.byteorder == "big":
            samples.byteswap()
    else:
        table = _table(kind)
        samples = array("h", [table[byte] for byte in audio])
    if not samples:
        return 0.0
    return math.sqrt(sum(sample * sample for sample in samples) / len(samples)) / 32767


def _rate(kind: str) -> int:
    rate: int = wire_format(kind).get("rate", 8000)
    return rate


def _encoded(samples: list[int], kind: str) -> bytes:
    if kind == "audio/pcm":
        encoded = array("h", samples)
        if sys.byteorder == "big":
            encoded.byteswap()
        return encoded.tobytes()
    levels = sorted((level, byte) for byte, level in enumerate(_table(kind)))
    # The next higher level is good enough: no one hears the difference between two steps of G.711.
    return bytes(levels[min(bisect_left(levels, (sample, 0)), 255)][1] for sample in samples)


@lru_cache
def _table(kind: str) -> list[int]:
    """Return the level of each byte of G.711."""
    return [_mu_law(byte) if kind == "audio/pcmu" else _a_law(byte) for byte in range(256)]


def _mu_law(byte: int) -> int:
    byte ^= 0xFF
    level = ((((byte & 0x0F) << 3) + 0x84) << (byte >> 4 & 7)) - 0x84
    return -level if byte & 0x80 else level


def _a_law(byte: int) -> int:
    byte ^= 0x55
    level, segment = (byte & 0x0F) << 4, byte >> 4 & 7
    level = level + 8 if segment == 0 else (level + 0x108) << (segment - 1)
    return level if byte & 0x80 else -level
