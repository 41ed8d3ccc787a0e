"""The other side of `EmbeddedModel`: a fresh interpreter runs this file, loads the weights, and serves them on loopback.

It is run by its path and imports nothing of quiesce. What to load comes in a line over stdin, the key too, which so stands in no list of
processes. One line goes to stdout: where it listens, or why it does not. Whatever else the native code prints goes to stderr, which
the other side reads and keeps to itself. When stdin ends, it ends at once, whatever its threads do.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

BATCH = 128  # tokens of a prompt that are read in one go; between two it hears of other things
# Not every release has these. No web page is to read what it says, it asks no network, and it is quiet.
OPTIONAL = {"cors_origins": "none", "ui": False, "offline": True, "cache_ram_mib": 64, "verbosity": -1}


def main() -> None:
    """Serve until stdin ends."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    told = os.dup(1)
    os.dup2(2, 1)
    try:
        server = serve(request)
        answer = {"url": server.listening_address}
    except Exception as error:
        server, answer = None, {"failed": f"{type(error).__name__}: {error}"}
    os.write(told, json.dumps(answer).encode() + b"\n")
    os.close(told)
    if server is not None:
        sys.stdin.buffer.read()
    os._exit(0 if server is not None else 1)  # nothing of it is worth waiting for


def serve(request: dict[str, Any]) -> Any:
    """A server for these weights, ready to answer."""
    sys.path[:] = request["path"]
    xllamacpp: Any = importlib.import_module("xllamacpp")  # with the extra embedded

    params = xllamacpp.CommonParams()
    params.model.path = request["weights"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [request["key"]]
    params.n_ctx = request["context"]
    params.n_parallel = 1
    params.n_batch = params.n_ubatch = BATCH
    params.n_gpu_layers = 0
    params.warmup = False
    params.endpoint_slots = True
    params.n_threads_http = 3
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = request["threads"]
    for name, value in OPTIONAL.items():
        if hasattr(params, name):
            setattr(params, name, value)
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
