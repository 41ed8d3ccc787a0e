"""How thorough the sweeps are that stop code at every point. The environment variable QUIESCE_AUDIT says so.

- `sample` (or not set): a few points of each scenario. They run with `make test-all`.
- `once`: every point of every scenario is stopped once, on asyncio and trio, and some a second time. `make audit-once`, for each change.
- `full`: every point, and a second stop at every point after it, in every world. `make audit`, in `make nightly`.

Scenarios with real processes or the real clock are sampled until `full`; those with real sockets are stopped once until then.
"""

from __future__ import annotations

import os

LEVELS = ("sample", "once", "full")
LEVEL = os.environ.get("QUIESCE_AUDIT") or "sample"
if LEVEL not in LEVELS:
    raise ValueError(f"QUIESCE_AUDIT is {LEVEL!r}: it must be one of {', '.join(LEVELS)}")
FULL = LEVEL == "full"
EVERY_POINT = LEVEL != "sample"
