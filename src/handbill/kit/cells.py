"""Cells of a CSV that a spreadsheet would run as a formula: one list, and the apostrophe that makes them text."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Also the wide forms, which some spreadsheets take for the narrow ones."""


def harmless(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text
