"""`python -m quiesce`: the command, where its script is not on the path."""

from __future__ import annotations

import sys

from quiesce.cli import main

sys.exit(main())
