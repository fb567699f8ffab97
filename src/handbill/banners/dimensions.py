"""How a variant, country, device and page are written in statistics: one spelling each, for rows and for filters."""

from __future__ import annotations

import re

PAGE_LENGTH = 500
"""Characters of a page's address that are compared and returned."""
VALUE_LENGTH = 200
_TAIL = re.compile(r"[?#].*", re.DOTALL)


def page_form(url: str) -> str:
    """The address without its query and fragment, cut; empty when nothing is left."""
    return _TAIL.sub("", url, count=1)[:PAGE_LENGTH]


def device_form(device: str) -> str:
    """`mobile`, `MOBILE` and `Mobile` are one device: `mobile`."""
    return device.lower()[:VALUE_LENGTH]


def country_form(country: str) -> str:
    return country.upper()[:VALUE_LENGTH]
