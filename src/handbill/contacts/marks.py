"""Cells that a spreadsheet would take for a formula, made harmless on the way out and whole again on the way in."""

from __future__ import annotations

from handbill.kit.cells import FORMULA


def marked(cell: str) -> str:
    """An apostrophe in front of what could be a formula, and of what already looks marked."""
    return f"'{cell}" if cell.startswith((*FORMULA, "'")) else cell


def unmarked(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and cell[1:].startswith((*FORMULA, "'")) else cell
