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
    """What the engine is asked to do. `data` is None unless this is an INSERT that brings its own rows.

    `source_at` is where such an INSERT names its source: behind the table and its columns, before any SETTINGS.
    """

    sql: bytes
    format: str
    data: bytes | None
    streams: bool
    writes: bool
    source_at: int = 0

    def insert_from(self, path: str) -> bytes:
        """The same INSERT with its rows in a file."""
        head, tail = self.sql[: self.source_at], self.sql[self.source_at :]
        return b"%s FROM INFILE %s %s FORMAT %s" % (head, quote(path).encode(), tail, self.format.encode())


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
            return Statement(
                sql=text[: found.end],
                format=_known(found.format),
                data=text[found.data_at :],
                streams=False,
                writes=True,
                source_at=found.source_at,
            )
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


class _InsertFormat(msgspec.Struct, frozen=True):
    """Where the parts of an INSERT with rows are: its source clause, its end before FORMAT, and the first row."""

    source_at: int
    end: int
    format: str
    data_at: int


def _insert_format(text: bytes) -> _InsertFormat | None:
    """None when no rows follow a FORMAT."""
    clause: int | None = None
    settings: int | None = None
    depth = 0
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "skip":
            continue
        word = token[0].upper()
        if clause is not None:
            if token.lastgroup == "word":
                source_at = clause if settings is None else settings
                return _InsertFormat(source_at, clause, token[0].decode(), _data_start(text, token.end()))
            clause = None
        if token.lastgroup == "other":
            depth += (word == b"(") - (word == b")")
        elif token.lastgroup == "word":
            if word in {b"SELECT", b"VALUES", b"WITH", b"INFILE", b"WATCH"}:
                return None
            if word == b"SETTINGS" and depth == 0:
                settings = token.start()
            elif word == b"FORMAT":
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
