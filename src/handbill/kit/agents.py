"""What a user agent says of itself. Each text is read once: there are few of them, and each comes many times."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from ua_parser import OS, UserAgent, parse, parse_device, parse_os

_DESKS = ("Windows", "Mac OS X", "Linux", "Ubuntu", "Chrome OS")
_WORDS = ("bot", "crawl", "spider", "slurp", "headless", "scrapy", "lighthouse", "pingdom", "preview")
"""Plain HTTP libraries are not among them: a shop's own server may report for its users."""
_REMEMBERED = 20_000
_LONGEST = 2_000
"""Longer ones are somebody's joke, and a regular expression should not have to laugh."""


class Agent(msgspec.Struct, frozen=True, gc=False):
    """Families as the world writes them ("Mobile Safari", "Mac OS X"); empty where the text does not say."""

    browser: str = ""
    browser_version: str = ""
    os: str = ""
    os_version: str = ""
    device_type: str = ""


NOBODY = Agent()


@lru_cache(maxsize=_REMEMBERED)
def is_bot(user_agent: str) -> bool:
    """By the parser's own family of spiders first, then by the words that programs put into their names."""
    if not user_agent:
        return False
    device = parse_device(user_agent)
    if device is not None and device.family == "Spider":
        return True
    lower = user_agent.lower()
    return any(word in lower for word in _WORDS)


@lru_cache(maxsize=_REMEMBERED)
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
    return "desktop" if system is not None and system.family in _DESKS else None


@lru_cache(maxsize=_REMEMBERED)
def agent_of(user_agent: str) -> Agent:
    """Everything at once."""
    text = user_agent[:_LONGEST]
    found = parse(text)
    browser, system = found.user_agent, found.os
    return Agent(
        browser.family if browser else "", _version(browser), system.family if system else "", _version(system),
        (device_of(text) or "").capitalize(),
    )  # fmt: skip


def _version(found: UserAgent | OS | None) -> str:
    if found is None:
        return ""
    return ".".join(part for part in (found.major, found.minor) if part)
