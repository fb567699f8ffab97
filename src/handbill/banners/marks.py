"""Marks an event gets at the edge, from itself alone, so that no order of arrival can change them.

Marks that depend on other events (a click nobody saw an impression for, repeats faster than a hand) are worked out
later, from the set of all rows: see `suspicion`.
"""

from __future__ import annotations

from functools import lru_cache

from ua_parser import parse_device, parse_os

BOT = "bot"
UNVERIFIED = "unverified"
ACCIDENTAL = "accidental"

DOCS = {
    BOT: "The user agent is a crawler's or a headless browser's; counted apart.",
    UNVERIFIED: "No token proved who the user is; counted as sent.",
    ACCIDENTAL: "Closed faster than anybody reads; stored, not counted.",
}

_DESKS = ("Windows", "Mac OS X", "Linux", "Ubuntu", "Chrome OS")
_WORDS = ("bot", "crawl", "spider", "slurp", "headless", "scrapy", "lighthouse", "pingdom", "preview")
"""Plain HTTP libraries are not among them: a shop's own server may report for its users."""


@lru_cache(maxsize=20_000)
def is_bot(user_agent: str) -> bool:
    """By the parser's own family of spiders first, then by the words that programs put into their names."""
    if not user_agent:
        return False
    device = parse_device(user_agent)
    if device is not None and device.family == "Spider":
        return True
    lower = user_agent.lower()
    return any(word in lower for word in _WORDS)


@lru_cache(maxsize=20_000)
def device_of(user_agent: str) -> str | None:
    """mobile, tablet or desktop, where the user agent says so; a tracker that sends its own word is believed first."""
    if not user_agent or is_bot(user_agent):
        return None
    lower = user_agent.lower()
    if "ipad" in lower or ("android" in lower and "mobile" not in lower) or "tablet" in lower:
        return "tablet"
    if "mobi" in lower or "iphone" in lower:
        return "mobile"
    system = parse_os(user_agent)
    return (
        "desktop"
        if system is not None and system.family in ("Windows", "Mac OS X", "Linux", "Ubuntu", "Chrome OS")
        else None
    )
