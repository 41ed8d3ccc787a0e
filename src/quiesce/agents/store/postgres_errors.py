"""What the errors of PostgreSQL mean for a store, and what to do about them.

libpq gives no code for an error while connecting, only words, and a server may say them in another language.
So words that are not known here lead to a general text; the server's own are always at the end of it.
"""

from __future__ import annotations

import psycopg

from .contract import StoreError
from .postgres_server import ServerHung, Woken

# By SQLSTATE, or its class. What was not acknowledged was not written; each text says what to do.
_MEANING = {
    "28": "it refuses this user: check the user and the password, and the server's pg_hba.conf",
    "3D000": "there is no such database: create it (`createdb`), or give the URL of another one",
    "42501": (
        "this user may not do that: the first use makes tables, which needs the right to create in the schema "
        "(GRANT CREATE ON SCHEMA ... TO ...); after that, the right to use what was made is enough"
    ),
    "3F000": "there is no such schema: the next use makes it again",
    "42P01": "the tables of the store were removed while it was in use: the next use makes them again",
    "42883": "the function of the store was removed while it was in use: drop what is left of its tables",
    "53100": "the server's disk is full; what was acknowledged is safe: make room, and try again",
    "53200": "the server is out of memory: try again, with smaller events",
    "53300": "it has no free connection: try again, or raise its max_connections; a store needs up to three",
    "53": "the server is short of something: try again",
    "55P03": "another transaction has locked a conversation or a table for too long; try again",
    "40": "it has undone the transaction because of another one; try again",
    "57014": "it took too long, and was undone; try again, or give PostgresStore a longer timeout",
    "57P": "it is shutting down or starting; try again",
    "25006": (
        "it may only be read: give the primary server; with several hosts in the URL, add target_session_attrs=read-write"
    ),
    "54": "an event, or an id, is larger than PostgreSQL allows",
    "XX": "it reports damage or a bug of its own: look at its log",
    "58": "the server's disk or system reports an error: look at its log",
}

# (words, meaning, whether waiting may help): said while connecting.
_WORDS = (
    ("password", _MEANING["28"], False),
    ("authentication failed", _MEANING["28"], False),
    ("pg_hba.conf", _MEANING["28"], False),
    ("does not exist", _MEANING["3D000"], False),
    (
        "permission denied",
        "this user may not connect to it: GRANT CONNECT ON DATABASE, or another user",
        False,
    ),
    ("could not translate host name", "there is no such host: check the URL", False),
    ("failed to resolve host", "there is no such host: check the URL", False),
    ("certificate", "its certificate is not accepted: check sslmode and sslrootcert", False),
    ("does not support SSL", "it has no TLS, and the URL asks for it: check sslmode", False),
    ("too many clients", _MEANING["53300"], True),
    ("connection slots", _MEANING["53300"], True),
    ("too many connections", _MEANING["53300"], True),
    ("starting up", "it is starting; try again", True),
    ("shutting down", "it is shutting down; try again", True),
    ("recovery mode", "it is recovering from a crash; try again", True),
    ("refused", "there is no server there, or it is not running: start it, or check host and port", True),
    (
        "No such file",
        "there is no server there, or it is not running: start it, or check host and port",
        True,
    ),
    (
        "timeout",
        "it cannot be reached, or it does not answer: check the host, the network and the server",
        True,
    ),
)
_BROKEN = "the connection to it broke; try again"


def waiting_may_help(error: BaseException) -> bool:
    """Whether the next attempt to connect may succeed without anybody doing anything."""
    if isinstance(error, ServerHung):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    known = _known_words(error)
    return known[2] if known else True


def is_not_there(error: BaseException) -> bool:
    """Whether no server answers at that address."""
    return isinstance(error, psycopg.OperationalError) and any(
        words in str(error) for words in ("refused", "No such file")
    )


def explain_postgres(error: BaseException, name: str) -> BaseException:
    """Return what to raise for `error`; `name` is the server's."""
    if isinstance(error, ServerHung):
        text = f"{error}; check it, or give PostgresStore a longer timeout"
        explained = StoreError(f"{name}: {text}")
    elif isinstance(error, Woken):
        explained = StoreError(f"{name}: the store was closed meanwhile")
    elif isinstance(error, StoreError):
        if type(error) is not StoreError:
            return error
        explained = StoreError(*error.args)  # another one for each caller
    elif isinstance(error, psycopg.Error):
        said = error.diag.message_primary or str(error)  # without the statement and the values in it
        explained = StoreError(f"{name}: {_meaning(error)} ({' '.join(said.split())})")
    else:
        return error
    explained.__cause__ = error
    return explained


def _meaning(error: psycopg.Error) -> str:
    code = error.sqlstate or ""
    for length in (5, 3, 2):
        if len(code) == 5 and code[:length] in _MEANING:
            return _MEANING[code[:length]]
    if code:
        return "it reports an error"
    known = _known_words(error)
    return known[1] if known else _BROKEN


def _known_words(error: psycopg.Error) -> tuple[str, str, bool] | None:
    said = str(error)
    return next((known for known in _WORDS if known[0] in said), None)
