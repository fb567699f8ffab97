"""What a user agent says of itself. A text is cut, parsed once for every question about it, and remembered.

The parser is ua-parser over re2, which finds the pattern that fits in time linear in the text. Its own cache is not
used: it keeps texts whole and counts entries only.
"""

from __future__ import annotations

from functools import cache

import msgspec
from ua_parser import OS, Domain, UserAgent, load_builtins
from ua_parser.re2 import Resolver

from handbill.kit.bounds import USER_AGENT_MAX, USER_AGENTS
from handbill.kit.caches import GenerationCache

_DESKTOPS = ("Windows", "Mac OS X", "Linux", "Ubuntu", "Chrome OS")
_BOT_NAMES = ("bot", "crawl", "spider", "slurp", "headless", "scrapy", "lighthouse", "pingdom", "preview")
"""Plain HTTP libraries are not among them: a shop's own server may report for its users."""
_EXAMPLE = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36"


class Agent(msgspec.Struct, frozen=True, gc=False):
    """Families as the parser names them ("Mobile Safari", "Mac OS X"); empty where the text does not say."""

    browser: str = ""
    browser_version: str = ""
    os: str = ""
    os_version: str = ""
    device_type: str = ""


class _Parsed(msgspec.Struct, frozen=True, gc=False):
    agent: Agent
    is_bot: bool = False
    device: str | None = None


NOBODY = Agent()
_EMPTY = _Parsed(NOBODY)


def warm() -> None:
    """Build the parser now, which takes about 200 ms. The API and the worker call it before they take requests."""
    _resolver()(_EXAMPLE, Domain.ALL)


def from_header(value: bytes) -> str:
    """A User-Agent header as text, cut before it is decoded."""
    return value[:USER_AGENT_MAX].decode("latin-1")


def is_bot(user_agent: str) -> bool:
    """By the parser's own family of spiders first, then by the names that programs give themselves."""
    return _parsed(user_agent).is_bot


def device_of(user_agent: str) -> str | None:
    """mobile, tablet or desktop, where the user agent says so; None for programs."""
    return _parsed(user_agent).device


def agent_of(user_agent: str) -> Agent:
    """Browser, system and device type."""
    return _parsed(user_agent).agent


def _parsed(user_agent: str) -> _Parsed:
    text = user_agent[:USER_AGENT_MAX]
    parsed = _remembered.get(text)
    if parsed is None:
        parsed = _remembered[text] = _parse(text) if text else _EMPTY
    return parsed


_remembered: GenerationCache[str, _Parsed] = GenerationCache(USER_AGENTS)
"""Every tracked event and decision asks here; see GenerationCache for what that costs."""


@cache
def _resolver() -> Resolver:
    return Resolver(load_builtins())


def _parse(text: str) -> _Parsed:
    # re2 takes UTF-8 only, and half of a surrogate pair has none.
    result = _resolver()(text.encode("utf-8", "replace").decode(), Domain.ALL)
    lower = text.lower()
    bot = result.device is not None and result.device.family == "Spider"
    bot = bot or any(name in lower for name in _BOT_NAMES)
    device = None if bot else _device(lower, result.os)
    browser, system = result.user_agent, result.os
    agent = Agent(
        browser.family if browser else "", _version(browser), system.family if system else "", _version(system),
        (device or "").capitalize(),
    )  # fmt: skip
    return _Parsed(agent, bot, device)


def _device(lower: str, system: OS | None) -> str | None:
    if "ipad" in lower or ("android" in lower and "mobile" not in lower) or "tablet" in lower:
        return "tablet"
    if "mobi" in lower or "iphone" in lower:
        return "mobile"
    return "desktop" if system is not None and system.family in _DESKTOPS else None


def _version(named: UserAgent | OS | None) -> str:
    if named is None:
        return ""
    return ".".join(part for part in (named.major, named.minor) if part)
