"""Finding the CLI to start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from quiesce.claude.words import ClaudeAgentOptions, CLINotFoundError

_USUAL_PLACES = (
    "~/.npm-global/bin/claude",
    "/usr/local/bin/claude",
    "~/.local/bin/claude",
    "~/node_modules/.bin/claude",
    "~/.yarn/bin/claude",
    "~/.claude/local/claude",
)


def find_cli(options: ClaudeAgentOptions) -> str:
    """Return the path of the CLI to start; `CLINotFoundError` lists the places that were searched.

    These are, in order: `options.cli_path`, an installed claude-agent-sdk, `claude` on the PATH, and the
    usual places. Looking at files may block for a moment.
    """
    if options.cli_path is not None:
        given = str(options.cli_path)
        # Only an absolute path can be checked here: a relative one counts from the directory in which the CLI
        # will run, and a bare name is searched on the PATH. Starting it shows whether those exist.
        if os.path.isabs(given) and not os.path.isfile(given):
            raise CLINotFoundError(
                f"Claude Code not found at: {given}. That is options.cli_path, and not a file: "
                "correct it, or leave it out to have the CLI searched for"
            )
        return given
    for place in _bundled():
        if place.is_file():
            return str(place)
    if on_path := shutil.which("claude"):
        return on_path
    for place in map(_at_home, _USUAL_PLACES):
        if place.is_file():
            return str(place)
    raise CLINotFoundError(_nowhere())


def _bundled() -> Iterator[Path]:
    spec = find_spec("claude_agent_sdk")  # without importing it
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(directory) / "_bundled" / "claude"


def _at_home(place: str) -> Path:
    # Path.expanduser raises for a user without a home directory; this does not.
    return Path(os.path.expanduser(place))


def _nowhere() -> str:
    bundled = ", ".join(map(str, _bundled())) or "claude-agent-sdk, which brings one, is not installed"
    searched = [
        f"in claude-agent-sdk: {bundled}",
        f"for `claude` on the PATH: {os.environ.get('PATH') or 'which is empty'}",
        f"in the usual places: {', '.join(_USUAL_PLACES)}",
    ]
    return (
        "Claude Code not found. Looked\n"
        + "".join(f"  {where}\n" for where in searched)
        + "Install it (npm install -g @anthropic-ai/claude-code, or pip install claude-agent-sdk, which brings "
        "one), or say where it is: ClaudeAgentOptions(cli_path=...)"
    )
