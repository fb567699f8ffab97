"""The ASGI application, from the outside in: fast lane, front door, Litestar with auth and idempotency, routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from litestar import Litestar, Request
from litestar.di import Provide

from handbill.api import api_docs, auth, demo, health, openapi, problems
from handbill.api.auth import Auth
from handbill.api.bodies import BodyReader
from handbill.api.body_budget import BodyLimits
from handbill.api.clients import Clients
from handbill.api.cors import Cors
from handbill.api.fastlane import PING, App, FastLane
from handbill.api.frontdoor import FrontDoor
from handbill.api.head import restore_method
from handbill.api.health import Readiness
from handbill.api.idempotency import Idempotency
from handbill.api.mounts import FASTLANES, MOUNTS
from handbill.api.parameters import KnownParameters
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Broken
from handbill.kit.fast import FastRoute
from handbill.kit.telemetry import metrics
from handbill.settings import Settings
from handbill.settings.model import Api
from handbill.tenants.model import Principal
from handbill.wiring.house import House


def build(house: House, settings: Settings, readiness: Readiness) -> App:
    """The whole application over a house. The caller starts and stops the house."""
    clients = Clients(settings.api.trusted_proxies)
    cors = Cors(settings.api.cors_origins)
    limit = settings.api.body_limit
    routes: Any = litestar(house, settings, readiness)  # an ASGI application like any other, typed more narrowly
    replies = readiness.replies
    bodies = BodyReader(_body_limits(settings.api), clients, SystemClock())
    metrics.API_BODY_BYTES_HELD.set_function(lambda: bodies.budget.held)
    behind = FrontDoor(routes, clients=clients, cors=cors, body_limit=limit, bodies=bodies, replies=replies)
    shared = {route.path for route in routes.routes}  # the lane answers its own methods there, and Litestar the others
    return FastLane(
        routes.state.fast_routes,
        behind,
        clients=clients,
        cors=cors,
        body_limit=limit,
        bodies=bodies,
        replies=replies,
        shared=shared,
    )


def _body_limits(api: Api) -> BodyLimits:
    return BodyLimits(
        timeout_s=api.body_timeout_s,
        bytes_per_s=api.body_bytes_per_s,
        upload_bytes_per_s=api.upload_bytes_per_s,
        held_bytes=api.bodies_held_bytes,
        held_bytes_per_address=api.bodies_held_bytes_per_address,
        bodies_per_address=api.bodies_per_address,
    )


def litestar(house: House, settings: Settings, readiness: Readiness) -> Litestar:
    """The routes that take their time."""
    parameters = KnownParameters()
    app = Litestar(
        route_handlers=[
            *health.handlers,
            *api_docs.handlers(),
            *demo.handlers(Path(settings.home), with_demo=settings.demo != "off"),
            *(handler for room in MOUNTS.values() for handler in room.handlers),
        ],
        dependencies={
            "principal": Provide(_principal, sync_to_thread=False),
            "readiness": _provided(readiness),
            "read_waits": _provided(house.read_waits),
            "secure_cookies": _provided(settings.api.secure_cookies),
            **{name: _provided(getattr(house, name)) for name in MOUNTS},
        },
        middleware=[
            Auth(house.tenants.directory),
            parameters,
            Idempotency(house.tenants.replays),
        ],
        exception_handlers={Exception: problems.render},
        before_request=restore_method,
        openapi_config=openapi.config(settings.api.public_url),
        logging_config=None,
        request_max_body_size=None,  # the front door counts
        debug=False,
    )
    _check_declared(app)
    parameters.learn(app)
    app.state.fast_routes = _fast_routes(house)
    return app


def _fast_routes(house: House) -> list[FastRoute]:
    """The hot routes of every room, and the empty reply they are measured against."""
    found = [PING]
    for name in FASTLANES:
        found += getattr(house, name).fast_routes()
    return found


def _principal(request: Request[Any, Any, Any]) -> Principal:
    found: Principal = request.scope["state"]["principal"]
    return found


def _provided(value: Any) -> Provide:
    return Provide(lambda: value, sync_to_thread=False, use_cache=True)


def _check_declared(app: Litestar) -> None:
    """A route that does not say who may use it stops the start."""
    for path, method, handler in openapi.routes(app):
        if len(auth.DECLARATIONS & set(handler.opt)) != 1:
            raise Broken(
                f"{method.upper()} {path} must say exactly one of {', '.join(sorted(auth.DECLARATIONS))} in its opt."
            )
