"""Timeouts of hot routes for tests that are not about them: a slow machine is no outage."""

from __future__ import annotations

from handbill.infra.postgres import HotTimeouts

UNHURRIED = HotTimeouts(fallback_s=30.0, lookup_s=30.0)
UNHURRIED_SETTINGS = {
    "HANDBILL_POSTGRES__FALLBACK_TIMEOUT_MS": "30000",
    "HANDBILL_POSTGRES__LOOKUP_TIMEOUT_MS": "30000",
}
