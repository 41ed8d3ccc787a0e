"""Tools for agents that are served over ACP: files and commands, through the client where it offers them.

```python
from quiesce.acp.tools import edit_file, read_file, run_command, write_file

agent = Agent(name="coder", model=model, tools=[read_file, write_file, edit_file, run_command])
```

If the client has a file system or terminals, they are used: so the tools see the user's unsaved changes, and
the user sees the output of a command. Otherwise, and outside of ACP, the tools use this machine's files and a
process of our own. Only paths in the session's directories are accepted (outside of ACP: in the current one),
wherever links lead. Writing and running need approval; `dataclasses.replace(write_file,
needs_approval=False)` is a copy that does not. A command can of course do anything that this user can.

Whether a tool that needs approval may run is asked of the user, by `ask_client`. An agent that is a tool of
another one has a run of its own, which has to be configured for this:
`other.as_tool(run_config=RunConfig(approve=ask_client))`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from quiesce._safe.files import BadPath, Seen
from quiesce._safe.text import exact, without_line_ends
from quiesce.acp.served import (
    Arguments,
    ClientRefused,
    Files,
    OutsideOfSession,
    Ran,
    Session,
    ask_client,
    check_approved,
    code_block,
    current_session,
    lines_of,
    note_asked,
    run_here,
    run_in_terminal,
    shown_as,
)
from quiesce.agents import FunctionTool, ToolContext, function_tool

from . import schema as s
from .helpers import tool_content, tool_diff_content

__all__ = [
    "ClientRefused",
    "OutsideOfSession",
    "Session",
    "ask_client",
    "current_session",
    "edit_file",
    "read_file",
    "run_command",
    "shown_as",
    "write_file",
]

# How many characters of a file the model is given at once.
CHARACTERS: Final = 64_000
LINES: Final = 2_000
DEFAULT_SECONDS: Final = 120.0
MOST_SECONDS: Final = 3_600.0
_MOST_REMARKS: Final = 1000


@function_tool(side_effects=False)
async def read_file(path: str, line: int = 1, limit: int = LINES) -> str:
    """Read a text file.

    Args:
        path: The file, absolute or relative to the working directory.
        line: The first line to read; 1 is the first of the file.
        limit: How many lines to read at most.
    """
    files = Files.here()
    first, most = max(line, 1), max(min(limit, LINES), 1)
    # One line more than wanted, to find out whether there is more.
    text = await files.read(files.path(path), first, most + 1)
    lines = lines_of(text)
    more = len(lines) > most
    text = "".join(lines[:most])
    if len(text) > CHARACTERS:
        text = text[:CHARACTERS]
        whole = text.count("\n")
        if not whole:
            rest = f"read on from line {first + 1}" if len(lines) > 1 else "it is the last one"
            return (
                f"{text}\n[line {first} is cut after {CHARACTERS} characters: "
                f"look at the rest of it with a command; {rest}]"
            )
        return f"{text}\n[cut after {CHARACTERS} characters: read on from line {first + whole}]"
    return f"{text}[there is more: read on from line {first + most}]" if more else text


@function_tool(needs_approval=True)
async def write_file(context: ToolContext[Any], path: str, content: str) -> str:
    """Write a text file: a new one, or one that replaces an existing file.

    Args:
        path: The file, absolute or relative to the working directory.
        content: The whole text.
    """
    files = Files.here()
    target = files.path(path)
    # Looked at again, although the preview did: the file must still be the one that the user approved a
    # change to.
    before, seen = await files.look(target)
    check_approved(context.tool_call_id, target, seen)
    session = current_session()
    if session is not None:
        await _show_diff(session, context, target, before, content)
    await files.write(target, content, seen)
    return f"Wrote {len(content)} characters to {target}."


@function_tool(needs_approval=True)
async def edit_file(
    context: ToolContext[Any], path: str, old_text: str, new_text: str, replace_all: bool = False
) -> str:
    """Replace a piece of a text file.

    Args:
        path: The file, absolute or relative to the working directory.
        old_text: The text to replace, exactly as it is in the file.
        new_text: The text to put in its place.
        replace_all: Replace every occurrence; otherwise the text must occur exactly once.
    """
    files = Files.here()
    target = files.path(path)
    before, seen = await files.look(target)
    check_approved(context.tool_call_id, target, seen)
    before, after = _edited(target, before, old_text, new_text, replace_all)
    session = current_session()
    if session is not None:
        await _show_diff(
            session, context, target, before, after, line=before[: before.index(old_text)].count("\n") + 1
        )
    await files.write(target, after, seen)
    found = before.count(old_text)
    return f"Replaced {found} {'place' if found == 1 else 'places'} in {target}."


def _edited(
    path: str, before: str | None, old_text: str, new_text: str, replace_all: bool
) -> tuple[str, str]:
    """Return the text of a file before and after an edit; raise `BadPath` if the edit cannot be made."""
    if before is None:
        raise FileNotFoundError(f"there is no file {path!r}")
    found = before.count(old_text) if old_text else 0
    if not found:
        raise BadPath(f"old_text is not in {path}: read the file, and give the text exactly as it is there")
    if found > 1 and not replace_all:
        raise BadPath(
            f"old_text occurs in {path} {found} times: give more of the text around it, or set replace_all"
        )
    return before, before.replace(old_text, new_text)


@function_tool(needs_approval=True)
async def run_command(
    context: ToolContext[Any], command: str, cwd: str = "", timeout_seconds: float = DEFAULT_SECONDS
) -> str:
    """Run a shell command, and return its output and how it ended.

    Args:
        command: The command line, for /bin/sh. cwd: Where to run it, absolute or relative to the working
        directory; empty for the working directory itself. timeout_seconds: After how many seconds to stop it.
    """
    where = Files.here().path(cwd or ".")
    seconds = min(max(timeout_seconds, 0.0), MOST_SECONDS)
    session = current_session()
    ran: Ran
    if session is not None and session.has_terminals:
        ran = await run_in_terminal(session, context, command, where, seconds)
    else:
        ran = await run_here(context, command, where, seconds)
    return ran.text(seconds)


# How the tools are shown


async def _show_diff(
    session: Session,
    context: ToolContext[Any],
    path: str,
    before: str | None,
    after: str,
    line: int | None = None,
) -> None:
    await session.show(
        context.tool_call_id,
        content=[tool_diff_content(path, after, before)],
        locations=[s.ToolCallLocation(path=path, line=line)],
    )


def _location(arguments: Arguments) -> list[s.ToolCallLocation]:
    line = arguments.get("line")
    return [
        s.ToolCallLocation(
            path=Files.here().path(arguments["path"]),
            line=line if isinstance(line, int) and line > 0 else None,
        )
    ]


async def _write_preview(arguments: Arguments) -> list[Any]:
    files = Files.here()
    path = files.path(arguments["path"])
    before, seen = await files.look(path)
    note_asked(seen)
    return _diff_with_remarks(path, seen, before, arguments["content"])


async def _edit_preview(arguments: Arguments) -> list[Any]:
    files = Files.here()
    path = files.path(arguments["path"])
    before, seen = await files.look(path)
    note_asked(seen)
    before, after = _edited(
        path, before, arguments["old_text"], arguments["new_text"], bool(arguments.get("replace_all"))
    )
    return _diff_with_remarks(path, seen, before, after)


def _diff_with_remarks(path: str, seen: Seen, before: str | None, after: str) -> list[Any]:
    """Return the diff, and what a client may not show: the target of a link, and invisible characters."""
    remarks = list[str]()
    if seen.path != path:
        link, target = without_line_ends(exact(path)), without_line_ends(exact(seen.path))
        remarks.append(f"{link} is a link: the file that is written is {target}")
    old = lines_of(before or "")
    if any(line.endswith("\r\n") for line in lines_of(after)) and not any(
        line.endswith("\r\n") for line in old
    ):
        remarks.append("Lines end with CR LF.")
    # Lines that the file had before need no remark. Counted, because a line may occur more often than before.
    unchanged = Counter(old)
    for number, line in enumerate(lines_of(after), 1):
        unchanged[line] -= 1
        text = line.removesuffix("\n").removesuffix("\r")
        if unchanged[line] < 0 and (escaped := exact(text)) != text:
            remarks.append(f"Line {number} has invisible characters: {escaped}")
    if len(remarks) > _MOST_REMARKS:
        raise BadPath(
            f"{path!r} would have {len(remarks)} lines with invisible characters, too many to be shown: "
            "write it with a command"
        )
    content: list[Any] = [tool_diff_content(path, after, before)]
    return [*content, tool_content(code_block("\n".join(remarks)))] if remarks else content


async def _command_preview(arguments: Arguments) -> list[Any]:
    lines = [exact(str(arguments["command"]))]
    lines += [exact(f"{name}: {arguments[name]!r}") for name in arguments if name != "command"]
    return [tool_content(code_block("\n".join(lines)))]


def _title_from(verb: str, argument: str) -> Any:
    return lambda arguments: f"{verb} {arguments[argument]}" if verb else str(arguments[argument])


def _register(
    tool: FunctionTool, kind: s.ToolKind, verb: str, argument: str = "path", preview: Any = None
) -> None:
    locations = _location if argument == "path" else None
    shown_as(tool, kind, title=_title_from(verb, argument), locations=locations, preview=preview)


_register(read_file, "read", "Read")
_register(write_file, "edit", "Write", preview=_write_preview)
_register(edit_file, "edit", "Edit", preview=_edit_preview)
_register(run_command, "execute", "", "command", preview=_command_preview)
