"""A program as many are, for the beginning of the tour: it starts a server and stops it when it ends, if it can.

Run by its path, as a program of its own. Its output is not shown.
"""

from __future__ import annotations

import subprocess
import sys
import time

server = subprocess.Popen([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"])
try:
    while True:
        time.sleep(1)
finally:
    server.terminate()
