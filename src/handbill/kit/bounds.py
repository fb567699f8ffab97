"""Limits of what comes from outside, in one place: bytes, members, depth and cached bytes.

A limit that an operator should be able to change is a setting and not here. Every value here is a property of the input
that no honest client reaches; what is longer is refused or cut before anything looks at it.
"""

from __future__ import annotations

from typing import NamedTuple


class CacheLimit(NamedTuple):
    """The most entries and the most bytes that a cache holds."""

    entries: int
    bytes: int


# --- patterns and the texts they are matched against

PHONE_CHARS = 64  # a cell with a phone number; the longest form of one number with its extension has about 40
EMAIL_CHARS = 320  # a cell with an e-mail address; 64 for the mailbox, 255 for the domain, and the @
HEADER_CHARS = 500  # the name of a column, as it is compared and kept
SNIFF_RUN_CHARS = 200  # one run of letters, digits and points in what clevercsv gets: it takes the cube of it
PATTERN_CHARS = 300  # one targeting pattern, as its author writes it
PATTERN_MEMORY = 64 * 1024  # what re2 may take for one pattern, its program and its cached states together
RULE_PROGRAM_STEPS = 5_000  # the compiled patterns of one targeting rule: 30 ms for the worst ones and address
TENANT_PATTERN_US = 40_000  # what all patterns of a tenant may take for the worst new address: see targeting/cost.py
ADDRESS_CHARS = 1_000  # the part of a URL that targeting compares

# --- packed bodies and JSON

SCAN_BYTES = 64 * 1024
"""Bytes of a large body that one call of a pattern looks at: no other thread runs before the call returns."""
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
HEAD_BYTES = 32_768
"""Bytes of a path, its query and its headers; beyond it, 431 HEAD_TOO_LARGE."""
CONNECTION_BUFFER_BYTES = 131_072
"""Unread bytes of one connection. The server itself answers 431 to a larger head, and to more than 100 headers.

A smaller buffer makes large bodies dear, for they come in parts of this size.
"""
DECISION_TOKEN_MAX = 3_000
"""Characters of a decision's token. A user and a session of ID_MAX characters each, of the largest kind, fit."""
URL_MAX = 16_384
"""Characters of a path with its query on the routes that are not hot."""
ID_MAX = 200
"""Characters of an id that a caller chooses: user, device, session, event."""
QUERY_MAX = 16_384
"""Bytes of a query string on a hot route: four ids of 200 characters, each percent-encoded to twelve bytes, fit."""
QUERY_FIELDS_MAX = 50
CUSTOM_VALUE_MAX = 2_000
"""Characters of a text under `context.custom`."""
USER_AGENT_MAX = 512
"""Characters of a user agent that are parsed. Browsers inside apps send up to about 400."""
LANGUAGE_MAX = 200
"""Bytes of Accept-Language that are looked at: the first language is in the first few."""
ADDRESS_TEXT_MAX = 64
"""Characters of an IP address: 39 for the longest of IPv6, and the name of a network interface behind it."""
FORWARDED_MAX = 2_048
"""Bytes of X-Forwarded-For that are looked at, from its end: the proxies nearest to us write last."""
ZONE_NAME_MAX = 64
"""Characters of the name of a time zone; the longest of IANA has 32."""
TOKEN_MAX = 8_192
"""Characters of a JWT."""
KEY_SET_MAX = 1 << 20
"""Bytes that a tenant's key set takes in memory."""

USER_AGENTS = CacheLimit(20_000, 24 << 20)
LIBRARY_NAMES = CacheLimit(1_000, 1 << 20)
ZONES = CacheLimit(1_000, 1 << 20)
MINUTES_OF_WEEK = CacheLimit(5_000, 4 << 20)
TARGETING_TABLE = CacheLimit(4_096, 2 << 20)
"""One table of one attribute of one tenant."""
TARGETING_TABLES_BYTES = 128 << 20
"""All targeting tables of a process."""
VIEWER_CAPS = CacheLimit(40_000, 64 << 20)
PUBLIC_IDS = CacheLimit(10_000, 8 << 20)
RULE_COSTS = CacheLimit(20_000, 32 << 20)
RATE_LIMITED_USERS = CacheLimit(10_000, 8 << 20)
TOKEN_BUCKETS = CacheLimit(50_000, 48 << 20)
TENANT_QUOTAS = CacheLimit(10_000, 8 << 20)
OPEN_RECOUNTS = CacheLimit(1_000, 1 << 20)
"""Days whose recount takes more than one turn."""
PROJECTS = CacheLimit(10_000, 8 << 20)
PROFILE_MARKS = CacheLimit(10_000, 32 << 20)
COMPILED_SEGMENTS = CacheLimit(1_000, 64 << 20)
STORED_IDS = CacheLimit(100_000, 64 << 20)
STORED_DEFINITIONS = CacheLimit(100_000, 96 << 20)
PERSON_IDS = CacheLimit(100_000, 64 << 20)
PUBLIC_IDS = CacheLimit(50_000, 32 << 20)
USER_TOKENS = CacheLimit(50_000, 48 << 20)
CREDENTIALS = CacheLimit(100_000, 128 << 20)
UNKNOWN_CREDENTIALS = CacheLimit(50_000, 32 << 20)
KEY_SETS = CacheLimit(1_000, 64 << 20)
FAILED_KEY_SETS = CacheLimit(1_000, 4 << 20)
QUEUES = CacheLimit(1_000, 8 << 20)
QUEUE_LOADS = CacheLimit(10_000, 16 << 20)
COUNTRIES = CacheLimit(50_000, 32 << 20)
TRUSTED_ADDRESSES = CacheLimit(10_000, 8 << 20)
PROVIDER_SECRETS = CacheLimit(10_000, 64 << 20)
CONNECTIONS = CacheLimit(10_000, 8 << 20)
SENDER_STATES = CacheLimit(10_000, 8 << 20)
CAMPAIGN_CONTENTS = CacheLimit(1_000, 64 << 20)
PROVIDER_ADDRESSES = CacheLimit(4_096, 8 << 20)
