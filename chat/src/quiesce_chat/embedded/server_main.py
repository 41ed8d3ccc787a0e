"""The server process of `EmbeddedModel`: a fresh interpreter that loads the weights and serves them on loopback.

The file is run by its path and imports nothing of quiesce. Its request, one line of JSON, comes over stdin; so the
key in it does not appear in any list of processes. One line goes to stdout: the address, or why it cannot serve.
Everything else that the native code prints goes to stderr, which the parent reads and does not show. When stdin ends,
the process exits at once, no matter what its threads are doing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

# How many tokens of a prompt are read at a time; only between two batches does the server react to anything else.
BATCH = 128
# Not every release has these options. They keep web pages from reading answers, disable network access, and silence
# the log.
OPTIONAL = {"cors_origins": "none", "ui": False, "offline": True, "cache_ram_mib": 64, "verbosity": -1}


def main() -> None:
    """Serve until stdin ends."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    # Native code writes to descriptor 1 directly. So that descriptor becomes stderr, and the reply
    # goes to a copy of the original.
    reply_descriptor = os.dup(1)
    os.dup2(2, 1)
    try:
        server = serve(request)
        reply = {"url": server.listening_address}
    except Exception as error:
        server, reply = None, {"failed": f"{type(error).__name__}: {error}"}
    os.write(reply_descriptor, json.dumps(reply).encode() + b"\n")
    os.close(reply_descriptor)
    if server is not None:
        sys.stdin.buffer.read()
    # Not sys.exit(): the interpreter would wait for the native threads, and nothing here needs a clean-up.
    os._exit(0 if server is not None else 1)


def serve(request: dict[str, Any]) -> Any:
    """Start a server for these weights that is ready to answer."""
    sys.path[:] = request["path"]
    # Part of the extra `embedded`; imported only now, because `sys.path` of the parent leads to it.
    xllamacpp: Any = importlib.import_module("xllamacpp")

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
