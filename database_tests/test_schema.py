"""Tables that are made, migrated, refused, or removed while they are in use."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from tests.agents.test_store import message, said

from database_tests.server import PostgresServer
from quiesce.agents import PostgresStore
from quiesce.agents.store import StoreError, postgres_schema

pytestmark = pytest.mark.real_time


def test_nothing_is_made_before_the_first_use(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(server.url, schema=schema)
    log = store.open("a")
    find = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
    assert server.query(find, schema) == [(0,)]
    assert store._database._connection is None
    log.read_sync()
    assert server.query(find, schema) == [(1,)]
    store.close_sync()


MAKE = """
    import sys
    from quiesce.agents import PostgresStore
    from quiesce.agents.store import ItemPopped
    store = PostgresStore(sys.argv[1], schema=sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    store.open(sys.argv[3]).append_sync([ItemPopped()])
    store.close_sync()
"""


@pytest.mark.time_limit(60)
def test_of_eight_processes_that_start_at_once_one_makes_the_tables(
    server: PostgresServer, schema: str
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(MAKE), server.url, schema, f"c{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, said_at_end = process.communicate(timeout=30)
        assert (process.returncode, said_at_end) == (0, "")
    assert server.query(f"SELECT version FROM {schema}.quiesce_schema") == [(postgres_schema.SCHEMA_VERSION,)]
    with PostgresStore(server.url, schema=schema) as store:
        assert len(store.ids_sync()) == 8


def test_tables_of_a_newer_version_are_refused_and_left_as_they_are(
    server: PostgresServer, schema: str
) -> None:
    with PostgresStore(server.url, schema=schema) as store:
        store.open("a").append_sync([message("one")])
    server.query(f"UPDATE {schema}.quiesce_schema SET version = 1000")
    with PostgresStore(server.url, schema=schema) as store:
        for call in (store.ids_sync, store.open("a").read_sync, lambda: store.lease_sync("a")):
            with pytest.raises(StoreError, match=r"newer version of quiesce .version 1000.*left as they are"):
                call()
    assert server.query(f"SELECT version FROM {schema}.quiesce_schema") == [(1000,)]
    assert server.query(f"SELECT count(*) FROM {schema}.quiesce_events") == [(1,)]


def test_older_tables_are_migrated_and_keep_what_is_in_them(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresStore(server.url, schema=schema) as store:
        store.open("a").append_sync([message("one")])
        newer = postgres_schema.SCHEMA_VERSION + 1
        with monkeypatch.context() as patched:
            patched.setattr(postgres_schema, "SCHEMA_VERSION", newer)
            patched.setitem(
                postgres_schema.MIGRATIONS,
                newer,
                ("ALTER TABLE {s}.quiesce_events ADD COLUMN note text NOT NULL DEFAULT 'new'",),
            )
            with PostgresStore(server.url, schema=schema) as later:
                assert said(later.open("a").read_sync()) == ["one"]
                later.open("a").append_sync([message("two")])
            assert server.query(f"SELECT version FROM {schema}.quiesce_schema") == [(newer,)]
            assert server.query(f"SELECT DISTINCT note FROM {schema}.quiesce_events") == [("new",)]
        # The older one, which is still running, finds out at its next connection.
        server.cut("store")
        with pytest.raises(StoreError, match="newer version of quiesce"):
            store.open("a").append_sync([message("three")])


def test_a_migration_that_fails_changes_nothing(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresStore(server.url, schema=schema) as store:
        store.open("a").append_sync([message("one")])
    newer = postgres_schema.SCHEMA_VERSION + 1
    with monkeypatch.context() as patched:
        patched.setattr(postgres_schema, "SCHEMA_VERSION", newer)
        patched.setitem(
            postgres_schema.MIGRATIONS,
            newer,
            (
                "ALTER TABLE {s}.quiesce_events ADD COLUMN note text",
                "ALTER TABLE {s}.nothing ADD COLUMN x text",
            ),
        )
        with PostgresStore(server.url, schema=schema) as later, pytest.raises(StoreError):
            later.ids_sync()
    with PostgresStore(server.url, schema=schema) as store:
        assert said(store.open("a").read_sync()) == ["one"]
        assert store.open("a").append_sync([message("two")]) == 2


@pytest.mark.parametrize("name", ['my "own" schema', "Ünï", "a'b; DROP TABLE x --", "100{0}{s}"])
def test_a_schema_may_have_any_name(server: PostgresServer, name: str) -> None:
    with PostgresStore(server.url, schema=name) as store:
        store.open("a").append_sync([message("one")])
        lease = store.lease_sync("a")
        lease.release_sync()
        assert said(store.open("a").read_sync()) == ["one"]
    assert (name,) in server.query("SELECT nspname::text FROM pg_namespace")


@pytest.mark.parametrize("name", ["", "x" * 64, "a\0b", "100%s"])
def test_a_schema_needs_a_name_that_postgresql_can_hold(server: PostgresServer, name: str) -> None:
    with pytest.raises(ValueError, match="the name of a schema"):
        PostgresStore(server.url, schema=name)


def test_tables_that_were_removed_are_made_again_at_the_next_use_but_one(
    server: PostgresServer, schema: str
) -> None:
    with PostgresStore(server.url, schema=schema) as store:
        store.open("a").append_sync([message("one")])
        server.query(f'DROP SCHEMA "{schema}" CASCADE')
        with pytest.raises(StoreError, match=r"removed while it was in use|no such schema"):
            store.open("a").append_sync([message("two")])
        assert store.ids_sync() == []
        assert store.open("a").append_sync([message("one")]) == 1


def test_an_event_that_was_removed_or_damaged_is_named(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    store.open("a").append_sync([message(text) for text in "abc"])
    server.query(f"UPDATE {schema}.quiesce_events SET payload = '{{' WHERE seq = 2")
    with pytest.raises(StoreError, match=r"event 2 of conversation 'a' in PostgreSQL at .* cannot be read"):
        store.open("a").read_sync()
    server.query(f"DELETE FROM {schema}.quiesce_events WHERE seq = 2")
    with pytest.raises(StoreError, match="has no event 2, but later ones"):
        store.open("a").read_sync()


def test_a_conversation_can_be_read_with_any_tool(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    store.open("support-7").append_sync([message("My printer is on fire.")])
    rows = server.query(
        f"""SELECT seq, payload::jsonb #>> '{{item,content}}', to_timestamp(time) > now() - interval '1 minute'
        FROM {schema}.quiesce_events WHERE conversation_id = 'support-7'"""
    )
    assert rows == [(1, "My printer is on fire.", True)]
