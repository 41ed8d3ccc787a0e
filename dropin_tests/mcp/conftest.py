"""What only one of the two majors has."""

from __future__ import annotations

import mcp

collect_ignore = [] if hasattr(mcp, "Client") else ["test_clients.py"]
