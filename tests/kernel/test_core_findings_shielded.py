"""What `shielded` found out about the kernel below it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

END_OF_TRIO = """
    import time
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

    began = time.monotonic()
    trio.run(main)
    print("end", "at once" if time.monotonic() - began < 2.9 else "late")
"""


END_OF_ASYNCIO = """
    import asyncio
    from quiesce import Scope
    from quiesce import shielded

    async def step(name):
        await asyncio.sleep(0.05)
        print(name)

    async def clean_up():
        await step("child")

    async def clean_up_with_a_scope():
        async with Scope() as scope:
            scope.spawn(step, "grandchild")

    async def main():
        tasks.append(asyncio.create_task(shielded({which})))
        await asyncio.sleep(0.01)
        # and here asyncio.run cancels what is left

    tasks = []
    asyncio.run(main())
    print("end")
"""


def run_program(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=15,
        check=True,
    )
    return done.stdout.split()


def test_the_end_of_a_trio_run_waits_for_a_childs_clean_up_and_not_for_ever() -> None:
    """The owner naps under a shield until its next timer; the last child's end has to wake it."""
    assert run_program(END_OF_TRIO) == ["tidy", "end", "at", "once"]


def test_the_sweep_of_asyncio_run_does_not_cut_a_child_of_a_late_scope() -> None:
    assert run_program(END_OF_ASYNCIO.format(which="clean_up")) == ["child", "end"]


def test_the_sweep_of_asyncio_run_does_not_cut_what_is_nested_in_a_late_scope() -> None:
    assert run_program(END_OF_ASYNCIO.format(which="clean_up_with_a_scope")) == ["grandchild", "end"]
