"""The catalogue of the state: every slice's tables that `handbill state-hash` covers and a backup must bring back."""

from __future__ import annotations

from handbill.banners.service import STATE as BANNERS
from handbill.caps.service import STATE as CAPS
from handbill.events.service import STATE as EVENTS
from handbill.infra.state import StateTable
from handbill.jobs.service import STATE as JOBS
from handbill.messaging.service import STATE as MESSAGING
from handbill.tenants.service import STATE as TENANTS

TABLES: tuple[StateTable, ...] = (*TENANTS, *JOBS, *EVENTS, *CAPS, *BANNERS, *MESSAGING)

REBUILT = ("hb:c:", "hb:caps:", "hb:throttle:", "hb:msg:")
"""Redis keys that rebuild themselves from PostgreSQL or from traffic: a backup leaves them out on purpose."""
