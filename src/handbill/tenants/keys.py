"""Keys and tokens: how they look, how they are made, and the hash under which they are found.

They carry 192 random bits, so that a plain SHA-256 protects them: there is nothing to guess, and nothing to slow down.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator

from handbill.kit.bounds import SCAN_BYTES

WRITE = "hbw_"
SECRET = "hbs_"  # noqa: S105 - a prefix, not a password
SESSION = "hbt_"

_SHAPE = re.compile(r"hb[wst]_[A-Za-z0-9_-]{32}")
_CHARS = 36
_IN_TEXT = re.compile(rb"hb[ws]_[A-Za-z0-9_-]{32}(?![A-Za-z0-9_-])")


def make(prefix: str) -> str:
    """A fresh key of its kind."""
    return prefix + base64.urlsafe_b64encode(secrets.token_bytes(24)).decode()


def well_formed(key: str) -> bool:
    """Whether it looks like one of ours; anything else is refused without asking the database."""
    return _SHAPE.fullmatch(key) is not None


def find_keys(text: bytes) -> Iterator[str]:
    """Whatever has the shape of a write key or a secret key in a text, each once, in order and in linear time.

    The text is searched in parts, so that other threads run in between.
    """
    seen: set[bytes] = set()
    for start in range(0, len(text), SCAN_BYTES):
        following = start + SCAN_BYTES
        for match in _IN_TEXT.finditer(text, start, following + _CHARS):  # a key may end in the next part
            if match.start() >= following:
                break
            key = match[0]
            if key not in seen:
                seen.add(key)
                yield key.decode()


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def hint(key: str) -> str:
    """Enough of a key to recognise it in a list, and too little to use it."""
    return f"{key[:4]}...{key[-4:]}"


def csrf_of(token: str) -> str:
    """The CSRF token that belongs to a session: derived, so that nothing more need be stored."""
    mark = hmac.new(token.encode(), b"handbill-csrf", hashlib.sha256).digest()
    return base64.urlsafe_b64encode(mark[:24]).decode()


def csrf_matches(token: str, sent: str | None) -> bool:
    return sent is not None and hmac.compare_digest(csrf_of(token).encode(), sent.encode())
