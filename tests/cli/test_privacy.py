"""What a chat keeps is for its user alone, and who keeps it in a file that others can read is told."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .chat_parts import write_script
from .chat_programs import Here


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody may look into: pytest's own are for this user alone, and so may be the one of TMPDIR."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_new_store_is_for_its_user_alone(here: Here, tmp_path: Path, folder: Path) -> None:
    script = write_script(tmp_path / "s.json", "Hello.")
    before = os.umask(0o022)
    try:
        done = here.run("ask", "--script", script, "--store", str(folder / "chat.db"), "hi")
    finally:
        os.umask(before)
    assert (done.code, done.err) == (0, "")
    assert stat.S_IMODE((folder / "chat.db").stat().st_mode) == 0o600


def test_of_a_store_that_others_can_read_one_is_told(here: Here, folder: Path) -> None:
    file = folder / "chat.db"
    file.touch()
    file.chmod(0o644)
    said, name = here.run("chat", "--list", "--store", str(file)).err, shlex.quote(str(file))
    assert (
        f"other users on this machine can read {name}, where conversations are stored; to prevent that: chmod 600 {name}"
        in said
    )
    folder.chmod(0o700)  # nobody else gets as far as the file
    assert "others on this machine" not in here.run("chat", "--list", "--store", str(file)).err


def test_what_is_no_store_is_left_as_it_is(here: Here, folder: Path) -> None:
    notes = folder / "notes.txt"
    notes.write_text("not a store, whatever it was named for\n")
    notes.chmod(0o644)
    for file in (notes, Path(os.devnull)):
        assert "chmod" not in here.run("chat", "--list", "--store", str(file)).err
