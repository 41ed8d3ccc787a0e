"""`quiesce stoptest -- CMD ...`: does an unchanged program stop, and what does it leave?

The program is started again for each way of stopping it, first as it is, then under `quiesce exec`. We are a
subreaper: every process that it starts stays below us, whatever it does.
"""

from __future__ import annotations

from quiesce.cli.stoptest.command import IS_GUARDED as IS_GUARDED
from quiesce.cli.stoptest.command import main as main
