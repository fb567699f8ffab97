"""`handbill api` with two more routes that read the body and answer 202: what tracking is measured against.

`/bench/limit` is answered before anything of ours is asked: a bare ASGI reply of the same server, the limit.
`/bench/lane` goes through the fast lane: the difference between the two is what the lane itself costs.

With BENCH_PROFILE set, it writes a profile of its event loop's thread there when it stops.
"""

from __future__ import annotations

import cProfile
import os
from typing import Any

import uvloop

from handbill import settings
from handbill.api import app, server
from handbill.api.fastlane import App
from handbill.kit.fast import FastReply, FastRequest, FastRoute
from handbill.kit.telemetry import logs
from handbill.wiring.house import House, build

LIMIT = "/bench/limit"
LANE = "/bench/lane"
_BODY = b'{"message":"Impression recorded.","data":null}'
_START = {
    "type": "http.response.start",
    "status": 202,
    "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())],
}
_REPLY = FastReply(202, _BODY)


async def lane(_: FastRequest) -> FastReply:
    """The body has been read; nothing is done with it."""
    return _REPLY


def _with_lane(house: House) -> House:
    """The banners' hot routes, and the bench's."""
    found = house.banners.fast_routes()
    house.banners.fast_routes = lambda: [*found, FastRoute("POST", LANE, lane, cors=True)]  # type: ignore[method-assign]
    return house


def _bare_in_front(app: App) -> App:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != LIMIT:
            await app(scope, receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        await send(_START)
        await send({"type": "http.response.body", "body": _BODY})

    return bare


def main() -> None:
    current = settings.current()
    logs.configure(current.log.level)
    ours = app.build
    server.build = lambda *given: _bare_in_front(ours(*given))  # type: ignore[attr-defined] # in its place
    work = server.serve(_with_lane(build(current)), current)
    wanted = os.environ.get("BENCH_PROFILE")
    if wanted is None:
        uvloop.run(work)
        return
    profile = cProfile.Profile()
    profile.runcall(uvloop.run, work)
    profile.dump_stats(wanted)


if __name__ == "__main__":
    main()
