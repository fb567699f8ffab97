"""What an import changed, put back: each field that still is as the import left it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = ("phone", "whatsapp", "email", "external_id", "name", "locale")
SETS = ("tags", "granted", "denied")


def put_back(
    before: Mapping[str, Any], after: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The contact's fields after the undo, and the names of those that somebody has changed since."""
    fields: dict[str, Any] = {}
    kept: list[str] = []
    for name in FIELDS:
        fields[name] = now[name]
        if before[name] != after[name]:
            if now[name] == after[name]:
                fields[name] = before[name]
            else:
                kept.append(name)
    if (fields["phone"] is None) != (fields["whatsapp"] is None):  # the two go together
        fields["phone"], fields["whatsapp"] = now["phone"], now["whatsapp"]
    fields["attributes"], differing = _attributes(before["attributes"], after["attributes"], now["attributes"])
    kept += [f"attribute:{name}" for name in differing]
    for name in SETS:  # what the import added goes, what it took away comes back; the rest is not ours
        added, taken = set(after[name]) - set(before[name]), set(before[name]) - set(after[name])
        fields[name] = sorted((set(now[name]) - added) | taken)
    fields["granted"] = sorted(set(fields["granted"]) - set(fields["denied"]))
    return fields, kept


def _attributes(
    before: Mapping[str, Any], after: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    merged, kept = dict(now), []
    for name in sorted({*before, *after}):
        old, left = before.get(name, ...), after.get(name, ...)
        if old == left and type(old) is type(left):
            continue
        if now.get(name, ...) != left:
            kept.append(name)
        elif old is ...:
            merged.pop(name, None)
        else:
            merged[name] = old
    return merged, kept
