"""A stop of a run that goes on elsewhere: in another process, or in another `Conversation` of the same store.

It is asked for through the store, and the one who runs the conversation does it. Its report is in the log, with
the end of the run.

Invariants
- The request names the run that was going on when it was made. It never stops a later one.
- Nothing is guessed. The report is that of the run's end; or, if the program that ran it has ended, what its log
  shows, with the calls that may have had an effect as left over; or it says that the stop was not confirmed.
- Bounded by the grace of the stop. A holder that lives and does not answer is reported as not confirmed.
- A thread of the kernel asks and waits, so `interrupt()` returns at once, whatever the store does.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import fields

from quiesce import Grace, Leftover, Reason, StopReport
from quiesce.agents.run import Stopping
from quiesce.agents.store import (
    RunEnded,
    StopRequested,
    Store,
    StoreClosed,
    StoreConflict,
    StoreFenced,
    StoreHeld,
)
from quiesce.kernel.inner import run_in_thread

from .restore import restore
from .shared_store import SharedStore

# How often it asks whether the other program still lives, and whether a hint was lost.
_LOOK_SECONDS = 0.25
# So much longer than its grace it waits for a run elsewhere: for hints that were lost, and the last write.
_MARGIN_SECONDS = 5.0
_NO_BOUND = 1e9  # JSON has no infinity


class RemoteStop:
    """One request to stop what runs elsewhere, and the wait for what came of it."""

    def __init__(
        self,
        store: Store,
        conversation_id: str,
        name: str,
        reason: Reason,
        *,
        is_own: Callable[[str], bool],
        within: float,
        left: Sequence[Leftover] = (),
        pause: bool = False,
        grace: Grace | None = None,
    ) -> None:
        self.stopping = Stopping()
        self._store = store
        self._conversation_id = conversation_id
        self._is_own = is_own
        self._within = (grace.total if grace is not None else within) + _MARGIN_SECONDS
        self._left = left
        self._name = name
        self._reason = reason
        self._pause = pause
        self._grace = grace
        self._wake = threading.Event()
        self._abandoned = False
        self._ended = threading.Event()

    def start(self) -> Stopping:
        """Ask for it, in a thread; returns at once."""
        run_in_thread("quiesce-remote-stop", self._work)
        return self.stopping

    @property
    def ended(self) -> bool:
        """Whether it does not use the store any more."""
        return self._ended.is_set()

    def abandon(self) -> None:
        """Wait no longer: the store is about to be closed. The request stays in the log."""
        self._abandoned = True
        self._wake.set()

    def wait_ended(self, seconds: float) -> None:
        """Block until it does not use the store any more."""
        self._ended.wait(seconds)

    # In the thread

    def _work(self) -> Callable[[], object]:
        try:
            # Opened here: a stop never fails, and its caller does not wait.
            self._shared = SharedStore(self._store, self._conversation_id)
            report = self._stop()
        except Exception as error:
            report = self._not_confirmed(f"the store could not be used: {error}")
        self._ended.set()
        return lambda: self.stopping.settle(report)

    def _stop(self) -> StopReport:
        found = self._shared.look_sync()
        run_id = found.found.unfinished_run
        if run_id is None or self._is_own(run_id):
            return StopReport(self._name, None, 0.0, self._left, 0)
        if found.is_lost:
            return self._settle_lost()
        seen = found.found.last_seq
        self._shared.log.post_sync([self._request(run_id)])
        if self._pause:
            return StopReport(self._name, None, 0.0, self._left, 0)
        unwatch = self._shared.log.watch(lambda events: self._wake.set(), after=seen)
        try:
            ends = time.monotonic() + self._within
            while not self._abandoned and time.monotonic() < ends:
                self._wake.clear()
                for event in self._shared.log.read_sync(seen):
                    seen = event.seq
                    if isinstance(event, RunEnded) and event.run_id == run_id:
                        return event.stop_report
                if self._shared.store.holder_sync(self._shared.conversation_id) is None:
                    looked = self._shared.look_sync()
                    if looked.is_lost and looked.found.unfinished_run == run_id:
                        return self._settle_lost()
                    if looked.holder is None:
                        continue  # it has ended since, and its end is about to be read
                self._wake.wait(_LOOK_SECONDS)
        except StoreClosed:
            self._abandoned = True
        finally:
            unwatch()
        if not self._abandoned:
            return self._not_confirmed(
                "its process lives, and has not ended the run in time: it may be blocked, or stopped (SIGSTOP). "
                "The request stays in the log, and is heard when that process goes on"
            )
        return self._not_confirmed("the conversation was closed here before the end of the run was seen")

    def _request(self, run_id: str) -> StopRequested:
        steps: dict[str, float] | None = None
        if self._grace is not None:
            grace = self._grace
            steps = {one.name: min(getattr(grace, one.name), _NO_BOUND) for one in fields(grace) if one.init}
        return StopRequested(
            request_id=uuid.uuid4().hex,
            run_id=run_id,
            pause=self._pause,
            kind=self._reason.kind,
            message=self._reason.message,
            grace=steps,
        )

    def _settle_lost(self) -> StopReport:
        """Write down what is known of a run whose program has ended."""
        try:
            return settle_sync(self._shared, self._reason) or StopReport(self._name, None, 0.0, (), 0)
        except StoreHeld:  # another one was faster, and settles it or goes on with it
            return self._stop()

    def _not_confirmed(self, why: str) -> StopReport:
        left = [Leftover("run", self._name, "", "not confirmed")]
        return StopReport(self._name, self._reason, 0.0, left, 0, [f"the stop was not confirmed: {why}"])


def settle_sync(shared: SharedStore, reason: Reason) -> StopReport | None:
    """Take the lease, and write the end of a run that was lost; None if there is none. Blocks."""
    shared.take_lease_sync()
    try:
        while True:
            restored = restore(shared.look_sync().found, reason=reason)
            if restored.lost is None:
                return None
            try:
                shared.appending_log().append_sync(restored.unwritten, after=restored.found.last_seq)
            except StoreFenced:
                raise
            except StoreConflict:  # something was posted meanwhile
                continue
            return restored.lost
    finally:
        shared.release_sync()


def grace_of(request: StopRequested) -> Grace | None:
    """Return the deadlines that a request names."""
    if request.grace is None:
        return None
    names = {one.name for one in fields(Grace) if one.init}
    try:
        return Grace(**{name: value for name, value in request.grace.items() if name in names})
    except ValueError:
        return None
