"""`python -m quiesce`: the command, where its script is not on the path.

Python puts the current folder first among the places where modules are looked for. It is taken away before
anything else is imported, so that a repository cannot run code by having a `json.py`; a `quiesce` folder in
it is found before this line. The `quiesce` command has no such place.
"""

from __future__ import annotations

import os
import sys

try:
    here = os.getcwd()
except OSError:  # it was removed
    here = ""
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):
    del sys.path[0]

from quiesce.cli import main

sys.exit(main())
