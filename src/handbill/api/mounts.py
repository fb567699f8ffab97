"""The slices whose routes are mounted, by the name of their service in the house. One line per slice."""

from __future__ import annotations

from types import ModuleType

from handbill.adstats import routes as adstats
from handbill.banners import routes as banners
from handbill.contacts import routes as contacts
from handbill.events import routes as events
from handbill.insights import routes as insights
from handbill.jobs import routes as jobs
from handbill.messaging import routes as messaging
from handbill.people import routes as people
from handbill.reports import routes as reports
from handbill.segments import routes as segments
from handbill.tenants import routes as tenants

MOUNTS: dict[str, ModuleType] = {
    "tenants": tenants,
    "jobs": jobs,
    "banners": banners,
    "events": events,
    "people": people,
    "segments": segments,
    "insights": insights,
    "adstats": adstats,
    "reports": reports,
    "contacts": contacts,
    "messaging": messaging,
}

FASTLANES: tuple[str, ...] = ("banners", "capture")
"""Services of the house with hot routes: each has `fast_routes() -> list[FastRoute]`."""
