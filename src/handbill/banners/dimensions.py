"""How a variant, country, device and page are written in statistics: one spelling each, for rows and for filters."""

from __future__ import annotations

PAGE_LENGTH = 500
"""Characters of a page's address that are compared and returned."""
VALUE_LENGTH = 200


def page_form(url: str) -> str:
    """The address without its query and fragment, cut; empty when nothing is left."""
    return url.partition("?")[0].partition("#")[0][:PAGE_LENGTH]


def device_form(device: str) -> str:
    """`mobile`, `MOBILE` and `Mobile` are one device: `mobile`."""
    return device.lower()[:VALUE_LENGTH]


def country_form(country: str) -> str:
    return country.upper()[:VALUE_LENGTH]
