"""E-mail addresses: tidied, checked, and written in one way. The rules are those of `email-validator`.

Plain addresses take a short way of our own, which says yes or nothing; a test holds the two against each other.
"""

from __future__ import annotations

import re

from email_validator import SPECIAL_USE_DOMAIN_NAMES as SPECIAL
from email_validator import EmailNotValidError, validate_email

from handbill.kit.bounds import EMAIL_CHARS

MISSING = "EMAIL_MISSING"
INVALID = "EMAIL_INVALID"
SEVERAL = "EMAIL_SEVERAL"
TOO_LONG = "EMAIL_TOO_LONG"

Answer = tuple[str | None, str]

_ATOM = r"[a-z0-9_+\-]+"
_LABEL = r"[a-z0-9](?:[a-z0-9\-]{0,61}[a-z0-9])?"
_PLAIN = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@(?:{_LABEL}\.)+[a-z]{{2,24}}")
_SPECIAL = frozenset(name.rpartition(".")[2] for name in SPECIAL)
"""Last labels under which the library has something to say; it is asked then."""
_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060\ufeff\u00ad]")
_WRAPPED = re.compile(r"[^<>]*<(?:mailto:)?([^<>]+)>[;,]?|(?:mailto:)?(.*?)[;,]?", re.IGNORECASE)


def normalise(text: str) -> Answer:
    """The address in lower case: no mailbox in use tells Ann from ann, and two rows must not become two people.

    A text of more than EMAIL_CHARS characters is refused before any pattern sees it.
    """
    if len(text) > EMAIL_CHARS and len(text.strip()) > EMAIL_CHARS:
        return None, TOO_LONG
    lowered = text.lower()
    if quick(lowered):
        return lowered, ""
    cleaned = _INVISIBLE.sub("", text).replace("\u00a0", " ").strip().strip("'\"").strip()
    if not cleaned:
        return None, MISSING
    if wrapped := _WRAPPED.fullmatch(cleaned):
        cleaned = (wrapped[1] or wrapped[2] or "").strip()
    if cleaned.count("@") > 1 and re.search(r"[\s,;/|]", cleaned):
        return None, SEVERAL
    found = library(cleaned)
    return (found, "") if found is not None else (None, INVALID)


def quick(lowered: str) -> bool:
    if not _PLAIN.fullmatch(lowered) or len(lowered) > 254:
        return False
    local, _, domain = lowered.partition("@")
    if len(local) > 64 or "--" in domain or len(domain) > 253:
        return False
    return domain.rpartition(".")[2] not in _SPECIAL


def library(text: str) -> str | None:
    try:
        return validate_email(text, check_deliverability=False).normalized.lower()
    except EmailNotValidError:
        return None
