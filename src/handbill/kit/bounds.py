"""Limits of what comes from outside, in one place: bytes, members, depth and cached bytes.

A limit that an operator should be able to change is a setting and not here. Every value here is a property of the input
that no honest client reaches; what is longer is refused or cut before anything looks at it.
"""

from __future__ import annotations

# --- patterns and the texts they are matched against

# --- packed bodies and JSON

# --- texts that are parsed or remembered, and the caches that remember them
