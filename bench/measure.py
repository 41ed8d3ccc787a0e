"""How the benchmarks measure: CPU time, best of many short rounds, the candidates interleaved.

The machine is never quiet. A round is a few milliseconds long, so that some rounds of each candidate meet
nobody else; the best of them is what the code costs. Ratios are to the first candidate.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

Batch = Callable[[int], Awaitable[object]]
Runner = Callable[[Callable[[], Awaitable[float]]], float]


def best_of(
    run: Runner, batches: Mapping[str, Batch], size: int, rounds: int, seconds: float = 0.004
) -> dict[str, float]:
    """CPU seconds of one batch of `size` for each candidate, best of `rounds`."""
    repeats = {name: _repeats(run, batch, size, seconds) for name, batch in batches.items()}
    best = dict.fromkeys(batches, float("inf"))
    for _ in range(rounds):
        for name, batch in batches.items():
            best[name] = min(best[name], _once(run, batch, size, repeats[name]))
    return best


def _repeats(run: Runner, batch: Batch, size: int, seconds: float) -> int:
    took = _once(run, batch, size, 1)
    return max(1, int(seconds / max(took, 1e-7)))


def _once(run: Runner, batch: Batch, size: int, repeats: int) -> float:
    async def timed() -> float:
        await batch(size)  # the loop's first turn, lazy imports, caches
        start = time.process_time()
        for _ in range(repeats):
            await batch(size)
        return (time.process_time() - start) / repeats

    gc.collect()
    gc.disable()
    try:
        return run(timed)
    finally:
        gc.enable()


def table(
    title: str, rows: Mapping[str, Mapping[str, float]], unit: float = 1e6, unit_name: str = "µs"
) -> None:
    """Print a Markdown table: the first candidate's time, then the ratios of the others to it."""
    names = list(next(iter(rows.values())))
    print(f"\n### {title}\n")
    print(f"| | {names[0]} ({unit_name}) | " + " | ".join(names[1:]) + " |")
    print("|---|" + "---|" * len(names))
    for label, cells in rows.items():
        first = cells[names[0]]
        ratios = " | ".join(f"{cells[name] / first:.2f}" for name in names[1:])
        print(f"| {label} | {first * unit:.1f} | {ratios} |")
    sys.stdout.flush()
