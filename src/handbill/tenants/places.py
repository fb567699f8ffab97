"""Names of places: time zones and regions."""

from __future__ import annotations

import zoneinfo

import phonenumbers

from handbill.kit.errors import Fault, Invalid


def check_zone(name: str) -> None:
    """Raises Invalid unless the name is a time zone of IANA."""
    if name not in _zones():
        raise Invalid(
            f"{name!r} is no time zone we know.", faults=[Fault("time_zone", "must be an IANA name, like Europe/Paris")]
        )


def check_region(region: str | None) -> None:
    """Raises Invalid unless the region is none or a country with phone numbers."""
    if region is not None and region not in phonenumbers.SUPPORTED_REGIONS:
        raise Invalid(
            f"{region!r} is no region we know.",
            faults=[Fault("settings.default_region", "must be an ISO code of a country, like BR")],
        )


def _zones() -> set[str]:
    return zoneinfo.available_timezones()
