"""What a chat keeps is for its user alone, and who keeps it in a file that others can read is told."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiesce.cli.base.file_mode import is_shared, may_all

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
    assert "other users on this machine" not in here.run("chat", "--list", "--store", str(file)).err


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "expected"),
    [
        (0o644, 0o755, True),
        (0o604, 0o701, True),
        (0o640, 0o710, True),
        (0o640, 0o750, True),
        (0o600, 0o777, False),
        (0o644, 0o700, False),
        (0o640, 0o701, False),  # the group may read it, but not reach it
        (0o604, 0o710, False),  # all others may read it, but only the group reaches it
        (0o666, 0o766, False),  # a folder that can be listed only
    ],
)
def test_a_file_is_shared_if_the_same_users_may_reach_and_read_it(
    folder: Path, file_mode: int, folder_mode: int, expected: bool
) -> None:
    file = folder / "chat.db"
    file.touch()
    file.chmod(file_mode)
    folder.chmod(folder_mode)
    assert is_shared(file) is expected


@pytest.mark.parametrize(
    ("folder_mode", "expected"),
    [
        (0o701, True),  # for the folder, members of the file's group are all others
        (0o710, True),  # a user may be in both groups
        (0o700, False),
    ],
)
def test_the_folder_of_a_shared_file_may_be_of_another_group(folder_mode: int, expected: bool) -> None:
    assert may_all([(0o640, 7, 0o4), (folder_mode, 8, 0o1)]) is expected


def test_what_is_no_store_is_left_as_it_is(here: Here, folder: Path) -> None:
    notes = folder / "notes.txt"
    notes.write_text("not a store, whatever it was named for\n")
    notes.chmod(0o644)
    for file in (notes, Path(os.devnull)):
        assert "chmod" not in here.run("chat", "--list", "--store", str(file)).err
