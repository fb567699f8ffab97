"""Errors in the OpenAPI document: which an operation may answer, each with an example of its own status."""

from __future__ import annotations

from typing import Any

import msgspec

from handbill.api.problems import MEDIA_TYPE, Problem, problem
from handbill.kit.errors import (
    Broken,
    Busy,
    Conflict,
    Fault,
    Forbidden,
    HandbillError,
    Invalid,
    NotFound,
    PreconditionFailed,
    Throttled,
    TooLarge,
    Unauthorized,
    Unprocessable,
    Unsupported,
)

SCHEMA = {"$ref": "#/components/schemas/Problem"}
_EXAMPLES: dict[int, HandbillError] = {
    error.status: error
    for error in (
        Invalid("The body is not valid; nothing was changed.", faults=[Fault("name", "is required")]),
        Unauthorized("The key is not known, was revoked or has expired."),
        Forbidden("The key lacks the scope that this needs."),
        NotFound("There is no such object."),
        Conflict("It conflicts with what is there; nothing was changed."),
        PreconditionFailed("It was changed since you read it; read it again and repeat your change."),
        TooLarge("The body is larger than this operation takes; nothing was done."),
        Unsupported("The body has a media type that this operation does not read."),
        Unprocessable("The request names what is not there; nothing was done.", faults=[Fault("name", "is not there")]),
        Throttled("More requests than are allowed; wait for `Retry-After` seconds."),
        Busy("An engine does not answer; send the request again after `Retry-After` seconds."),
        Broken("The installation needs attention; nothing was changed."),
    )
}


def schemas() -> dict[str, Any]:
    """The shape of every error."""
    _, found = msgspec.json.schema_components([Problem], ref_template="#/components/schemas/{name}")
    return dict(found)


def reply(status: int) -> dict[str, Any]:
    """An error's answer in the document. A status that has no example of its own shows none."""
    error = _EXAMPLES.get(status)
    if error is None:
        return {"description": f"Status {status}, as problem+json.", "content": {MEDIA_TYPE: {"schema": SCHEMA}}}
    example = msgspec.to_builtins(problem(error, "req-1"))
    return {"description": f"{error.title}.", "content": {MEDIA_TYPE: {"schema": SCHEMA, "example": example}}}


def default_reply() -> dict[str, Any]:
    """What an operation answers for any status that it does not list."""
    return {**reply(Broken.status), "description": "Anything else that went wrong, as problem+json."}


def statuses(operation: dict[str, Any], path: str) -> list[int]:
    """The errors that an operation of this kind may answer."""
    has_body, has_parameters = "requestBody" in operation, bool(operation.get("parameters"))
    names = {each["name"].lower() for each in operation.get("parameters", [])}
    found = {
        Invalid.status: has_body or has_parameters,
        Unauthorized.status: bool(operation.get("security")),
        Forbidden.status: bool(operation.get("security")),
        NotFound.status: "{" in path,
        PreconditionFailed.status: "if-match" in names,
        TooLarge.status: has_body,
        Unsupported.status: has_body,
        Busy.status: bool(operation.get("security")),
    }
    return [status for status, applies in found.items() if applies]
