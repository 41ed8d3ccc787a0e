"""Threat: a folder that makes an approved write, or a read, reach another file."""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from quiesce._safe import files
from quiesce._safe.files import Approved, BadPath, Folders, OutsideOfFolders, Seen
from quiesce.acp.tools import edit_file, read_file, write_file
from quiesce.agents import Agent
from quiesce.models import ToolCall, ToolResult
from quiesce.testing import ScriptedModel, call
from quiesce_chat.tools import files as files_module
from quiesce_chat.tools import search
from quiesce_chat.tools.changes import change
from tests.acp.served_client import Client, connected
from tests.cli.chat_parts import calls
from tests.cli.test_chat_session import chatting

SECRET = "the secret of the home folder\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "repository").mkdir()
    return tmp_path


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "repository"


# Writing


def test_links_under_every_name_that_could_be_guessed_are_not_written_through(
    home: Path, folder: Path
) -> None:
    (folder / "README").write_text("old")
    for pid in range(os.getpid() - 50, os.getpid() + 50):
        (folder / f".README.{pid}.new").symlink_to(home / "secret")
    Folders([folder]).write("README", b"new")
    assert (folder / "README").read_text() == "new"
    assert (home / "secret").read_text() == SECRET


def test_the_name_of_the_new_file_cannot_be_guessed_and_must_not_exist(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, flags = list[str](), list[int]()
    real = os.open

    def opened(path: Any, how: int, *more: Any, **options: Any) -> int:
        if how & os.O_CREAT:
            names.append(str(path))
            flags.append(how)
        return real(path, how, *more, **options)

    monkeypatch.setattr(os, "open", opened)
    for _ in range(3):
        Folders([folder]).write("a", b"text")
    assert len(set(names)) == 3
    assert all(how & os.O_EXCL and how & os.O_NOFOLLOW for how in flags)
    assert os.listdir(folder) == ["a"]


def test_a_private_file_is_private_at_every_moment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "key").write_text("old")
    (folder / "key").chmod(0o600)
    modes = set[int]()

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*given: Any, **options: Any) -> Any:
            done = real(*given, **options)
            modes.update(stat.S_IMODE(os.lstat(folder / each).st_mode) for each in os.listdir(folder))
            return done

        monkeypatch.setattr(os, name, call)

    for name in ("open", "fchmod", "fsync", "replace"):
        watched(name)
    os.umask(before := os.umask(0))
    Folders([folder]).write("key", b"new")
    assert modes == {0o600}
    assert before == os.umask(before)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755, 0o444])
def test_a_file_keeps_its_permissions_and_loses_what_would_run_as_another(folder: Path, mode: int) -> None:
    (folder / "a").write_text("old")
    (folder / "a").chmod(mode | stat.S_ISUID)
    Folders([folder]).write("a", b"new")
    assert stat.S_IMODE((folder / "a").stat().st_mode) == mode


def test_a_new_file_has_the_permissions_of_the_umask(folder: Path) -> None:
    before = os.umask(0o027)
    try:
        Folders([folder]).write("below/a", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "below" / "a").stat().st_mode) == 0o640


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_named(home: Path, folder: Path) -> None:
    (folder / "docs").mkdir()
    (folder / "docs" / "README").write_text("old\n")
    (folder / "README").symlink_to("docs/README")
    (folder / "out").symlink_to(home / "secret")
    (folder / "up").symlink_to("..")
    folders = Folders([folder])
    assert change(folders, "README", "new\n")[0].startswith("docs/README (given as README): changed\n")
    folders.write("README", b"new\n")
    assert (folder / "README").is_symlink()
    assert (folder / "docs" / "README").read_text() == "new\n"
    for path in ("out", "up/secret", "../secret", str(home / "secret"), "~/secret", "docs/../../secret"):
        with pytest.raises(OutsideOfFolders, match="work only there"):
            folders.write(path, b"new")
        with pytest.raises(OutsideOfFolders):
            folders.open(path)
    assert (home / "secret").read_text() == SECRET


@pytest.mark.parametrize("target", ["../secret", ".git/hooks/pre-commit", "other"])
def test_what_was_approved_is_not_written_to_a_link_that_was_swapped_in(
    home: Path, folder: Path, target: str
) -> None:
    (folder / ".git" / "hooks").mkdir(parents=True)
    for name in ("README", ".git/hooks/pre-commit", "other"):
        (folder / name).write_text("old\n")
    folders = Folders([folder])
    _, seen = change(folders, "README", "new\n")
    (folder / "README").unlink()
    (folder / "README").symlink_to(target)
    with pytest.raises(BadPath):
        folders.write("README", b"new\n", seen)
    assert (home / "secret").read_text() == SECRET
    assert {name: (folder / name).read_text() for name in (".git/hooks/pre-commit", "other")} == {
        ".git/hooks/pre-commit": "old\n",
        "other": "old\n",
    }


def test_a_folder_that_becomes_a_link_is_refused(folder: Path) -> None:
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / "docs").mkdir()
    folders = Folders([folder])
    seen, before = folders.look("docs/pre-commit")
    assert before is None
    (folder / "docs").rmdir()
    (folder / "docs").symlink_to(".git/hooks")
    with pytest.raises(BadPath, match="when it was approved"):
        folders.write("docs/pre-commit", b"#!/bin/sh\n", seen)
    assert os.listdir(folder / ".git" / "hooks") == []


def test_a_link_that_appears_between_the_look_and_the_open_is_refused(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is resolved first; what is swapped in after that is never followed."""
    (folder / "docs").mkdir()
    (folder / "docs" / "a").write_text("old")
    folders = Folders([folder])
    real = Folders.resolve

    def swap(self: Folders, path: str) -> str:
        found = real(self, path)
        os.rename(folder / "docs", folder / "was")
        (folder / "docs").symlink_to(home)
        return found

    monkeypatch.setattr(Folders, "resolve", swap)
    with pytest.raises(BadPath, match="'docs', on the way to 'docs/a', is not a folder"):
        folders.write("docs/a", b"new")
    assert sorted(os.listdir(home)) == ["repository", "secret"]


def test_nothing_is_written_outside_while_somebody_swaps_links_as_fast_as_possible(
    home: Path, folder: Path
) -> None:
    (home / "outside").mkdir()
    for name in ("docs", "inside"):
        (folder / name).mkdir()
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            (folder / "link").symlink_to(home / "outside")
            os.rename(folder / "link", folder / "way")
            (folder / "link").symlink_to("inside")
            os.rename(folder / "link", folder / "way")

    (folder / "way").symlink_to("inside")
    swapping = threading.Thread(target=swap)
    swapping.start()
    refused = written = 0
    try:
        for _ in range(100):
            try:
                Folders([folder]).write("way/a", b"text")
                written += 1
            except BadPath:
                refused += 1
    finally:
        over.set()
        swapping.join()
    assert os.listdir(home / "outside") == []
    assert written + refused == 100


def test_a_file_that_changed_since_it_was_approved_is_not_overwritten(folder: Path) -> None:
    (folder / "a").write_text("one\n")
    folders = Folders([folder])
    _, seen = change(folders, "a", "two\n")
    (folder / "a").write_text("the user's own change\n")
    with pytest.raises(BadPath, match="has changed since it was approved"):
        folders.write("a", b"two\n", seen)
    assert (folder / "a").read_text() == "the user's own change\n"


def test_a_file_that_appeared_since_it_was_approved_is_not_overwritten(folder: Path) -> None:
    folders = Folders([folder])
    seen, _ = folders.look("a")
    (folder / "a").write_text("somebody else's\n")
    with pytest.raises(BadPath, match="has changed"):
        folders.write("a", b"mine\n", seen)


def test_of_two_writes_of_what_was_seen_at_the_same_time_one_is_refused(folder: Path) -> None:
    folders = Folders([folder])
    for _ in range(20):
        (folder / "a").write_text("old")
        seen, _ = folders.look("a")
        begin, refused = threading.Barrier(2), list[str]()

        def write(data: bytes, seen: Seen = seen, begin: Any = begin, refused: list[str] = refused) -> None:
            begin.wait()
            try:
                folders.write("a", data, seen)
            except BadPath as error:
                refused.append(str(error))

        threads = [threading.Thread(target=write, args=[data]) for data in (b"one", b"two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 1
        assert "has changed since it was approved" in refused[0]
    assert not files._locks


@pytest.mark.parametrize("was_there", [True, False])
def test_what_another_program_writes_at_the_last_moment_is_not_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    if was_there:
        (folder / "a").write_text("old")
    folders = Folders([folder])
    seen, _ = folders.look("a")
    sync = os.fsync

    def other_program(descriptor: int) -> None:
        sync(descriptor)
        (folder / "a").write_text("of another program")

    monkeypatch.setattr(os, "fsync", other_program)
    with pytest.raises(BadPath, match="by another program just now"):
        folders.write("a", b"mine", seen)
    monkeypatch.undo()
    assert (folder / "a").read_text() == "of another program"
    assert os.listdir(folder) == ["a"]


def test_a_new_file_does_not_replace_one_that_appears_between_the_last_look_and_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = files._is_still

    def looks_and_is_overtaken(*args: Any) -> bool:
        still = look(*args)
        (folder / "a").write_text("of another program")
        return still

    monkeypatch.setattr(files, "_is_still", looks_and_is_overtaken)
    with pytest.raises(BadPath, match="was created by another program"):
        Folders([folder]).write("a", b"mine")
    assert (folder / "a").read_text() == "of another program"
    assert os.listdir(folder) == ["a"]


def test_no_folder_is_made_for_a_file_that_is_gone(folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "a").write_text("old")
    folders = Folders([folder])
    seen, _ = folders.look("below/a")
    (folder / "below" / "a").unlink()
    (folder / "below").rmdir()
    with pytest.raises(BadPath, match="has changed since it was approved"):
        folders.write("below/a", b"new", seen)
    assert os.listdir(folder) == []


# Access control lists, as the kernel keeps them: a version, then (tag, permissions, id) for each entry.
USER_OBJECT, USER, GROUP_OBJECT, MASK, OTHERS = 1, 2, 4, 16, 32


def access_list(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


LISTED = access_list(
    (USER_OBJECT, 6, 0xFFFFFFFF),
    (USER, 6, 1234),
    (GROUP_OBJECT, 0, 0xFFFFFFFF),
    (MASK, 6, 0xFFFFFFFF),
    (OTHERS, 0, 0xFFFFFFFF),
)


def set_list(path: Path, kind: str, listed: bytes) -> None:
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", listed)
    except OSError as error:
        pytest.skip(f"this file system has no access control lists: {error}")


def test_the_group_is_never_let_in_by_the_mask_of_an_access_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text("old")
    set_list(folder / "a", "access", LISTED)
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o660
    change_mode = os.fchmod
    modes = list[int]()

    def watched(descriptor: int, mode: int) -> None:
        modes.append(mode)
        change_mode(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", watched)
    Folders([folder]).write("a", b"new")
    assert not [mode for mode in modes if mode & 0o070]
    assert os.getxattr(folder / "a", "system.posix_acl_access") == LISTED


def test_the_list_of_the_folder_does_not_let_in_others(folder: Path) -> None:
    (folder / "a").write_text("old")
    (folder / "a").chmod(0o640)
    set_list(folder, "default", LISTED)
    Folders([folder]).write("a", b"new")
    with pytest.raises(OSError, match="No data"):
        os.getxattr(folder / "a", "system.posix_acl_access")
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o640


def test_an_owner_that_cannot_be_kept_costs_the_group_its_permissions_and_not_the_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, the owner of a file may be a user that does not exist there: EINVAL."""
    (folder / "a").write_text("old")
    (folder / "a").chmod(0o664)
    if os.geteuid() == 0:
        os.chown(folder / "a", 1234, 1234)
    else:
        pytest.skip("only root can give a file to somebody else")

    def cannot(*args: Any) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fchown", cannot)
    Folders([folder]).write("a", b"new")
    assert (folder / "a").read_bytes() == b"new"
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o604


def test_the_name_of_a_file_cannot_look_like_the_change_of_another_one(folder: Path) -> None:
    (folder / ".git" / "hooks").mkdir(parents=True)
    path = "notes.txt: created, 1 line\n+hello\n\n\n/../.git/hooks/pre-commit"
    told, seen = change(Folders([folder]), path, "#!/bin/sh\n")
    headline = told.split("\n")[0]
    assert headline.startswith(".git/hooks/pre-commit (given as notes.txt: created, 1 line⏎+hello⏎")
    assert headline.endswith("): created, 1 line")
    assert seen.path == str(folder / ".git/hooks/pre-commit")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Folders([folder]).write("a", b"new")
    assert os.listdir(folder) == ["a"]
    assert (folder / "a").read_text() == "old"


# What is not a regular file of the folder


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_file_with_a_second_name_is_neither_read_nor_written(home: Path, folder: Path, where: str) -> None:
    """Where that is could change while we look for it."""
    other = home / "secret" if where == "outside" else folder / "other"
    other.write_text(SECRET)
    os.link(other, folder / "notes")
    folders = Folders([folder])
    for touch in (
        lambda: folders.open("notes"),
        lambda: folders.look("notes"),
        lambda: folders.write("notes", b""),
    ):
        with pytest.raises(BadPath, match="has another name"):
            touch()
    assert other.read_text() == SECRET
    assert list(search.search(str(folder), str(folder), "secret")) == ["Nothing found."]


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_not_a_plain_file_is_refused_without_waiting(folder: Path, kind: str) -> None:
    if kind == "folder":
        (folder / "it").mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / "it")
    elif os.geteuid() == 0:
        os.mknod(folder / "it", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    else:
        pytest.skip("only root can make a device")
    folders = Folders([folder])
    for touch in (lambda: folders.open("it"), lambda: folders.write("it", b"")):
        with pytest.raises(BadPath):
            touch()


def test_folders_that_may_be_passed_through_but_not_listed_are_no_obstacle(home: Path, folder: Path) -> None:
    (folder / "a").write_text("text\n")
    home.chmod(0o111)
    try:
        assert files_module.read(Folders([folder]), "a") == "     1  text\n"
    finally:
        home.chmod(0o700)


# In the chat and over ACP


@pytest.mark.worlds("asyncio")
async def test_the_chat_does_not_ask_about_a_target_that_it_cannot_show(tmp_path: Path) -> None:
    async with chatting(tmp_path, calls("write_file", path="pipe", content="x"), "Ok.") as (handler, face):
        os.mkfifo(handler.chat.folder / "pipe")
        await handler.handle("go")
        await handler.chat.wait_idle()
        result = next(item for item in handler.chat.conversation.items if isinstance(item, ToolResult))
        assert (result.outcome, face.asked) == ("rejected", [])
        assert "is not a regular file" in result.output


@pytest.mark.worlds("asyncio")
async def test_the_chat_writes_what_was_shown_or_nothing(tmp_path: Path) -> None:
    async with chatting(tmp_path, calls("write_file", path="README", content="new"), "Ok.") as (
        handler,
        face,
    ):
        folder = handler.chat.folder
        (folder / "other").write_text("old")
        (folder / "README").write_text("old")

        async def swapped(approval: Any) -> str:
            (folder / "README").unlink()
            (folder / "README").symlink_to("other")
            return "yes"

        face.ask = swapped  # type: ignore[method-assign, assignment]
        await handler.handle("go")
        await handler.chat.wait_idle()
        result = next(item for item in handler.chat.conversation.items if isinstance(item, ToolResult))
        assert result.outcome == "failed"
        assert "when it was approved" in result.output
        assert (folder / "other").read_text() == "old"


def served(*asked: Any) -> Agent[Any]:
    return Agent(
        name="helper", model=ScriptedModel([[*asked], "done"]), tools=[read_file, write_file, edit_file]
    )


class _Swapping(Client):
    """Approves, after it has put a link in the place of the file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    async def request_permission(self, *given: Any, **options: Any) -> Any:
        (self.folder / "README").unlink()
        (self.folder / "README").symlink_to("other")
        return await super().request_permission(*given, **options)


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
@pytest.mark.parametrize(
    "asked",
    [
        call("write_file", path="README", content="new"),
        call("edit_file", path="README", old_text="old", new_text="new"),
    ],
    ids=["write", "edit"],
)
async def test_over_acp_what_is_written_is_what_was_shown(folder: Path, asked: Any) -> None:
    for name in ("README", "other"):
        (folder / name).write_text("old")
    async with connected(served(asked), _Swapping(folder), cwd=str(folder)) as talk:
        await talk.say()
        [result] = talk.check_history()
    assert result.outcome == "failed"
    assert "has changed since it was approved" in result.output
    assert (folder / "other").read_text() == "old"


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_over_acp_a_target_that_cannot_be_shown_is_not_asked_about(home: Path, folder: Path) -> None:
    (folder / "binary").write_bytes(b"\xff\xfe")
    os.link(home / "secret", folder / "notes")
    asked = [
        call("write_file", path="binary", content="x"),
        call("write_file", path="notes", content="x"),
        call("write_file", path="../secret", content="x"),
        call("edit_file", path="missing", old_text="a", new_text="b"),
    ]
    async with connected(served(*asked), cwd=str(folder)) as talk:
        await talk.say()
        results = talk.check_history()
    assert talk.client.asked == []
    assert [result.outcome for result in results] == ["rejected"] * 4
    assert (home / "secret").read_text() == SECRET


def test_a_folder_swapped_for_a_link_during_a_search_is_not_searched(home: Path, folder: Path) -> None:
    (folder / "way").symlink_to(home)
    found = subprocess.run(
        [os.sys.executable, "-I", "-S", search.__file__],  # type: ignore[attr-defined]
        input=json.dumps({"folder": str(folder), "place": str(folder / "way"), "pattern": "secret"}).encode(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert b"the secret of the home folder" not in found.stdout


def test_an_approval_is_good_for_one_write() -> None:
    approved = Approved()
    assert approved.take("a") is None  # nobody was asked
    approved.add("a", Seen("/x"))
    assert approved.take("a") == Seen("/x")
    with pytest.raises(BadPath, match="was for one write"):
        approved.take("a")
    approved.clear()
    assert approved.take("a") is None


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_two_calls_with_one_id_cannot_use_each_others_approval(folder: Path) -> None:
    for name in ("README", "other"):
        (folder / name).write_text("old")

    class Swaps(Client):
        questions = 0

        async def request_permission(self, *args: Any, **options: Any) -> Any:
            self.questions += 1
            if self.questions == 2:
                (folder / "README").unlink()
                (folder / "README").symlink_to("other")
            return await super().request_permission(*args, **options)

    asked = [
        ToolCall("same", "write_file", json.dumps({"path": name, "content": "new"}))
        for name in ("README", "x")
    ]
    agent = Agent(name="helper", model=ScriptedModel([asked, "done"]), tools=[write_file])
    async with connected(agent, Swaps(), cwd=str(folder)) as talk:
        await talk.say()
    assert (folder / "other").read_text() == "old"
