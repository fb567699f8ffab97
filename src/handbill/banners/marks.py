"""Marks an event gets at the edge, from itself alone, so that no order of arrival can change them.

Marks that depend on other events (a click nobody saw an impression for, repeats faster than a hand) are worked out
later, from the set of all rows: see `suspicion`.
"""

from __future__ import annotations

BOT = "bot"
UNVERIFIED = "unverified"
ACCIDENTAL = "accidental"

DOCS = {
    BOT: "The user agent is a crawler's or a headless browser's; counted apart.",
    UNVERIFIED: "No token proved who the user is; counted as sent.",
    ACCIDENTAL: "Closed faster than anybody reads; stored, not counted.",
}
