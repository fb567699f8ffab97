"""ETags: a row's version as the web spells it. `If-Match` is honoured where it is sent and never demanded."""

from __future__ import annotations

import re

from handbill.kit.errors import Fault, Invalid, PreconditionFailed

_TAG = re.compile(r'"v(\d{1,9})"')


def etag(version: int) -> str:
    return f'"v{version}"'


def wanted_version(if_match: str | None) -> int | None:
    """The version the caller has read; None when it does not say, or says that any will do."""
    if if_match is None or if_match.strip() == "*":
        return None
    found = _TAG.fullmatch(if_match.strip())
    if found is None:
        raise Invalid(
            "If-Match must repeat the ETag of your last read.",
            code="BAD_IF_MATCH",
            faults=[Fault("If-Match", 'expected a value like "v3"')],
        )
    return int(found.group(1))


def check(wanted: int | None, current: int) -> None:
    """Refuses a change that was based on an older reading."""
    if wanted is not None and wanted != current:
        raise PreconditionFailed(
            f"It is at version {current} and you read version {wanted}; nothing was changed. Read it again, then retry."
        )
