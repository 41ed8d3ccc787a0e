"""`quiesce tour`: five situations in which agents leak, played live: first the ordinary way, then with quiesce.

Nothing here is canned. A situation is two short programs that share everything but the way in which they stop. What
the tour shows is measured while they run: tasks in `asyncio.all_tasks()`, threads in the interpreter's frames,
processes in the process table.
"""

from __future__ import annotations

from quiesce.cli.tour.command import main as main
