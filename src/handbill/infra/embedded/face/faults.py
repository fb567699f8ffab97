"""ClickHouse's error codes, and the HTTP status that belongs to each. Pure."""

from __future__ import annotations

import re

UNSUPPORTED = 48
SYNTAX = 62
TIMEOUT = 159
READONLY = 164
TOO_MANY_QUERIES = 202
CANCELLED = 394
WRONG_PASSWORD = 516
TOO_LARGE = 307
CANNOT_DECOMPRESS = 271
UNKNOWN_FORMAT = 73
UNKNOWN_SETTING = 115

_STATUS = {
    **dict.fromkeys((46, 47, 60, UNKNOWN_FORMAT, 81, UNKNOWN_SETTING), 404),
    READONLY: 403,
    WRONG_PASSWORD: 403,
    TOO_LARGE: 413,
    TIMEOUT: 408,
    TOO_MANY_QUERIES: 503,
    UNSUPPORTED: 501,
    # What the caller wrote cannot be parsed, converted or bound.
    **dict.fromkeys((6, 26, 27, 36, 38, 41, 43, 53, SYNTAX, 70, 72, 117, CANNOT_DECOMPRESS, 386, 456, 457), 400),
}
_CODE = re.compile(r"Code: (\d+)\.")


class Fault(Exception):
    """A refusal in ClickHouse's own form: `Code: N. DB::Exception: text (NAME)`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def status(self) -> int:
        return _STATUS.get(self.code, 500)


def refuse(code: int, name: str, reason: str) -> Fault:
    """A fault of the face itself, worded as the server would."""
    return Fault(code, f"Code: {code}. DB::Exception: {reason}. ({name})")


def from_engine(error: Exception) -> Fault:
    """chDB gives only a text: the code is in it. Wrappers that it puts in front are cut off."""
    text = str(error).strip()
    match = _CODE.search(text)
    if match is None:
        return Fault(1001, f"Code: 1001. DB::Exception: {text or type(error).__name__}. (STD_EXCEPTION)")
    return Fault(int(match[1]), text[match.start() :])


def midstream(fault: Fault, tag: str) -> bytes:
    """What a server writes into a result that it can no longer take back; clients look for the tag of the header."""
    text = fault.text.encode()
    return b"\r\n__exception__\r\n%s\r\n%s\n%d %s\r\n__exception__\r\n" % (tag.encode(), text, len(text), tag.encode())
