"""What PostgreSQL says, in our words, so that no slice needs the driver.

Three outcomes: the engine is away or overloaded (`Busy`, try again), a row breaks a rule (`PostgresError` and its
children, with the constraint's name), or the installation is wrong (`Broken`).
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import asyncpg

from handbill.kit.errors import Broken, Busy, EngineRefused, HandbillError, StatementStopped
from handbill.kit.telemetry import metrics


class PostgresAway(Busy):
    """The engine could not be reached, or the connection broke. `maybe_done`: a COMMIT was under way."""

    code = "POSTGRES_AWAY"

    def __init__(self, detail: str, *, maybe_done: bool = False, retry_after: float | None = 1.0) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.maybe_done = maybe_done


class PostgresBusy(Busy):
    """The engine answers, but not now: locks, deadlock, time limit, no free connection. The transaction is undone."""

    code = "POSTGRES_BUSY"


class PostgresStopped(PostgresBusy, StatementStopped):
    """The engine ended this transaction alone: a time limit, a lock, a collision. `sqlstate` says which."""

    def __init__(self, detail: str, *, sqlstate: str) -> None:
        super().__init__(detail, retry_after=1.0)
        self.sqlstate = sqlstate

    @property
    def is_time_limit(self) -> bool:
        return self.sqlstate == "57014"


class TransactionAborted(HandbillError):
    """An error inside the transaction was caught and the transaction went on: PostgreSQL undid all of it at COMMIT.

    It is a bug of the caller, which needs a savepoint around what may fail. Nothing was stored, and nothing that waited
    for the commit was run.
    """

    code = "TRANSACTION_ABORTED"

    def __init__(self) -> None:
        super().__init__(
            "A statement of the transaction had failed before its end, so PostgreSQL undid all of it; nothing was "
            "stored. Report it with the request id: a statement that may fail needs a savepoint."
        )


class PostgresError(EngineRefused):
    """The engine refused a statement. `sqlstate` and `constraint` say why."""

    kind: ClassVar[str] = "refused"

    def __init__(self, message: str, *, sqlstate: str, constraint: str | None, statement: str) -> None:
        super().__init__(f"{statement}: {message}")
        self.message = message
        self.sqlstate = sqlstate
        self.constraint = constraint
        self.statement = statement


class UniqueViolation(PostgresError):
    kind = "unique"


class ForeignKeyViolation(PostgresError):
    kind = "foreign key"


class CheckViolation(PostgresError):
    kind = "check"


class PermissionDenied(PostgresError):
    """42501: the role may not, or a row-level policy forbids it."""

    kind = "permission"


# InternalClientError is what the driver says when the server's goodbye arrived between two statements: the next one
# finds the connection in a state that it cannot leave, before a byte of it was sent.
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)

_BY_STATE: dict[str, type[PostgresError]] = {
    "23505": UniqueViolation,
    "23P01": UniqueViolation,
    "23503": ForeignKeyViolation,
    "23514": CheckViolation,
    "23502": CheckViolation,
    "42501": PermissionDenied,
}

_AWAY_STATES = ("57P01", "57P02", "57P03", "57P05", "53300", "25006", "08P01")
_BUSY_STATES = ("40001", "40P01", "55P03", "57014", "53100", "53200", "25P03")
_STOPPED_STATES = ("40001", "40P01", "55P03", "57014", "25P03")
_LOGIN_STATES = ("28P01", "28000", "3D000")

_WORDS = {
    "40001": "two transactions collided",
    "40P01": "two transactions waited for each other",
    "55P03": "a lock was not free in time",
    "57014": "the statement took longer than its time limit",
    "53100": "the database's disk is full",
    "53200": "the database is out of memory",
    "25P03": "the transaction stood idle for too long",
}


def is_away(error: BaseException) -> bool:
    """Whether the engine, rather than the statement, is the trouble."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state in _AWAY_STATES or state.startswith("08")
    if isinstance(error, asyncpg.InterfaceError):
        return "connection" in str(error).lower() or "pool is clos" in str(error).lower()
    gone = OSError | asyncio.TimeoutError | asyncio.IncompleteReadError | asyncpg.InternalClientError
    return isinstance(error, gone)


def translated(error: BaseException, statement: str, *, committing: bool = False) -> BaseException:
    """Our error for the driver's; anything that is not the driver's comes back as it is."""
    if is_away(error):
        metrics.PG_ERRORS.labels("away").inc()
        if committing:
            return PostgresAway(
                "The connection to PostgreSQL broke during the commit; whether it was stored is not known.",
                maybe_done=True,
            )
        return PostgresAway(f"PostgreSQL is away ({_brief(error)}); nothing was stored, try again.")
    if not isinstance(error, asyncpg.PostgresError):
        return error
    state = error.sqlstate or "XX000"
    metrics.PG_ERRORS.labels(state).inc()
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        return PostgresBusy("The schema changed under a prepared statement; nothing was stored, try again.")
    if state in _BUSY_STATES:
        detail = f"PostgreSQL: {_WORDS[state]} ({statement}); nothing was stored, try again."
        if state in _STOPPED_STATES:
            return PostgresStopped(detail, sqlstate=state)
        return PostgresBusy(detail, retry_after=1.0)
    if state in _LOGIN_STATES:
        return Broken(
            f"PostgreSQL refused the login: {error}. Check the URL and the role's password.", code="POSTGRES_LOGIN"
        )
    if state.startswith("22"):
        return unfit(error, statement, state)
    kind = _BY_STATE.get(state, PostgresError)
    constraint = getattr(error, "constraint_name", None)
    message = getattr(error, "message", None) or _brief(error)  # without DETAIL, which shows the row
    return kind(message, sqlstate=state, constraint=constraint, statement=statement)


def unfit(error: BaseException, statement: str, sqlstate: str = "22000") -> PostgresError:
    """A value that does not fit its column: one bad row, named without showing what was in it."""
    what = f"a value does not fit ({type(error).__name__})"
    return PostgresError(what, sqlstate=sqlstate, constraint=None, statement=statement)


def _brief(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
