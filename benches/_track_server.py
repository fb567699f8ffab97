"""`handbill api` with one more hot route, which reads the body and answers 202: what tracking is measured against.

With BENCH_PROFILE set, it writes a profile of its event loop's thread there when it stops.
"""

from __future__ import annotations

import cProfile
import os

import uvloop

from handbill import settings
from handbill.api.server import serve
from handbill.kit.fast import FastReply, FastRequest, FastRoute
from handbill.kit.telemetry import logs
from handbill.wiring.house import House, build

LIMIT = "/bench/limit"
_REPLY = FastReply(202, b'{"message":"Impression recorded.","data":null}')


async def limit(_: FastRequest) -> FastReply:
    """The body has been read; nothing is done with it."""
    return _REPLY


def _with_limit(house: House) -> House:
    """The banners' hot routes, and the bench's."""
    found = house.banners.fast_routes()
    house.banners.fast_routes = lambda: [*found, FastRoute("POST", LIMIT, limit, cors=True)]  # type: ignore[method-assign]
    return house


def main() -> None:
    current = settings.current()
    logs.configure(current.log.level)
    work = serve(_with_limit(build(current)), current)
    wanted = os.environ.get("BENCH_PROFILE")
    if wanted is None:
        uvloop.run(work)
        return
    profile = cProfile.Profile()
    profile.runcall(uvloop.run, work)
    profile.dump_stats(wanted)


if __name__ == "__main__":
    main()
