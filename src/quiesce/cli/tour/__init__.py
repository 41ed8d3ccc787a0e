"""`quiesce tour`: the five situations in which agents leak, played live: first the ordinary way, then with quiesce.

Nothing here is canned. A situation is two short programs that share everything but the way in which they stop; what is shown of them is looked
up while they run: tasks in `asyncio.all_tasks()`, threads in the frames that the interpreter has, processes in the process table.
"""

from __future__ import annotations

from quiesce.cli.tour.command import main as main
