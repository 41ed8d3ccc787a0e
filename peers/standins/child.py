"""A process that somebody's server or tool has started, and that does not end by itself: `child.py [deaf]`."""

from __future__ import annotations

import signal
import sys
import time

if "deaf" in sys.argv[1:]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
time.sleep(120)
