"""The file tools of the chat: what they read, what they search, and what they say that a write will change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quiesce._safe.files import Folders, OutsideOfFolders
from quiesce._safe.text import exact
from quiesce_chat.tools import changes as changes_module
from quiesce_chat.tools import files
from quiesce_chat.tools.changes import change
from quiesce_chat.tools.programs import search_command
from quiesce_chat.tools.search import MATCHES, search
from quiesce_chat.tools.toolbox import preview_of

# Searching


def found(folder: Path, pattern: str, place: str = ".") -> list[str]:
    return list(search(str(folder), os.path.join(folder, place), pattern))


def test_a_search_names_file_line_and_text_and_skips_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("one\ntwo beans\n")
    (tmp_path / "a.txt").write_text("beans\n")
    (tmp_path / "c.bin").write_bytes(b"beans\0")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "d").write_text("beans\n")
    assert found(tmp_path, "b[e]ans") == ["a.txt:1: beans", f"{os.path.join('sub', 'b.txt')}:2: two beans"]
    assert found(tmp_path, "beans", "a.txt") == ["a.txt:1: beans"]
    assert found(tmp_path, "peas") == ["Nothing found."]
    (tmp_path / "many.txt").write_text("x\n" * 1000)
    assert found(tmp_path, "x", "many.txt")[-1] == f"[stopped at {MATCHES} matches]"


def test_a_search_follows_no_links_and_opens_nothing_that_would_block(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text("my key\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").symlink_to(tmp_path / "secret" / "key.txt")
    (folder / "below").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    assert found(folder, "key") == ["Nothing found."]


def test_what_is_no_regular_expression_is_said(tmp_path: Path) -> None:
    asked = {"folder": str(tmp_path), "place": str(tmp_path), "pattern": "(a"}
    done = subprocess.run(
        search_command(), input=json.dumps(asked).encode(), capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert b"'(a' is not a valid regular expression: missing )" in done.stdout


def test_a_search_counts_lines_as_reading_does(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("a\fb\u2028c\r\nd\re\nneedle\n".encode())
    assert found(tmp_path, "needle") == ["a.txt:4: needle"]
    assert files.read(Folders([tmp_path]), "a.txt", 4) == "     4  needle\n"


# Reading


def test_lines_are_read_with_their_numbers_from_any_line_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree")
    assert files.read(Folders([tmp_path]), "a.txt") == "     1  one\n     2  two\n     3  three\n"
    assert files.read(Folders([tmp_path]), "a.txt", 2, 1) == "     2  two\n[more from line 3 on]"
    assert files.read(Folders([tmp_path]), "a.txt", 4) == "The file has fewer than 4 lines."
    (tmp_path / "a.txt").write_text("")
    assert files.read(Folders([tmp_path]), "a.txt") == "The file is empty."


def test_no_more_of_a_file_is_read_than_a_model_can_use(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_text(("x" * 1999 + "\n") * 2000)
    told = files.read(Folders([tmp_path]), "wide.txt")
    assert len(told) < files.MOST + 100
    lines = told.count("\n")
    assert told.endswith(f"[more from line {lines + 1} on]")
    assert files.read(Folders([tmp_path]), "wide.txt", lines + 1).startswith(f"{lines + 1:6}  xxx")


def test_a_line_without_an_end_is_not_held_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(300_000_000)  # one line of nothing; it takes no room on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nend\n")
    script = (
        "from pathlib import Path; from quiesce._safe.files import Folders; from quiesce_chat.tools import files as _files\n"
        f"told = _files.read(Folders([{str(tmp_path)!r}]), 'endless')\n"
        "assert told.endswith('[... the line goes on]\\n     2  end\\n'), told[-100:]\n"
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"  # a rusage counts its parent, too
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert int(done.stdout) < 250_000  # kilobytes


# What a write changes


def test_a_change_names_its_file_and_shows_what_goes_and_what_comes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    folders = Folders([tmp_path])
    assert change(folders, "a.txt", "one\ntwo\n3\nfour\nfive\nsix\n")[0].split("\n") == [
        "a.txt: changed",
        "@@ -1,5 +1,6 @@",
        " one",
        " two",
        "-three",
        "+3",
        " four",
        " five",
        "+six",
    ]
    (tmp_path / "link").symlink_to("a.txt")
    assert change(folders, "link", "")[0].startswith("a.txt (given as link): emptied\n")
    assert change(folders, "new.txt", "one\n")[0] == "new.txt: created, 1 line\n+one"
    with pytest.raises(OutsideOfFolders, match="is not in"):
        change(folders, "../else", "")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (None, "", "a.txt: created, empty"),
        (b"a\n", "a\n", "a.txt: rewritten without changes"),
        (
            b"a\nb\n",
            "a\r\nb\r\n",
            "a.txt: changed; line endings change from LF to CRLF\n@@ -1,2 +1,2 @@\n-a\n-b\n+a␍\n+b␍",
        ),
        (b"a\nb\n", "a\nb", "a.txt: changed\n@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ no newline at end of file"),
        (b"caf\xe9\n", "caf\ufffd\n", "a.txt: changed\n@@ -1,1 +1,1 @@\n-caf\\xe9\n+caf\ufffd"),
        (b"a\x0cb\n", "a\nb\n", "a.txt: changed\n@@ -1,1 +1,2 @@\n-a␌b\n+a\n+b"),
        (b"a\xe2\x80\xa8b\n", "a\nb\n", "a.txt: changed\n@@ -1,1 +1,2 @@\n-a\\u2028b\n+a\n+b"),
        (b"", "a\n", "a.txt: changed\n@@ -1,0 +1,1 @@\n+a"),
        (b"a    b\n", "a\tb\n", "a.txt: changed\n@@ -1,1 +1,1 @@\n-a    b\n+a\u2409b"),
        (b"a\n", "a  \n", "a.txt: changed\n@@ -1,1 +1,1 @@\n-a\n+a\u2420\u2420"),
    ],
)
def test_whatever_differs_in_a_byte_can_be_seen(
    tmp_path: Path, before: bytes | None, after: str, says: str
) -> None:
    if before is not None:
        (tmp_path / "a.txt").write_bytes(before)
    arguments = json.dumps({"path": "a.txt", "content": after})
    assert preview_of("write_file", arguments, tmp_path)[0] == says
    files.write(Folders([tmp_path]), "a.txt", after)
    assert (tmp_path / "a.txt").read_bytes() == after.encode()


def test_files_too_long_to_be_compared_are_shown_as_what_goes_and_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "COMPARED", 2)
    (tmp_path / "a.txt").write_text("same\na\nx\nb\nsame\n")
    told = change(Folders([tmp_path]), "a.txt", "same\nc\nx\nd\nsame\n")[0].split("\n")
    assert told == ["a.txt: changed", "@@ -2,3 +2,3 @@", "-a", "-x", "-b", "+c", "+x", "+d"]


def test_a_small_change_of_a_huge_file_is_a_small_difference(tmp_path: Path) -> None:
    lines = [f"line {number}\n" for number in range(100_000)]
    (tmp_path / "a.txt").write_text("".join(lines))
    lines[70_000] = "another\n"
    told = change(Folders([tmp_path]), "a.txt", "".join(lines))[0].split("\n")
    assert told[1:3] == ["@@ -69999,5 +69999,5 @@", " line 69998"]
    assert len(told) == 8


# What is approved


@pytest.mark.parametrize(
    "character",
    "\u00ad\u3164\u115f\u1160\u180e\u061c\u034f\u2800\ufe0f\U000e0041\u00a0\u2003\u3000\u202e\u2028\ue000\ufffe",
)
def test_what_cannot_be_seen_is_spelled_out_before_it_is_approved(tmp_path: Path, character: str) -> None:
    spelled = f"\\u{ord(character):04x}" if character <= "\uffff" else f"\\U{ord(character):08x}"
    command = json.dumps({"command": f"rm a{character}b"})
    assert preview_of("shell", command, tmp_path)[0] == f"rm a{spelled}b"


def test_what_can_be_seen_is_shown_as_it_is() -> None:
    text = "rm 'a  b'\n\tgrün 日本語 é 😀 ∀ кот"
    assert exact(text) == text


def test_all_that_the_model_asks_for_is_shown(tmp_path: Path) -> None:
    asked, _ = preview_of("shell", json.dumps({"command": "sleep  9", "seconds": 5}), tmp_path)
    assert asked == "seconds=5:\nsleep  9"
    assert preview_of("python", json.dumps({"code": "print( 1 )"}), tmp_path)[0] == "print( 1 )"
    long = "echo " + "x" * 100_000
    assert preview_of("shell", json.dumps({"command": long}), tmp_path)[0] == long
