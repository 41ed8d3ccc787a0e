"""The tables of a store in PostgreSQL, made and migrated here, and the one function that writes to them.

Invariants
- A migration is one transaction under an advisory lock: of processes that start at once, one makes the tables
  and the others find them made. A newer schema is refused, and left alone.
- The row of a conversation in `quiesce_conversations` is what serialises its writers: `quiesce_write` locks
  it, looks at it, and only then writes. It holds the number of the last event, and the latest lease.
- `quiesce_write` decides about each job by itself and raises nothing for one that is refused: an error would
  undo the others in the same transaction. It runs in one statement, so in one round trip, and a client that
  stops in the middle of it cannot leave a row locked.
- Rows are locked in the order of their ids, in every process: two groups that have conversations in common
  wait for each other, and cannot deadlock.
- The row stays when a conversation with leases is deleted, with the number of the latest one: an old lease
  must not be valid again.

Whether a holder lives is not in the tables: the row names a number, and as long as the store of the holder
lives, it holds the advisory lock of that number (`postgres_holder`).
"""

from __future__ import annotations

from psycopg import sql

from .contract import StoreError
from .postgres_server import Connection

SCHEMA_VERSION = 1
_MIGRATION_SECONDS = 600.0
# By the version that they lead to. A new schema goes through all of them.
MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (
        "CREATE TABLE {s}.quiesce_schema (version integer NOT NULL)",
        "INSERT INTO {s}.quiesce_schema VALUES (0)",
        # COLLATE "C": sorted as Python sorts, and independent of the system's locales. With room in each
        # page, an update touches no index.
        """CREATE TABLE {s}.quiesce_conversations (
            conversation_id text COLLATE "C" PRIMARY KEY,
            last_seq bigint NOT NULL DEFAULT 0,
            epoch bigint NOT NULL DEFAULT 0,
            owner text NOT NULL DEFAULT '',
            holder bigint
        ) WITH (fillfactor = 70)""",
        """CREATE TABLE {s}.quiesce_events (
            conversation_id text COLLATE "C" NOT NULL,
            seq bigint NOT NULL,
            time double precision NOT NULL,
            payload text NOT NULL,
            snapshot boolean NOT NULL DEFAULT false,
            PRIMARY KEY (conversation_id, seq)
        )""",
        "CREATE INDEX quiesce_snapshots ON {s}.quiesce_events (conversation_id, seq) WHERE snapshot",
        """CREATE TABLE {s}.quiesce_messages (
            conversation_id text COLLATE "C" NOT NULL,
            message_id text COLLATE "C" NOT NULL,
            PRIMARY KEY (conversation_id, message_id)
        )""",
        # One entry per job in the first arrays, one per event in the last three; `firsts` and `lasts` say
        # which events are those of a job. `previous` is an earlier job of the same log, whose last event this
        # one is to follow.
        """CREATE FUNCTION {s}.quiesce_write(
            kinds text[], conversations text[], afters bigint[], previous integer[], epochs bigint[], owners text[],
            store_number bigint, firsts integer[], lasts integer[],
            payloads text[], are_snapshots boolean[], messages text[]
        ) RETURNS TABLE (job_status text, job_last bigint, job_epoch bigint, job_owner text)
        LANGUAGE plpgsql AS $function$
        DECLARE
            conversation text;
            known {s}.quiesce_conversations;
            statuses text[] := '{{}}';
            ends bigint[] := '{{}}';
            status text;
            expected bigint;
            reached bigint;
            moment double precision := extract(epoch FROM clock_timestamp());
        BEGIN
            FOR job IN 1 .. cardinality(kinds) LOOP
                conversation := conversations[job];
                status := 'done';
                SELECT * INTO known FROM {s}.quiesce_conversations c
                    WHERE c.conversation_id = conversation FOR UPDATE;
                IF NOT FOUND THEN
                    INSERT INTO {s}.quiesce_conversations (conversation_id) VALUES (conversation)
                        ON CONFLICT DO NOTHING;
                    SELECT * INTO known FROM {s}.quiesce_conversations c
                        WHERE c.conversation_id = conversation FOR UPDATE;
                END IF;
                reached := known.last_seq;

                IF kinds[job] = 'append' THEN
                    expected := afters[job];
                    IF previous[job] IS NOT NULL THEN
                        expected := ends[previous[job]];
                        IF statuses[previous[job]] <> 'done' THEN
                            status := statuses[previous[job]];
                        END IF;
                    END IF;
                    IF epochs[job] IS NOT NULL THEN
                        IF epochs[job] <> known.epoch THEN
                            status := 'fenced';
                        END IF;
                    ELSIF known.holder IS NOT NULL AND NOT pg_try_advisory_xact_lock_shared(known.holder) THEN
                        status := 'held';
                    END IF;
                    IF status = 'done' AND expected IS NOT NULL AND expected <> known.last_seq THEN
                        status := 'conflict';
                    END IF;
                    IF status = 'done' AND lasts[job] >= firsts[job] THEN
                        reached := known.last_seq + lasts[job] - firsts[job] + 1;
                        INSERT INTO {s}.quiesce_events
                            SELECT conversation, known.last_seq + i - firsts[job] + 1, moment, payloads[i], are_snapshots[i]
                            FROM generate_series(firsts[job], lasts[job]) AS i;
                        INSERT INTO {s}.quiesce_messages
                            SELECT conversation, messages[i] FROM generate_series(firsts[job], lasts[job]) AS i
                            WHERE messages[i] IS NOT NULL ON CONFLICT DO NOTHING;
                        UPDATE {s}.quiesce_conversations c SET last_seq = reached WHERE c.conversation_id = conversation;
                    END IF;

                ELSIF kinds[job] = 'post' THEN
                    FOR i IN firsts[job] .. lasts[job] LOOP
                        IF messages[i] IS NOT NULL THEN
                            INSERT INTO {s}.quiesce_messages VALUES (conversation, messages[i])
                                ON CONFLICT DO NOTHING;
                            CONTINUE WHEN NOT FOUND;
                        END IF;
                        reached := reached + 1;
                        INSERT INTO {s}.quiesce_events
                            VALUES (conversation, reached, moment, payloads[i], are_snapshots[i]);
                    END LOOP;
                    IF reached > known.last_seq THEN
                        UPDATE {s}.quiesce_conversations c SET last_seq = reached WHERE c.conversation_id = conversation;
                    END IF;

                ELSIF kinds[job] = 'lease' THEN
                    expected := coalesce(epochs[job], known.epoch + 1);
                    IF epochs[job] IS NULL AND known.holder IS NOT NULL
                            AND NOT pg_try_advisory_xact_lock_shared(known.holder) THEN
                        status := 'held';
                    ELSIF expected <= known.epoch THEN
                        status := 'fenced';
                    ELSE
                        UPDATE {s}.quiesce_conversations c
                            SET epoch = expected, owner = owners[job], holder = store_number
                            WHERE c.conversation_id = conversation;
                        known.epoch := expected;
                    END IF;

                ELSIF kinds[job] = 'release' THEN
                    -- Without an epoch: a lease whose grant was in doubt, unless it is the one that is known (`afters`).
                    UPDATE {s}.quiesce_conversations c SET holder = NULL
                        WHERE c.conversation_id = conversation AND c.holder = store_number
                            AND c.epoch = coalesce(epochs[job], c.epoch) AND c.epoch IS DISTINCT FROM afters[job];

                ELSIF kinds[job] = 'delete' THEN
                    DELETE FROM {s}.quiesce_events e WHERE e.conversation_id = conversation;
                    DELETE FROM {s}.quiesce_messages m WHERE m.conversation_id = conversation;
                    IF known.epoch = 0 THEN
                        DELETE FROM {s}.quiesce_conversations c WHERE c.conversation_id = conversation;
                    ELSE
                        UPDATE {s}.quiesce_conversations c
                            SET last_seq = 0, owner = CASE WHEN c.holder IS NULL THEN '' ELSE c.owner END
                            WHERE c.conversation_id = conversation;
                    END IF;
                END IF;

                statuses[job] := status;
                ends[job] := reached;
                job_status := status;
                -- Of a post whose messages were all there already, nothing was added.
                job_last := CASE WHEN kinds[job] = 'post' AND reached = known.last_seq THEN 0 ELSE reached END;
                job_epoch := known.epoch;
                job_owner := known.owner;
                RETURN NEXT;
            END LOOP;
        END $function$""",
    ),
}


def prepare_schema(connection: Connection, schema: str, name: str) -> None:
    """Make the tables, or bring them to this version; `name` is the server's, for messages."""
    version = _version(connection, schema)
    if version is None or version < SCHEMA_VERSION:
        # A change of many rows takes its time, and says nothing until it is done.
        usual, connection.timeout = connection.timeout, max(connection.timeout, _MIGRATION_SECONDS)
        with connection.transaction():
            # Its number is the same in every process; the other name of it keeps it apart from locks of other
            # programs.
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"quiesce schema {schema}",)
            )
            version = _version(connection, schema)  # another process may have done it meanwhile
            if version is None:
                # Not IF NOT EXISTS alone: that needs the right to make schemas even where it is there.
                if not _exists(connection, schema):
                    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
                version = 0
            for step in range(version + 1, SCHEMA_VERSION + 1):
                for statement in MIGRATIONS[step]:
                    connection.execute(statement_for(schema, statement))
            if version < SCHEMA_VERSION:
                connection.execute(
                    statement_for(schema, "UPDATE {s}.quiesce_schema SET version = %s"), (SCHEMA_VERSION,)
                )
                version = SCHEMA_VERSION
        connection.timeout = usual
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{name}: the tables in schema {schema!r} were made by a newer version of quiesce (version {version}, "
            f"and this one knows {SCHEMA_VERSION}): they were left as they are. Upgrade quiesce, or give another schema"
        )


def statement_for(schema: str, statement: str) -> sql.Composed:
    """Return a statement in which `{s}` is the schema."""
    # All of them are written here, or in a module next to this one.
    return sql.SQL(statement).format(s=sql.Identifier(schema))  # pyright: ignore[reportArgumentType]


def _exists(connection: Connection, schema: str) -> bool:
    found = connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema,))
    return found.fetchone() is not None


def _version(connection: Connection, schema: str) -> int | None:
    found = connection.execute(
        """SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = %s AND c.relname = 'quiesce_schema'""",
        (schema,),
    ).fetchone()
    if found is None:
        return None
    row = connection.execute(statement_for(schema, "SELECT version FROM {s}.quiesce_schema")).fetchone()
    return None if row is None else int(row[0])
