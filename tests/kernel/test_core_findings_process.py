"""What processes need of the kernel below them."""

from __future__ import annotations

import os
import time

import anyio
import pytest

from quiesce.kernel._backend import current_backend

pytestmark = pytest.mark.real_time


async def test_a_wait_for_what_is_always_ready_can_be_cancelled() -> None:
    backend = current_backend()
    reading, writing = os.pipe()
    try:
        for _ in range(40):
            give_up_at = time.monotonic() + 1
            with anyio.move_on_after(0.002) as scope:
                while time.monotonic() < give_up_at:
                    await backend.wait_writable(writing)
            assert scope.cancelled_caught
    finally:
        os.close(reading)
        os.close(writing)
