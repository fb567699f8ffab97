"""Reading what was asked: one HTTP request in, one statement with its data, parameters and settings out. Pure.

ClickHouse joins the `query` parameter and the body into one text, and an INSERT's data begins after its FORMAT clause.
Everything else in the URL that is no transport word is a setting of this one query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from handbill.infra.embedded.face.faults import UNKNOWN_FORMAT, UNKNOWN_SETTING, refuse

# Words of the transport that are no settings. Sessions are accepted and not kept: every request stands alone.
_TRANSPORT = frozenset(
    {
        "query",
        "query_id",
        "database",
        "default_format",
        "user",
        "password",
        "quota_key",
        "session_id",
        "session_timeout",
        "session_check",
        "compress",
        "decompress",
        "buffer_size",
        "wait_end_of_query",
        "client_protocol_version",
        "role",
        "stacktrace",
        "close_session",
        "enable_http_compression",
        "http_zlib_compression_level",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "add_http_cors_header",
    }
)
# chDB encodes each block on its own; only in these formats do blocks in a row make one valid result.
STREAMED = frozenset({"native", "tabseparated", "tsv", "csv", "rowbinary", "jsoneachrow"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LAST_FORMAT = re.compile(rb"\bFORMAT\s++(\w++)\s*+(?:\bSETTINGS\b.*+|;?\s*+)\Z", re.IGNORECASE | re.DOTALL)
_TOKEN = re.compile(
    rb"""
    (?P<skip>\s+|--[^\n]*(?:\n|\Z)|\#[ !][^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))
    | (?P<quoted>'(?:\\.|''|[^'\\])*+'?|`(?:\\.|``|[^`\\])*+`?|"(?:\\.|""|[^"\\])*+"?)
    | (?P<word>\w+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OBJECTS = frozenset({"dataframe", "arrowtable", "datastore"})
_READS = frozenset({b"SELECT", b"WITH", b"FROM", b"("})


class Statement(msgspec.Struct, frozen=True):
    """What the engine is asked to do. `data` is None unless this is an INSERT that brings its own rows."""

    sql: bytes
    format: str
    data: bytes | None
    streams: bool
    writes: bool


class Ask(msgspec.Struct, frozen=True):
    """A whole request."""

    statement: Statement
    database: str
    params: dict[str, str]
    settings: dict[str, str]
    query_id: str
    read_only: bool
    compressed: bool


def read(pairs: Iterable[tuple[str, str]], body: bytes, *, headers_format: str, read_only: bool) -> Ask:
    """Sort the URL's words and split the text."""
    words = dict(pairs)
    text = words.get("query", "").encode()
    whole = b"\n".join(part for part in (text, body) if part)
    params = {key[6:]: value for key, value in words.items() if key.startswith("param_")}
    settings = {key: value for key, value in words.items() if key not in _TRANSPORT and not key.startswith("param_")}
    for name in (*params, *settings):
        if not _NAME.match(name):
            raise refuse(UNKNOWN_SETTING, "UNKNOWN_SETTING", f"Unknown setting {name!r}")
    return Ask(
        statement=split(whole, words.get("default_format") or headers_format or "TabSeparated"),
        database=words.get("database", ""),
        params=params,
        settings=settings,
        query_id=words.get("query_id", ""),
        read_only=read_only,
        compressed=words.get("enable_http_compression", "0") not in {"0", "", "false"},
    )


def split(text: bytes, default_format: str) -> Statement:
    """Tell an INSERT that carries rows from everything else, and find the format of either."""
    kind = first_word(text)
    if kind == b"INSERT":
        found = _insert_format(text)
        if found is not None:
            end, name, start = found
            return Statement(sql=text[:end], format=_known(name), data=text[start:], streams=False, writes=True)
    # The last FORMAT clause contains no quote: behind the last quote any SETTINGS may follow it.
    match = _LAST_FORMAT.search(text, max(0, len(text) - 4096, text.rfind(b"'") + 1))
    name = match[1].decode() if match else default_format
    reads = kind in _READS
    return Statement(
        sql=text,
        format=_known(name),
        data=None,
        streams=reads and name.lower() in STREAMED,
        writes=kind == b"INSERT",
    )


def first_word(text: bytes) -> bytes:
    for token in _TOKEN.finditer(text):
        if token.lastgroup != "skip":
            return token[0].upper()
    return b""


def _insert_format(text: bytes) -> tuple[int, str, int] | None:
    """Where the statement ends, the format's name, and where the data begins; None when no rows follow a FORMAT."""
    clause: int | None = None
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "skip":
            continue
        word = token[0].upper()
        if clause is not None:
            if token.lastgroup == "word":
                return clause, token[0].decode(), _data_start(text, token.end())
            clause = None
        if token.lastgroup == "word":
            if word in {b"SELECT", b"VALUES", b"WITH", b"INFILE", b"WATCH"}:
                return None
            if word == b"FORMAT":
                clause = token.start()
    return None


def _data_start(text: bytes, after: int) -> int:
    """Data begins after the first line break, if only blanks come before it; else after the blanks."""
    while text[after : after + 1] in {b" ", b"\t", b"\f", b";"}:
        after += 1
    if text[after : after + 1] == b"\r":
        after += 1
    if text[after : after + 1] == b"\n":
        after += 1
    return after


def _known(name: str) -> str:
    """Some names mean Python objects to chDB's wrapper, and no format at all to ClickHouse."""
    if not name.isidentifier() or name.lower() in _OBJECTS:
        raise refuse(UNKNOWN_FORMAT, "UNKNOWN_FORMAT", f"Unknown format {name}")
    return name


def quote(value: str) -> str:
    """A string literal of ClickHouse."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def identifier(name: str) -> str:
    """A quoted name of ClickHouse."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
