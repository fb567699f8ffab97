"""Limits of what comes from outside, in one place: bytes, members, depth and cached bytes.

A limit that an operator should be able to change is a setting and not here. Every value here is a property of the input
that no honest client reaches; what is longer is refused or cut before anything looks at it.
"""

from __future__ import annotations

# --- patterns and the texts they are matched against

# --- packed bodies and JSON

GZIP_MEMBERS = 1_000
"""Members of one gzip stream, and one more for each GZIP_MEMBER_BYTES it unpacks to: many are large ones."""
GZIP_MEMBER_BYTES = 4_096
FRAMES = 1_000
"""Frames of one zstd or lz4 body, those that hold nothing included."""
JSON_DEPTH = 100
"""Levels of a JSON document that is read here: whatever is behind the reader walks the same levels again."""
SHOWN_BYTES = 500
"""How much of a job's data is shown where it cannot be read."""
RULE_DEPTH = 6
"""Levels of `all`, `any` and `not` in a rule of a banner or a segment, which recursive functions read and evaluate."""

# --- texts that are parsed or remembered, and the caches that remember them
