"""The tables of a store in PostgreSQL, as its thread uses them: reads, and groups of writes in one transaction.

Used by one thread at a time, through one connection, which is opened on first use.

Invariants
- All writes of a transaction are one statement, `quiesce_write`. It decides about each of them; a refused one
  does not affect the others. It is sent and committed in one round trip.
- What was sent and not answered is in doubt: `StoreInDoubt`. What was not sent was not written; so a
  connection is looked at before it is used, and one that the server has closed is opened again first.
- After a doubt, the next connection first ends the backend of the old one, and waits until it has ended: what
  is read then is what has become of it. If the old attempt is in a server that nothing of this store can
  reach (its process stands still), it may still come: an append is then refused because its position is
  taken, or, if it is not taken, it is what the caller asked for; a message is in the log already, by its id.
- Opening a connection is tried again, at growing intervals, for `timeout` seconds. A caller who has waited
  through all of that does not wait through it once more. So every job ends after about twice the timeout, however
  many there are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import psycopg

from .contract import Holder, StoreError, StoreInDoubt, conflict, fenced, held
from .events import Event, MessageQueued, Snapshot, decode_event, encode_event
from .postgres_errors import explain_postgres, is_not_there, waiting_may_help
from .postgres_schema import prepare_schema, statement_for
from .postgres_server import Connection, Server, ServerHung, end_backend, milliseconds

#: Longest id of a conversation or of a message, in bytes: an index entry of PostgreSQL has room for two of them.
MOST_ID_BYTES = 1000
_PAGE = 1000  # events that are read in one statement
_HINT_BYTES = 7900  # of the 8000 that a notification may have
_ANYTHING = "*"
_HINT_SECONDS = 0.02  # between two hints while there is work

_WRITE = """SELECT * FROM {s}.quiesce_write(
    %s::text[], %b::text[], %s::bigint[], %s::integer[], %s::bigint[], %b::text[], %s, %s::integer[], %s::integer[],
    %b::text[], %s::boolean[], %b::text[])"""
# The number of the last event is in each row, so that it is of the same moment as the events.
_READ = """SELECT c.last_seq, e.seq, e.time, e.payload
    FROM {s}.quiesce_conversations c
    LEFT JOIN {s}.quiesce_events e ON e.conversation_id = c.conversation_id AND e.seq > %s
    WHERE c.conversation_id = %s ORDER BY e.seq LIMIT %s"""
_SNAPSHOTS = """SELECT seq, time, payload FROM {s}.quiesce_events
    WHERE conversation_id = %s AND snapshot ORDER BY seq"""
_HOLDER = """SELECT owner, epoch FROM {s}.quiesce_conversations
    WHERE conversation_id = %s AND holder IS NOT NULL AND NOT pg_try_advisory_xact_lock_shared(holder)"""
_IDS = "SELECT conversation_id FROM {s}.quiesce_conversations WHERE last_seq > 0 ORDER BY conversation_id"


class Row(NamedTuple):
    """An event on its way into the database."""

    payload: str
    is_snapshot: bool
    message_id: str | None  # of a message that is queued

    @classmethod
    def of(cls, event: Event) -> Row:
        """Return the row of an event; ValueError for an id that the database cannot hold."""
        message_id = None
        if isinstance(event, MessageQueued):
            message_id = check_text(event.message_id, "the id of a message")
        return cls(encode_event(event), isinstance(event, Snapshot), message_id)


class Answer(NamedTuple):
    """What became of a write."""

    status: str
    last_seq: int
    epoch: int
    owner: str


class Change(Protocol):
    """A write that waits for its transaction."""

    kind: str
    conversation_id: str
    after: int | None
    epoch: int | None
    owner: str
    rows: Sequence[Row]

    @property
    def log(self) -> object:
        """The log that it appends to, or None: the next append of that log in the same transaction follows it."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether `after` was given by the caller: then it follows that event, whatever was appended before."""
        ...

    def answered(self, answer: Answer) -> None:
        """Take the result."""
        ...

    def refused(self, error: StoreError) -> None:
        """Nothing was written, because of this."""
        ...

    def left_in_doubt(self) -> None:
        """It is not known whether it was written."""
        ...


class _Release:
    """A lease to give up, for which no caller waits: with `epoch`, or else any but the one of epoch `after`."""

    kind = "release"
    owner = ""
    rows: Sequence[Row] = ()
    log = None
    is_exact = True

    def __init__(self, conversation_id: str, epoch: int | None, after: int | None) -> None:
        self.conversation_id = conversation_id
        self.epoch = epoch
        self.after = after

    def answered(self, answer: Answer) -> None:
        """It is given up, or was not held any more."""

    def refused(self, error: StoreError) -> None:
        """Never."""

    def left_in_doubt(self) -> None:
        """It is still owed, and done again."""


class _Doubt(Exception):
    """What was sent was not answered; the cause says why."""


class Database:
    """The tables in one schema of a server."""

    def __init__(self, server: Server, schema: str) -> None:
        self.server = server
        self.schema = schema
        self.channel = channel_of(schema)
        #: Under which advisory lock the leases of this store are.
        self.holder_number = 0
        self._connection: Connection | None = None
        self._was_reached = False
        self._is_bounded = False  # whether the server gives up on a statement by itself
        self._batch: list[Change] = []
        # Leases that ended; they are released in the next transaction that succeeds. Any thread may add to it.
        self._owed: deque[_Release] = deque()
        self._owed_in_batch = 0
        #: The leases of this store that live: their epochs, by conversation.
        self.live: dict[str, int] = {}
        # Since when jobs that are done now have waited, and how and when the last attempt to connect failed.
        self._waiting_since = 0.0
        self._failure: BaseException | None = None
        self._failed_at = 0.0
        # A backend that may still be doing what is in doubt.
        self._doubtful: tuple[int, Any] | None = None
        self._changed: dict[str, None] = {}
        self._hinted_at = 0.0

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.server.name

    # Reads

    def read(self, conversation_id: str, after: int) -> tuple[list[Event], int]:
        """Return the events after number `after`, and the number of the last one in the database."""
        return self._reading(conversation_id, after)

    def load(self, conversation_id: str) -> tuple[list[Event], int]:
        """Return every snapshot and the events after the last one, and the number of the last event."""
        rows = self._query(_SNAPSHOTS, (conversation_id,))
        snapshots = [_decoded(self.name, conversation_id, *row) for row in rows]
        tail, last = self._reading(conversation_id, snapshots[-1].seq if snapshots else 0)
        # Written between the two statements, and read by the second one: only the last snapshot has a tail.
        newer = [place for place, event in enumerate(tail) if isinstance(event, Snapshot)]
        if newer:
            snapshots += [tail[place] for place in newer]
            tail = tail[newer[-1] + 1 :]
        return [*snapshots, *tail], last

    def holder(self, conversation_id: str) -> Holder | None:
        """Return who holds the lease now."""
        rows = self._query(_HOLDER, (conversation_id,))
        return Holder(rows[0][0], rows[0][1]) if rows else None

    def ids(self) -> list[str]:
        """Return the ids of all conversations with events, sorted."""
        return [row[0] for row in self._query(_IDS, ())]

    def _reading(self, conversation_id: str, after: int) -> tuple[list[Event], int]:
        return read_events(self._reader(), self.schema, self.name, conversation_id, after)

    def _query(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return self._reader().execute(statement_for(self.schema, statement), values).fetchall()

    def _reader(self) -> Connection:
        if self._owed:  # who asks who holds a lease is to see it released
            self.begin()
            try:
                self.commit()
            except _Doubt as doubt:  # nothing of the caller's: it is done again
                raise (doubt if doubt.__cause__ is None else doubt.__cause__) from None
        connection = self._connected()
        if self._is_bounded:
            connection.execute("SET statement_timeout = 0")
            self._is_bounded = False
        return connection

    # For the thread that does the jobs: see `job_thread.Place`

    def closed_text(self) -> str:
        """What to tell a caller who comes after the close."""
        return f"the store of {self.name} was closed: make a new PostgresStore"

    def forked_text(self) -> str:
        """What to tell a caller in a forked child."""
        return (
            f"the store of {self.name} was made before a fork, and its connections belong to the parent: "
            "make a new PostgresStore in the child"
        )

    def prepare(self, waiting_since: float) -> None:
        """Those who wait for what comes next have waited since then."""
        self._waiting_since = waiting_since

    def begin(self) -> None:
        """Connect, and begin to gather writes. Nothing is sent until `commit`."""
        self._batch = []
        connection = self._connected()
        self._batch = list(self._owed)
        self._owed_in_batch = len(self._batch)
        if not self._is_bounded:
            bound = str(milliseconds(self.server.server_timeout))
            connection.execute("SELECT set_config('statement_timeout', %s, false)", (bound,))
            self._is_bounded = True

    def owe_release(self, conversation_id: str, epoch: int | None) -> None:
        """Give up a lease in the next transaction; without `epoch`, one whose grant is in doubt.

        From any thread, and from a finalizer: it takes no lock.
        """
        live = self.live.get(conversation_id)
        if epoch is not None and live == epoch:
            self.live.pop(conversation_id, None)
        self._owed.append(_Release(conversation_id, epoch, live if epoch is None else None))

    def add(self, change: Change) -> None:
        """Gather one write for this transaction."""
        self._batch.append(change)

    def commit(self) -> None:
        """Send what was gathered, in one statement that is a transaction of its own, and hand out the answers."""
        batch, self._batch = self._batch, []
        connection = self._connection
        assert connection is not None
        if not batch:
            return
        # Always in the same order: see `postgres_schema`. Changes of one conversation keep theirs.
        batch.sort(key=_conversation_of)
        try:
            values = _values_of(batch, self.holder_number)
            answers = connection.execute(statement_for(self.schema, _WRITE), values).fetchall()
        except BaseException as error:
            if connection.is_settled():
                raise  # answered, so undone; or not sent at all
            self._doubtful = connection.backend
            connection.close()
            for change in batch:
                change.left_in_doubt()
            raise _Doubt from error
        for _ in range(self._owed_in_batch):
            self._owed.popleft()
        for change, answer in zip(batch, answers, strict=True):
            self._hand_out(change, Answer(*answer))

    def _hand_out(self, change: Change, answer: Answer) -> None:
        conversation_id = change.conversation_id
        if answer.status == "done":
            if change.rows:
                self._changed[digest_of(conversation_id)] = None
            change.answered(answer)
        elif answer.status == "fenced":
            change.refused(fenced(conversation_id, self.name, change.epoch or 0, answer.epoch))
        elif answer.status == "held":
            change.refused(held(conversation_id, self.name, Holder(answer.owner, answer.epoch)))
        else:
            expected = answer.last_seq if change.after is None else change.after
            change.refused(conflict(conversation_id, self.name, expected, answer.last_seq))

    def roll_back(self, error: BaseException) -> None:
        """Leave a connection that can be used: the server has undone what it has not committed."""
        self._batch = []
        connection = self._connection
        if connection is None:
            return
        # The tables were removed or the server changed its role: the next use looks at all of that again.
        is_missing = isinstance(error, psycopg.Error) and error.sqlstate in (
            "42P01",
            "3F000",
            "25006",
            "42883",
        )
        if is_missing or not connection.is_settled():
            self.close()

    def explain(self, error: BaseException) -> BaseException:
        """Return what to raise for `error`."""
        if isinstance(error, _Doubt) and error.__cause__ is not None:
            cause = explain_postgres(error.__cause__, self.name)
            doubt = StoreInDoubt(
                f"{cause}; it is not known whether the events were written: read the log to find out"
            )
            doubt.__cause__ = error.__cause__
            return doubt
        return explain_postgres(error, self.name)

    def concerns_all(self, error: BaseException) -> bool:
        """Whether the connection is at fault, and not one of the jobs."""
        connection = self._connection
        return isinstance(error, _Doubt) or connection is None or not connection.is_settled()

    def has_hints(self, busy: bool) -> bool:
        """Whether others are to hear of what was written. While there is work, they hear of it in one message."""
        return bool(self._changed) and not (busy and time.monotonic() - self._hinted_at < _HINT_SECONDS)

    def send_hints(self) -> None:
        """Tell those who watch, in this and other processes, in a transaction of its own.

        One that notifies takes a lock of the whole server for its commit, and may be lost: so it is not synced either.
        """
        changed, self._changed = self._changed, {}
        self._hinted_at = time.monotonic()
        connection = self._connection
        if connection is None or not connection.is_settled():
            return
        with suppress(psycopg.Error, ServerHung):
            connection.execute(
                "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)",
                (self.channel, hint_of(changed)),
            )

    def close(self) -> None:
        """Close the connection, if it is open. The next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Connecting

    def _connected(self) -> Connection:
        if self._connection is not None:
            if not self._connection.has_ended():
                return self._connection
            self.close()
        if self._failure is not None and self._failed_at >= self._waiting_since:
            raise self._failure.with_traceback(None)
        self._failure = None
        self._connection = self._connect_in_time()
        self._was_reached = True
        return self._connection

    def _connect_in_time(self) -> Connection:
        until, pause = time.monotonic() + self.server.timeout, 0.02
        while True:
            try:
                return self._connect(until - time.monotonic())
            except Exception as error:
                helps = waiting_may_help(error) and (self._was_reached or not is_not_there(error))
                if not helps or time.monotonic() + pause > until:
                    self._failure, self._failed_at = error, time.monotonic()
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _connect(self, within: float) -> Connection:
        connection = self.server.connect("store", within=within)
        try:
            if self._doubtful is not None:
                if not end_backend(connection, self._doubtful, self.server.timeout):
                    raise StoreError(
                        f"{self.name}: a write that was not answered is still running there, in backend {self._doubtful[0]}; "
                        "try again"
                    )
                self._doubtful = None
            prepare_schema(connection, self.schema, self.name)
        except BaseException:
            connection.close()
            raise
        self._is_bounded = False
        return connection


def read_events(
    connection: Connection, schema: str, name: str, conversation_id: str, after: int
) -> tuple[list[Event], int]:
    """Return the events of a conversation after number `after`, and the number of the last one in the database."""
    events: list[Event] = []
    last, expected = 0, after
    statement = statement_for(schema, _READ)
    while True:
        rows = connection.execute(statement, (expected, conversation_id, _PAGE)).fetchall()
        for last_seq, seq, moment, payload in rows:
            last = last_seq
            if seq is None:  # there are none after that one
                break
            expected += 1
            if seq != expected:
                raise StoreError(
                    f"conversation {conversation_id!r} in {name} has no event {expected}, but later ones: it was removed"
                )
            events.append(_decoded(name, conversation_id, seq, moment, payload))
        if len(rows) < _PAGE:
            return events, last


def _decoded(name: str, conversation_id: str, seq: int, moment: float, payload: str) -> Event:
    try:
        return decode_event(payload, seq, moment)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"event {seq} of conversation {conversation_id!r} in {name} cannot be read ({error}): "
            "it is damaged, or was written by a newer version of quiesce"
        ) from error


def _conversation_of(change: Change) -> str:
    return change.conversation_id


def _values_of(batch: Sequence[Change], holder_number: int) -> tuple[object, ...]:
    """The parameters of `quiesce_write`."""
    previous: list[int | None] = []
    latest: dict[int, int] = {}  # by log: its last change so far
    firsts, lasts, events = list[int](), list[int](), list[Row]()
    for number, change in enumerate(batch, 1):
        previous.append(None if change.is_exact else latest.get(id(change.log)))
        if change.log is not None:
            latest[id(change.log)] = number
        firsts.append(len(events) + 1)
        events += change.rows
        lasts.append(len(events))
    return (
        [change.kind for change in batch],
        [change.conversation_id for change in batch],
        [change.after for change in batch],
        previous,
        [change.epoch for change in batch],
        [change.owner for change in batch],
        holder_number,
        firsts,
        lasts,
        [row.payload for row in events],
        [row.is_snapshot for row in events],
        [row.message_id for row in events],
    )


def check_text(text: str, what: str) -> str:
    """Return a text that PostgreSQL can hold and index; ValueError for another one."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} may not contain a lone surrogate in a PostgresStore: {text[:80]!r}"
        ) from None
    if "\0" in text:
        raise ValueError(f"{what} may not contain the character NUL in a PostgresStore: {text[:80]!r}")
    if size > MOST_ID_BYTES:
        raise ValueError(
            f"{what} may have {MOST_ID_BYTES} bytes in a PostgresStore, not {size}: {text[:80]!r}..."
        )
    return text


# Hints


def channel_of(schema: str) -> str:
    """The channel of the hints for a schema."""
    return f"quiesce_{blake2b(schema.encode(), digest_size=8).hexdigest()}"


def digest_of(conversation_id: str) -> str:
    """What stands for a conversation in a hint: every user of the database can listen to those."""
    return blake2b(conversation_id.encode(), digest_size=8).hexdigest()


def hint_of(digests: Iterable[str]) -> str:
    """Return the payload that says that these have changed; too many of them, and it says that anything may have."""
    text = " ".join(digests)
    return text if len(text) <= _HINT_BYTES else _ANYTHING


def digests_in(hint: str) -> list[str] | None:
    """Return the digests in a payload; None if anything may have changed. Anyone may have sent it."""
    return None if hint == _ANYTHING else hint.split()
