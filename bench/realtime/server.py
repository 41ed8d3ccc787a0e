"""The local server of `quiesce.realtime.testing`, in a process of its own, so that its CPU time is not counted.

    python bench/realtime/server.py audio 500 0      # what it says (audio or text), how many pieces, seconds
    between two

It prints its URL, and how many connections are open whenever a line comes; it ends with its input.
"""

from __future__ import annotations

import resource
import sys

from quiesce.realtime.testing import LocalRealtimeServer, Speech

PIECE = 4800


def main() -> int:
    kind, count, pace = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    said = (
        Speech("", audio=bytes(PIECE * count), piece=PIECE, pace=pace)
        if kind == "audio"
        else Speech("word " * count, audio=b"", pace=pace)
    )
    with LocalRealtimeServer([said]) as server:
        print(server.url, flush=True)
        for _ in sys.stdin:
            print(len(server.open_connections), flush=True)
        if server.complaints:
            print(*server.complaints[:3], sep="\n", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
