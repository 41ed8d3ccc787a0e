"""The examples of mcp, of either major (see `dropin_tests.compared`), each with the server of the same examples."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import mcp

from dropin_tests.compared import NO_PROGRAM, Examples, Program, main

LEFT_OUT = {
    "stories/_": NO_PROGRAM,
    "servers/": "a server: the drop-in is for clients",
    "/server": "a server: the drop-in is for clients",
    "mcpserver/": "a server: the drop-in is for clients",
    "fastmcp/": "a server: the drop-in is for clients",
    "run/": "a server: the drop-in is for clients",
    "simple-chatbot": "needs a model",
    "_trio.py": "needs trio",
}


def programs(path: str, text: str) -> Iterable[Program] | str:
    if "__main__" not in text:
        return NO_PROGRAM
    if re.search(r"localhost:\d+", text):
        return "needs a server at a port of its own"
    module = path.removesuffix(".py").replace("/", ".")
    if "stories/" in path:
        module = module.removeprefix("examples.")
        return [Program(module), Program(module, ("--http",))]
    return [Program(module.removeprefix("examples.snippets."))]


UV = """#!/bin/sh
shift
case "$1" in
server) exec python -c 'from servers import run_server; run_server()' "$2" "$3" ;;
*) exec python -m "$(echo "$1" | tr - _)" ;;
esac
"""


@contextmanager
def uv() -> Iterator[Mapping[str, str]]:
    """What starts servers for some: here it runs them in the copy of the client."""
    with TemporaryDirectory() as folder:
        command = Path(folder) / "uv"
        command.write_text(UV)
        command.chmod(0o755)
        yield {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}


if __name__ == "__main__":
    folders = ("examples", "docs_src") if hasattr(mcp, "Client") else ("examples",)
    imports = (".", "examples", "examples/snippets", "examples/servers/simple-pagination")
    sys.exit(
        main(
            Examples(
                "mcp",
                "mcp",
                "quiesce.dropin.mcp",
                left_out=LEFT_OUT,
                folders=folders,
                import_from=imports,
                programs=programs,
                serving=uv,
            )
        )
    )
