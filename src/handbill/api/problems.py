"""One handler renders every error as problem+json (RFC 9457), whoever raised it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from handbill.api.parameters import Parameters
from handbill.infra.postgres import PostgresError
from handbill.kit import errors
from handbill.kit.errors import Fault, HandbillError
from handbill.kit.faults import faults_of
from handbill.kit.telemetry import logs

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:handbill:error:"

log = logs.get("api")

_BY_STATUS: dict[int, tuple[type[HandbillError], str]] = {
    400: (errors.Invalid, "The request could not be read."),
    401: (errors.Unauthorized, "Credentials are needed."),
    403: (errors.Forbidden, "This is not allowed."),
    404: (errors.NotFound, "There is nothing at this address."),
    405: (errors.NotAllowed, "The address is there, but not for this method."),
    413: (errors.TooLarge, "The body is too large; nothing was kept."),
    415: (errors.Unsupported, "The body must be application/json."),
}

# Text that PostgreSQL cannot hold: a NUL character, in a text or inside JSON.
_UNSTORABLE = ("22021", "22P05")


class Problem(msgspec.Struct, frozen=True):
    """What went wrong, for a person (`title`, `detail`) and for a program (`code`, `faults`)."""

    type: str
    """A URI that names the kind of error; it ends with `code`."""
    title: str
    """The kind of error in a few words."""
    status: int
    """The HTTP status of the answer."""
    detail: str
    """What happened and what to do, for a person to read."""
    code: str
    """The kind of error as a constant, for programs to decide by."""
    instance: str
    """The id of the request, as in `X-Request-Id` and in the log."""
    faults: list[Fault] = []
    """What is wrong with which field; empty where no field is at fault."""


def problem(error: HandbillError, request_id: str) -> Problem:
    return Problem(
        type=_TYPE + error.code,
        title=error.title,
        status=error.status,
        detail=error.public_detail,
        code=error.code,
        instance=request_id,
        faults=list(error.faults),
    )


def headers_of(error: HandbillError) -> dict[str, str]:
    found = {"Cache-Control": "no-store"}  # what is not there now may be there a second later
    if error.retry_after is not None:
        found["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    elif error.status == 503:
        found["Retry-After"] = "1"
    if error.status == 408:
        found["Connection"] = "close"
    if error.status == 401:
        found["WWW-Authenticate"] = "Bearer"
    return found


def translated(error: Exception) -> HandbillError:
    """Any error as one of ours. What we did not foresee says nothing to the caller and everything to the log."""
    if isinstance(error, HandbillError):
        return error
    if isinstance(error, HTTPException):
        kind, detail = _BY_STATUS.get(error.status_code, (errors.HandbillError, "Something went wrong on our side."))
        return kind(detail)
    if isinstance(error, PostgresError) and error.sqlstate in _UNSTORABLE:
        return errors.Invalid("A text holds a character that cannot be stored (NUL); nothing was changed.")
    return errors.HandbillError("Something went wrong on our side; nothing more is known here.")


def render(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler, for every exception there is."""
    request_id = str(request.scope.get("state", {}).get("request_id", ""))
    known = _with_faults(request, error) if isinstance(error, HTTPException) else translated(error)
    if known.status >= 500 and known.status != 503:
        log.error("request-failed", request_id=request_id, error=type(error).__name__, exc_info=error)
    elif known.public_detail != known.detail:
        log.warning("request.unavailable", request_id=request_id, code=known.code, reason=known.detail)
    body = msgspec.json.encode(problem(known, request_id))
    return Response(body, status_code=known.status, media_type=MEDIA_TYPE, headers=headers_of(known))


def _with_faults(request: Request[Any, Any, Any], error: HTTPException) -> HandbillError:
    """A refused request with every field's fault: those of the body found anew, those of parameters as told."""
    # Litestar takes a bad field of the body for a bad dependency where both have one name, and answers 500.
    if error.status_code != 400 and not isinstance(error.__cause__, msgspec.ValidationError):
        return translated(error)
    field = getattr(request.route_handler, "parsed_data_field", None)
    raw = request.scope.get("state", {}).get("raw_body")
    if field is not None and raw is not None:
        faults = faults_of(b"".join(raw), field.annotation)
        if faults:
            return errors.Invalid("The body is not valid; nothing was changed.", faults=faults)
    if error.status_code != 400:
        return translated(error)
    parameters: Parameters = request.scope.get("state", {}).get("parameters") or Parameters()
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        faults = [
            parameters.fault(str(one.get("key", "")), str(one.get("message", "")))
            for one in error.extra
            if isinstance(one, dict)
        ]
        return errors.Invalid("The request is not valid; nothing was changed.", faults=faults)
    missing = parameters.missing(request.query_params, request.headers)
    if missing:
        return errors.Invalid("A parameter is missing; nothing was changed.", faults=missing)
    return errors.Invalid("The request could not be read; nothing was changed.")
