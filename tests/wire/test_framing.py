"""Lines: where one message ends and the next begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.wire.base.framing import Lines


def read(pieces: list[bytes], limit: int = 100) -> list[bytes | None]:
    lines = Lines(limit)
    found = [line for piece in pieces for line in lines.feed(piece)]
    return found + lines.finish()


def plainly(data: bytes, limit: int) -> list[bytes | None]:
    """The same, by the definition."""
    *lines, rest = data.split(b"\n")
    found: list[bytes | None] = [line if len(line) <= limit else None for line in lines]
    return found + ([rest if len(rest) <= limit else None] if rest else [])


def test_a_line_is_known_when_its_end_is() -> None:
    lines = Lines(100)
    assert lines.feed(b"one") == []
    assert lines.feed(b"\n") == [b"one"]
    assert lines.feed(b"two\nthree\nfo") == [b"two", b"three"]
    assert lines.feed(b"ur\n") == [b"four"]
    assert lines.finish() == []


def test_the_last_line_needs_no_end() -> None:
    assert read([b"one\ntwo"]) == [b"one", b"two"]
    assert read([b"one\n"]) == [b"one"]
    assert read([]) == []


def test_what_is_split_at_any_byte_is_the_same() -> None:
    text = b'{"a":1}\r\n\n{"b":"\xc3\xa9"}\n{"c":[1,\t2]}'
    for cut in range(len(text) + 1):
        assert read([text[:cut], text[cut:]]) == read([text])
    assert read([text[at : at + 1] for at in range(len(text))]) == read([text])


@pytest.mark.parametrize("size", [0, 1, 9, 10])
def test_a_line_of_the_limit_is_taken(size: int) -> None:
    assert read([b"x" * size + b"\nnext\n"], 10) == [b"x" * size, b"next"]


@pytest.mark.parametrize("size", [11, 12, 1000])
@pytest.mark.parametrize("step", [1, 7, 5000])
def test_a_longer_one_is_told_once_and_skipped(size: int, step: int) -> None:
    data = b"before\n" + b"x" * size + b"\nafter\n"
    assert read([data[at : at + step] for at in range(0, len(data), step)], 10) == [b"before", None, b"after"]


def test_a_longer_one_without_an_end_is_told_once() -> None:
    lines = Lines(10)
    told = [line for _ in range(1000) for line in lines.feed(b"x" * 7)]
    assert told == [None]
    assert lines.finish() == []
    assert not lines._pieces


def test_frames_are_packed_as_lines() -> None:
    assert Lines(10).pack([b"one"]) == b"one\n"
    assert Lines(10).pack([b"one", b"two", b"three"]) == b"one\ntwo\nthree\n"
    assert Lines(10).replies() == Lines(10).farewell() == b""
    assert not Lines(10).ended


@given(
    pieces=st.lists(
        st.binary(max_size=8) | st.sampled_from([b"\n", b"\n\n", b"x" * 6, b"x\ny\nz"]), max_size=12
    ),
    limit=st.integers(1, 12),
)
def test_lines_are_as_defined_however_they_are_split(pieces: list[bytes], limit: int) -> None:
    assert read(pieces, limit) == plainly(b"".join(pieces), limit)


@given(frames=st.lists(st.binary(min_size=1, max_size=8).filter(lambda it: b"\n" not in it), min_size=1))
def test_what_is_packed_is_read_again(frames: list[bytes]) -> None:
    assert read([Lines(10).pack(list(frames))]) == frames
