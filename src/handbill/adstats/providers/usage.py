"""What Meta's answers say about their limits and their faults: pure reading of headers and error bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from handbill.adstats.providers.port import ProviderError, ProviderThrottled, RequestRefused, TokenDead
from handbill.kit.untrusted_json import UNREADABLE

PAUSE_AT, LONG_PAUSE_AT = 85.0, 95.0
PAUSE_S, LONG_PAUSE_S = 60.0, 300.0
THROTTLES = frozenset({4, 17, 32, 613, *range(80_000, 80_007), 80_008})
TOKEN = 190
TRANSIENT = frozenset({1, 2, 341, 368})
"""Codes of refusals that pass: trouble at the platform, and limits that are not of calls."""
_HEADERS = ("x-business-use-case-usage", "x-app-usage", "x-ad-account-usage")
_MEASURES = ("call_count", "total_cputime", "total_time", "acc_id_util_pct")


class TooMuch(ProviderError):
    """The platform asks for smaller questions."""


def pause_s(headers: Mapping[str, str]) -> float:
    """Seconds to leave the account alone after this answer; 0 while there is room."""
    used, regain = 0.0, 0.0
    for name in _HEADERS:
        for measure, value in _numbers(headers.get(name, "")):
            if measure in _MEASURES:
                used = max(used, value)
            elif measure == "estimated_time_to_regain_access":
                regain = max(regain, value * 60)
    return max(regain, LONG_PAUSE_S if used >= LONG_PAUSE_AT else PAUSE_S if used >= PAUSE_AT else 0.0)


def _numbers(text: str) -> Iterator[tuple[str, float]]:
    """Every number of a usage header with its name, at any depth."""
    try:
        todo: list[Any] = [msgspec.json.decode(text)] if text else []
    except UNREADABLE:
        return
    while todo:
        found = todo.pop()
        if isinstance(found, list):
            todo += found
        elif isinstance(found, dict):
            for name, value in found.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield name, float(value)
                else:
                    todo.append(value)


def fault_of(status: int, body: Any, headers: Mapping[str, str]) -> ProviderError:
    """The error an answer means. Its words are ours: the platform's own may repeat what was sent."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ProviderError(f"the platform answered {status} without saying why")
    code, sub = _whole(error.get("code")), _whole(error.get("error_subcode"))
    if code in THROTTLES:
        return ProviderThrottled(f"the platform limits us (code {code})", pause_s(headers) or PAUSE_S)
    if code == TOKEN:
        return TokenDead(f"the account must be connected again (code {code}, {sub})")
    if "reduce the amount of data" in str(error.get("message", "")).lower():
        return TooMuch(f"the platform asks for less at once (code {code})")
    refused = 400 <= status < 500 and code not in TRANSIENT and error.get("is_transient") is not True
    return (RequestRefused if refused else ProviderError)(f"the platform answered {status} (code {code}, {sub})")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
