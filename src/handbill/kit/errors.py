"""The one error tree. Each error says what happened, what was kept, and what to do; one handler renders it.

`code` is stable and documented in codes.py; the HTTP status belongs to the class, not to the place that raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from handbill.kit.codes import CODES

ENGINES = ("POSTGRES_", "REDIS_", "CLICKHOUSE_")
"""How the codes of an engine's own trouble begin."""


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong with one field of what was sent."""

    field: str
    """The field or parameter by the name it was sent with; a dot goes into an object, brackets into a list."""
    reason: str
    """What is wrong with it, or what it must be."""


class HandbillError(Exception):
    """Root of the tree. `detail` is for a person; `code` is for a program."""

    status: ClassVar[int] = 500
    code: str = "INTERNAL"
    title: ClassVar[str] = "Something went wrong on our side"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        faults: Sequence[Fault] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        if code is not None:
            self.code = code
        self.faults = tuple(faults)
        self.retry_after = retry_after

    @property
    def public_detail(self) -> str:
        """What a caller may read: trouble of an engine or of the installation is described by its code alone.

        `detail` may hold addresses, limits, and how much work of all tenants waits: for logs and the command line.
        """
        if isinstance(self, Broken) or self.code.startswith(ENGINES):
            return CODES.get(self.code, CODES[Broken.code])
        return self.detail


class Invalid(HandbillError):
    status = 400
    code = "INVALID"
    title = "The request is not valid"


class Unauthorized(HandbillError):
    status = 401
    code = "UNAUTHORIZED"
    title = "No valid credentials"


class Forbidden(HandbillError):
    status = 403
    code = "FORBIDDEN"
    title = "Not allowed"


class NotFound(HandbillError):
    status = 404
    code = "NOT_FOUND"
    title = "Not found"


class NotAllowed(HandbillError):
    status = 405
    code = "METHOD_NOT_ALLOWED"
    title = "Method not allowed"


class TooSlow(HandbillError):
    """The client sends its body too slowly; the connection is closed."""

    status = 408
    code = "BODY_TOO_SLOW"
    title = "The body came too slowly"


class Conflict(HandbillError):
    status = 409
    code = "CONFLICT"
    title = "It conflicts with what is there"


class PreconditionFailed(HandbillError):
    status = 412
    code = "PRECONDITION_FAILED"
    title = "It changed since you read it"


class TooLarge(HandbillError):
    status = 413
    code = "TOO_LARGE"
    title = "Too large"


class UrlTooLong(HandbillError):
    status = 414
    code = "URL_TOO_LONG"
    title = "The URL is too long"


class HeadTooLarge(HandbillError):
    status = 431
    code = "HEAD_TOO_LARGE"
    title = "Request header fields too large"


class Unsupported(HandbillError):
    status = 415
    code = "UNSUPPORTED_MEDIA_TYPE"
    title = "Unsupported media type"


class Unprocessable(HandbillError):
    """The request can be read, but it names what is not there: nothing was done."""

    status = 422
    code = "UNPROCESSABLE"
    title = "It names what is not there"


class Throttled(HandbillError):
    """The caller sends too much: 429 with Retry-After."""

    status = 429
    code = "THROTTLED"
    title = "Too many requests"


class Busy(HandbillError):
    """An engine is away or full: nothing was done, try again. Never poison."""

    status = 503
    code = "BUSY"
    title = "Busy, try again"


class StatementStopped(Busy):
    """The engine stopped one statement: it reached its time limit, waited for a lock or collided with another.

    Nothing was done and it may be tried again, but the engine answers: the statements of others pass.
    """


class EngineRefused(Exception):
    """PostgreSQL, Redis or ClickHouse answered with an error that is about this statement or this data.

    The engine is there and its neighbours' statements pass: whoever works for many skips or halves what was refused.
    An engine that is away or busy is `Busy`; one whose set-up is wrong is `Broken`.
    """


class Broken(HandbillError):
    """The installation itself is wrong (schema, permissions, corrupt file): a person must act."""

    status = 500
    code = "BROKEN"
    title = "The installation needs attention"
