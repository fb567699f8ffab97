"""Descriptions of fields and parameters whose name means the same wherever it is used.

They count only where the field's own struct has no text for it. Of two tables a feature's own counts first.
"""

from __future__ import annotations

SHARED: dict[str, str] = {
    "items": "The rows of this page, in the order of the list.",
    "next": "Send it as `cursor` to read the following page; null on the last one.",
}
"""By the name that is sent."""

BY_FEATURE: dict[str, dict[str, str]] = {}
"""The same within one feature: package below `handbill`, then name."""

PARAMETERS: dict[str, str] = {}
"""Of paths, queries and headers, by name."""
