"""The example that is a program of its own: a realtime session.

It must work without a terminal and without input, say what happened, and leave nothing.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import uuid
import wave
from pathlib import Path

import pytest

from tests.test_docs import wait_until_gone

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parent.parent

# A session from a WAV file


def talk(*arguments: str) -> str:
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "realtime_wav.py", *arguments],
        env={**os.environ, "QUIESCE_TEST_MARK": mark},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    left = wait_until_gone(mark)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert not left, f"the example left processes behind: {left}"
    return done.stdout


@pytest.mark.time_limit(60)
@pytest.mark.slow
def test_a_session_fed_from_a_wav_file_prints_its_timeline_and_its_transcript() -> None:
    timeline, transcript = talk().split("\nTranscript:\n")
    told = [line.split(" s  ", 1)[1] for line in timeline.splitlines() if re.match(r" *\d+\.\d\d s  ", line)]
    assert told[0] == "session is connected"
    assert told[-1] == "session is closed"
    assert told.count("user    begins to speak") == 2
    assert [line for line in told if line.startswith("tool")] == [
        'tool    departures({"city":"Lyon"})',
        "tool    -> Lyon: 14:02 from platform 7, 14:32 from platform 3",
    ]
    interrupted = next(n for n, line in enumerate(told) if line.startswith("agent   is interrupted"))
    assert told[:interrupted].count("agent   begins to speak") == 1
    assert any(line.startswith("server  forgets what was not heard") for line in told[interrupted:])
    assert re.search(r"assistant: .+ \.\.\.\n", transcript), "it was cut where it was not heard"
    assert "room for bicycles" not in transcript
    assert "user: Which platform?\n  assistant: From platform seven.\n" in transcript
    assert transcript.rstrip().endswith("nothing left")


@pytest.mark.time_limit(60)
@pytest.mark.parametrize(("width", "channels", "rate"), [(1, 1, 8000), (3, 2, 48000)])
@pytest.mark.slow
def test_a_wav_file_of_another_kind_is_converted(
    tmp_path: Path, width: int, channels: int, rate: int
) -> None:
    samples = bytearray()
    for n in range(int(rate * 1.5)):
        level = math.sin(2 * math.pi * 200 * n / rate) / 3 if 0.2 < n / rate < 0.8 else 0.0
        whole = round(level * (2 ** (8 * width - 1) - 1))
        one = bytes([whole + 128]) if width == 1 else whole.to_bytes(width, "little", signed=True)
        samples += one * channels
    path = tmp_path / "mine.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(bytes(samples))
    printed = talk(str(path), "--speed", "10")
    assert "mine.wav: 1.5 s" in printed
    assert printed.count("user    begins to speak") == 1
    assert "user: (the user's utterance 1)" in printed
