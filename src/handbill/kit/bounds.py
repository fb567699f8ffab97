"""Limits of what comes from outside, in one place: bytes, members, depth and cached bytes.

A limit that an operator should be able to change is a setting and not here. Every value here is a property of the input
that no honest client reaches; what is longer is refused or cut before anything looks at it.
"""

from __future__ import annotations

# --- patterns and the texts they are matched against

PHONE_CHARS = 64  # a cell with a phone number; the longest form of one number with its extension has about 40
EMAIL_CHARS = 320  # a cell with an e-mail address; 64 for the mailbox, 255 for the domain, and the @
HEADER_CHARS = 500  # the name of a column, as it is compared and kept
SNIFF_RUN_CHARS = 200  # one run of letters, digits and points in what clevercsv gets: it takes the cube of it
PATTERN_CHARS = 300  # one targeting pattern, as its author writes it
PATTERN_MEMORY = 64 * 1024  # what re2 may take for one pattern, its program and its cached states together
RULE_PROGRAM_STEPS = 5_000  # the compiled patterns of one targeting rule: 30 ms for the worst ones and address
ADDRESS_CHARS = 1_000  # the part of a URL that targeting compares

# --- packed bodies and JSON

# --- texts that are parsed or remembered, and the caches that remember them
