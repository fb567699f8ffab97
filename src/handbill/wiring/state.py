"""The catalogue of the state: every slice's tables that `handbill state-hash` covers and a backup must bring back."""

from __future__ import annotations

from handbill.active_hours.service import STATE as ACTIVE_HOURS
from handbill.adstats.service import STATE as ADSTATS
from handbill.banners.service import STATE as BANNERS
from handbill.caps.service import STATE as CAPS
from handbill.contacts.service import STATE as CONTACTS
from handbill.events.service import STATE as EVENTS
from handbill.infra.state import StateTable
from handbill.jobs.service import STATE as JOBS
from handbill.messaging.service import STATE as MESSAGING
from handbill.people.service import STATE as PEOPLE
from handbill.segments.service import STATE as SEGMENTS
from handbill.tenants.service import STATE as TENANTS

TABLES: tuple[StateTable, ...] = (
    *TENANTS, *JOBS, *EVENTS, *CAPS, *BANNERS, *PEOPLE, *ACTIVE_HOURS, *SEGMENTS, *CONTACTS, *MESSAGING, *ADSTATS,
)  # fmt: skip

REBUILT = (
    "hb:c:", "hb:caps:", "hb:event_names:", "hb:event_property_names:", "hb:incoming:", "hb:msg:", "hb:p:",
    "hb:person:", "hb:rate:", "hb:throttle:",
)  # fmt: skip
"""Redis keys that rebuild themselves from PostgreSQL or from traffic: a backup leaves them out on purpose."""
