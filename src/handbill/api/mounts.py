"""The slices whose routes are mounted, by the name of their service in the house. One line per slice."""

from __future__ import annotations

from types import ModuleType

from handbill.banners import routes as banners
from handbill.events import routes as events
from handbill.jobs import routes as jobs
from handbill.messaging import routes as messaging
from handbill.tenants import routes as tenants

MOUNTS: dict[str, ModuleType] = {
    "tenants": tenants,
    "jobs": jobs,
    "banners": banners,
    "events": events,
    "messaging": messaging,
}

FASTLANES: tuple[str, ...] = ("banners",)
"""Services of the house with hot routes: each has `fast_routes() -> list[FastRoute]`."""
