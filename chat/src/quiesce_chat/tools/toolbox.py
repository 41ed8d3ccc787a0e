"""The agent of a chat and its tools: files of a folder, a shell, Python.

Every tool that can change something needs approval: `shell`, `python` and `write_file`. Reading files of the folder
does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from quiesce.agents import Agent, FunctionTool, ToolContext, function_tool
from quiesce.inner import Approved, BadPath, Folders, Seen, decode_json, exact, is_deep
from quiesce.models import Model
from quiesce_chat.models import calls_tools

from . import files
from .changes import change
from .programs import python_command, run_program, search_command, shell_command

#: Called with the id of a call and a piece of its output.
OnOutput = Callable[[str, str], object]

# Seconds after which a program is stopped; the model may ask for another limit.
LONGEST = 600.0
LONGEST_SEARCH = 60.0
_INSTRUCTIONS = """\
You are a helpful assistant at a terminal. You work in the folder {folder}. Use the tools when they help. \
The user is asked before a shell command, a piece of Python or a write is executed, and may refuse. \
Answer briefly, in Markdown. If you were interrupted, do not simply try again: look at what the user says next."""
_WITHOUT_TOOLS = "You are a helpful assistant. Answer briefly."


def make_agent(model: Model, folder: Path, on_output: OnOutput, approved: Approved) -> Agent[Any]:
    """Make an agent that works in `folder`.

    `on_output` is called with what its programs print. `approved` holds the files as they were shown when the user
    approved a write.
    """
    if not calls_tools(model):
        return Agent(name="assistant", instructions=_WITHOUT_TOOLS, model=model)
    instructions = _INSTRUCTIONS.format(folder=exact(str(folder)))
    return Agent(
        name="assistant",
        instructions=instructions,
        model=model,
        tools=make_tools(folder, on_output, approved),
    )


def make_tools(folder: Path, on_output: OnOutput, approved: Approved) -> list[FunctionTool]:
    """The tools of the agent. Their docstrings are what the model reads about them."""
    folders = Folders([folder])

    @function_tool(side_effects=False)
    def read_file(path: str, first_line: int = 1, lines: int = files.LINES) -> str:
        """Read lines of a text file in the folder, with their numbers."""
        return files.read(folders, path, first_line, lines)

    @function_tool(side_effects=False)
    def list_files(path: str = ".") -> str:
        """List the names in a folder. The names of folders end with a slash."""
        return files.list_folder(folders, path)

    @function_tool(side_effects=False)
    async def search_files(pattern: str, path: str = ".") -> str:
        """Search all files below a folder for a regular expression. Returns file, line number and line."""
        request = {"folder": folders.home, "place": folders.resolve(path), "pattern": pattern}
        with anyio.move_on_after(LONGEST_SEARCH):
            found = await run_program(
                search_command(), folder, "search", _ignore, stdin=json.dumps(request).encode()
            )
            if found.returncode:
                raise BadPath(found.output or found.for_model())
            return found.output
        raise TimeoutError(
            f"the search was stopped after {LONGEST_SEARCH:g} s: try a simpler expression, or fewer files"
        )

    @function_tool(needs_approval=True)
    def write_file(context: ToolContext[Any], path: str, content: str) -> str:
        """Write a text file in the folder, replacing what it contained. The user is asked first."""
        return files.write(folders, path, content, approved.take(context.tool_call_id))

    async def run(context: ToolContext[Any], argv: list[str], name: str, seconds: float) -> str:
        def pass_on(text: str) -> None:
            context.progress(text)
            on_output(context.tool_call_id, text)

        with anyio.move_on_after(seconds):
            return (await run_program(argv, folder, name, pass_on)).for_model()
        return f"Stopped after {seconds:g} s, because it had not ended by itself.\n{context.output_so_far}"

    @function_tool(needs_approval=True)
    async def shell(context: ToolContext[Any], command: str, seconds: float = LONGEST) -> str:
        """Run a shell command in the folder and return what it printed. The user is asked first.

        It has no standard input. Processes that it leaves in the background are stopped when it exits.
        """
        return await run(context, shell_command(command), "shell", seconds)

    @function_tool(needs_approval=True)
    async def python(context: ToolContext[Any], code: str, seconds: float = LONGEST) -> str:
        """Run Python code in a fresh interpreter in the folder and return what it printed. The user is asked first."""
        return await run(context, python_command(code), "python", seconds)

    return [read_file, list_files, search_files, write_file, shell, python]


def _ignore(text: str) -> None:
    pass


# What the user sees of a call


def title_of(name: str, arguments: str) -> str:
    """The arguments of a call, in one text that is safe to print."""
    plain = plain_arguments(arguments)
    if name == "shell":
        return exact(str(plain.get("command", arguments)))
    if name == "python":
        return exact(str(plain.get("code", arguments)))
    if name == "search_files" and "pattern" in plain:
        return exact(f"{plain['pattern']} in {plain.get('path', '.')}")
    if isinstance(path := plain.get("path"), str):
        return exact(path)
    return exact(
        ", ".join(f"{key}={value!r}" for key, value in plain.items()) if plain else arguments.strip("{}")
    )


def preview_of(name: str, arguments: str, folder: Path) -> tuple[str, Seen | None]:
    """Everything that the user needs to see before approving a call, and the file that a write is about.

    It may read a file and take a while, so call it from a thread. Raises `OSError` if the file cannot be read:
    without a preview there is nothing to approve.
    """
    plain = plain_arguments(arguments)
    if name == "write_file" and isinstance(path := plain.get("path"), str):
        text, seen = change(Folders([folder]), path, str(plain.get("content", "")))
        return exact(text), seen
    main = {"shell": "command", "python": "code"}.get(name)
    if main is None or main not in plain:
        return title_of(name, arguments), None
    others = [f"{key}={value!r}" for key, value in plain.items() if key != main]
    return exact(f"{', '.join(others)}:\n{plain[main]}" if others else str(plain[main])), None


def plain_arguments(arguments: str) -> dict[str, Any]:
    """The arguments as the model wrote them, unchecked; empty if it did not write a JSON object."""
    try:
        plain = decode_json(arguments)
    except msgspec.DecodeError:
        return {}
    return plain if isinstance(plain, dict) and not is_deep(plain) else {}
