"""What a store says when its server cannot be used: which one, why, and what to do; and never the password."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator

import pytest
from tests.agents.test_store import message

from database_tests.server import PostgresServer
from quiesce.agents import PostgresStore
from quiesce.agents.store import StoreClosed, StoreError

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(40)]
PASSWORD = "correct-horse"


def failure(url: str, *, schema: str = "public", timeout: float = 2.0) -> StoreError:
    with PostgresStore(url, schema=schema, timeout=timeout) as store:
        with pytest.raises(StoreError) as raised:
            store.ids_sync()
        assert PASSWORD not in repr(store)
    for text in (str(raised.value), "".join(traceback.format_exception(raised.value))):
        assert PASSWORD not in text
    return raised.value


@pytest.fixture(scope="session")
def users(server: PostgresServer) -> PostgresServer:
    server.query(f"CREATE ROLE secretive LOGIN PASSWORD '{PASSWORD}'")
    server.query("CREATE ROLE weak LOGIN")
    server.query("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    return server


def test_a_server_that_is_not_there_is_named_at_once() -> None:
    began = time.monotonic()
    error = failure(f"postgresql://me:{PASSWORD}@127.0.0.1:1/app", timeout=10)
    assert time.monotonic() - began < 2
    assert "PostgreSQL at 127.0.0.1:1, database app: there is no server there, or it is not running" in str(
        error
    )


def test_a_socket_that_is_not_there_is_named() -> None:
    assert "there is no server there" in str(failure("host=/nowhere dbname=app"))


def test_a_wrong_password_is_not_tried_again(users: PostgresServer) -> None:
    began = time.monotonic()
    wrong = f"postgresql://secretive:{PASSWORD}-not@127.0.0.1:{users.port}/app"
    assert "refuses this user: check the user and the password" in str(failure(wrong, timeout=10))
    assert time.monotonic() - began < 2
    none = f"postgresql://secretive@127.0.0.1:{users.port}/app"
    assert "check the user and the password" in str(failure(none, timeout=10))


def test_the_right_password_is_in_no_message_either(users: PostgresServer, schema: str) -> None:
    url = f"postgresql://secretive:{PASSWORD}@127.0.0.1:{users.port}/app"
    error = failure(url, schema=schema)  # it may not create a schema
    assert "this user may not do that: the first use makes tables" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{PASSWORD}@host:port:1/app?x=y",
        f"password={PASSWORD} nonsense",
        f"host=a {PASSWORD}",
        f"postgresql://me:{PASSWORD}@host/app?unknown_option=1",
        f"mysql://me:{PASSWORD}@host/app",
    ],
)
def test_what_is_not_a_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="needs a PostgreSQL URL such as") as raised:
        PostgresStore(url)
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))


def test_a_database_that_is_not_there_is_named(server: PostgresServer) -> None:
    error = failure(server.tcp_url.replace("/app", "/nothing"), timeout=10)
    assert "database nothing: there is no such database: create it" in str(error)


def test_a_user_who_may_not_create_tables_is_told_so_and_one_who_may_use_them_can(
    users: PostgresServer, schema: str
) -> None:
    weak = f"postgresql://weak@127.0.0.1:{users.port}/app"
    assert "the right to create in the schema" in str(failure(weak))
    with PostgresStore(users.url, schema=schema) as store:
        store.ids_sync()
    users.query(f"GRANT USAGE ON SCHEMA {schema} TO weak")
    users.query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO weak")
    with PostgresStore(weak, schema=schema) as store:
        lease = store.lease_sync("a")
        assert lease.log.append_sync([message("one")]) == 1
        lease.release_sync()
        assert store.delete_sync("a")


def test_a_database_of_another_encoding_is_refused(server: PostgresServer) -> None:
    server.query("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    error = failure(server.tcp_url.replace("/app", "/latin"))
    assert "has the encoding LATIN1" in str(error)
    assert "give a database with ENCODING 'UTF8'" in str(error)


@pytest.fixture
def crowded(server: PostgresServer) -> Iterator[PostgresServer]:
    server.query("CREATE ROLE crowded LOGIN CONNECTION LIMIT 1")
    yield server
    server.query("DROP ROLE crowded")


def test_too_many_connections_are_waited_for_and_then_named(crowded: PostgresServer, schema: str) -> None:
    url = f"postgresql://crowded@127.0.0.1:{crowded.port}/app"
    with crowded.session(user="crowded"):
        began = time.monotonic()
        error = failure(url, timeout=2)
        assert time.monotonic() - began > 0.5
    assert "it has no free connection" in str(error)


def test_settings_of_the_role_cannot_make_an_acknowledged_append_less_durable(
    server: PostgresServer, schema: str
) -> None:
    server.query("CREATE ROLE hasty LOGIN SUPERUSER")
    for setting in (
        "synchronous_commit = off",
        "default_transaction_isolation = serializable",
        "statement_timeout = 100",
    ):
        server.query(f"ALTER ROLE hasty SET {setting}")
    with PostgresStore(f"postgresql://hasty@127.0.0.1:{server.port}/app", schema=schema) as store:
        store.open("a").append_sync([message("one")])
        connection = store._database._connection
        assert connection is not None
        for name, value in (
            ("synchronous_commit", "on"),
            ("default_transaction_isolation", "read committed"),
            ("statement_timeout", "7500ms"),
        ):
            assert connection.execute("SELECT current_setting(%s)", (name,)).fetchone() == (value,)


def test_a_database_that_may_only_be_read_says_so(server: PostgresServer, schema: str) -> None:
    with PostgresStore(server.url, schema=schema) as store:
        store.ids_sync()
        server.query("CREATE ROLE reader LOGIN SUPERUSER")
        server.query("ALTER ROLE reader SET default_transaction_read_only = on")
    with PostgresStore(f"postgresql://reader@127.0.0.1:{server.port}/app", schema=schema) as store:
        assert store.ids_sync() == []
        with pytest.raises(StoreError, match="it may only be read: give the primary server"):
            store.open("a").append_sync([message("one")])


def test_a_server_that_is_shut_down_is_waited_for_and_then_named(server: PostgresServer, schema: str) -> None:
    with PostgresStore(server.url, schema=schema, timeout=1.0) as store:
        store.ids_sync()
        server.stop()
        try:
            began = time.monotonic()
            with pytest.raises(StoreError, match="there is no server there, or it is not running"):
                store.ids_sync()
            assert 0.5 < time.monotonic() - began < 3
        finally:
            server.start()
        assert store.ids_sync() == []


def test_a_closed_store_says_what_to_do(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(server.url, schema=schema)
    store.close_sync()
    for call in (store.ids_sync, lambda: store.open("a"), lambda: store.lease_sync("a")):
        with pytest.raises(StoreClosed, match="was closed: make a new PostgresStore"):
            call()


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_more_than_nothing(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds"):
        PostgresStore("dbname=app", timeout=timeout)


def test_without_psycopg_the_extra_is_named_and_nothing_else_needs_it() -> None:
    program = """
        import sys
        sys.modules["psycopg"] = None
        import quiesce.agents
        from quiesce.agents import PostgresStore
        try:
            PostgresStore("dbname=app")
        except ImportError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert "PostgresStore needs the package 'psycopg', which is not installed" in done.stdout
    assert "pip install 'quiesce[postgres]'" in done.stdout


def test_agents_do_not_load_psycopg() -> None:
    program = "import sys, quiesce.agents; quiesce.agents.PostgresStore; print('psycopg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
