"""What `shielded` found out about the kernel below it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

PROGRAM = """
    import trio
    from quiesce import Scope

    async def child():
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)
            print("tidy", flush=True)

    held = []

    async def main():
        held.append(await Scope.open())
        held[0].spawn(child)
        await trio.sleep(0.01)

    trio.run(main)
    print("end")
"""


def test_the_end_of_a_trio_run_waits_for_a_childs_clean_up_and_not_for_ever() -> None:
    """The owner naps under a shield until its next timer; the last child's end has to wake it."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=10, check=True
    )
    assert done.stdout.split() == ["tidy", "end"]
    assert time.monotonic() - began < 3
