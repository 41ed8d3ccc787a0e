"""Findings have the right names: one cause is one finding, called what it is, made where it was made."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
import uuid

import anyio
import pytest

from quiesce.audit import audit
from quiesce.audit._names import noted_temporary_names, steady, steady_object

pytestmark = pytest.mark.time_limit(60)

in_both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


# One cause is one finding


@in_both
def test_a_temporary_file_left_open_is_one_finding(backend: str) -> None:
    left: list[int] = []

    async def scenario() -> None:
        descriptor, name = tempfile.mkstemp(prefix="job-")
        os.unlink(name)
        left.append(descriptor)
        for _ in range(4):
            await anyio.sleep(1)
        left.remove(descriptor)
        os.close(descriptor)

    try:
        findings = audit(scenario, backend=backend).findings
    finally:
        for descriptor in left:
            os.close(descriptor)
    folder = tempfile.gettempdir()
    assert [f"{f.kind} {f.what}" for f in findings] == [f"descriptor {folder}/job-* (deleted)"]
    assert findings[0].runs > 4
    assert "job-*" not in findings[0].example.detail


@in_both
def test_a_file_in_a_temporary_folder_is_one_finding(backend: str) -> None:
    async def scenario() -> None:
        with tempfile.TemporaryDirectory(prefix="run") as folder:
            log = open(os.path.join(folder, "messages.log"), "w")  # noqa: ASYNC230, SIM115
            await anyio.sleep(1)
            await anyio.sleep(1)
            log.close()

    (finding,) = audit(scenario, backend=backend).findings
    folder = tempfile.gettempdir()
    assert finding.what == f"unclosed file <{folder}/run*/messages.log>"


def test_files_that_are_not_temporary_are_told_apart() -> None:
    async def scenario() -> None:
        for name in (os.devnull, "/dev/zero"):
            file = open(name)  # noqa: ASYNC230, SIM115
            await asyncio.sleep(1)
            file.close()

    assert len(audit(scenario, stops="cancel").findings) == 2


def test_a_stream_writer_is_one_finding_whatever_its_buffers_hold() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            for size in (0, 10, 100):
                theirs.send(b"x" * size)
                await asyncio.sleep(1)
                assert size == 0 or await reader.read(5)
            writer.close()

    unclosed = [f for f in audit(scenario, real_io=True, stops="cancel").findings if f.kind == "unclosed"]
    assert [finding.what for finding in unclosed] == ["unclosed <StreamWriter>"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("socket:[12345]", "socket:[N]"),
        (f"/run/{uuid.uuid4()}.sock", "/run/N.sock"),
        (f"worker_{secrets.token_hex(8)}", "worker_N"),
        ("decode", "decode"),
        ("/tmp/tmpab1_fgh8/out", "/tmp/tmp*/out"),
        ("/tmp/tmpfiles", "/tmp/tmpfiles"),
    ],
)
def test_a_name_has_no_part_that_differs_from_run_to_run(text: str, name: str) -> None:
    assert steady(text) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("unclosed <socket.socket fd=6, family=2, raddr=('::1', 80)>", "unclosed <socket.socket>"),
        ("unclosed transport <A a=<B b=1>>", "unclosed transport <A>"),
        ("unclosed file <_io.FileIO name='/dev/null' mode='rb'>", "unclosed file </dev/null>"),
        ("unclosed file <_io.FileIO name=7 mode='rb'>", "unclosed file <N>"),
        ("TypeError: '<' not supported, nor '>'", "TypeError: '<' not supported, nor '>'"),
        ("cut off <Stream buf", "cut off <Stream buf"),
    ],
)
def test_an_object_is_named_by_its_type(text: str, name: str) -> None:
    assert steady_object(text) == name


def test_temporary_names_are_as_before_when_nobody_notes_them_any_more() -> None:
    with noted_temporary_names():
        noted = tempfile.mktemp(prefix="x")
    assert steady(noted).endswith("/x*")
    assert type(tempfile._get_candidate_names()).__module__ == "tempfile"  # type: ignore[attr-defined]
