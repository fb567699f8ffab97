"""`handbill api` with two more routes that read a batch of events and answer 202: what `ingest` is measured against.

`/bench/decode` makes the same events of the batch as the dialect does, and keeps none of them: the limit.
`/bench/json` only decodes the JSON into typed values: what the engine of the decoding could do at most.

Both are answered before anything else of ours is asked. With BENCH_PROFILE set, a profile of the event loop's thread
is written there at the end.
"""

from __future__ import annotations

import cProfile
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
import uvloop

from handbill import settings
from handbill.api import app, server
from handbill.api.fastlane import App
from handbill.events.dialects.canon import Dialect, Moment, Terms
from handbill.events.dialects.own_wire import EventIn
from handbill.events.dialects.router import open_request
from handbill.kit.fast import FastRequest
from handbill.kit.ids import new_id
from handbill.kit.telemetry import logs
from handbill.wiring.house import build

LIMIT = "/bench/decode"
JSON = "/bench/json"
_BODY = b'{"accepted":100,"dropped":[]}'
_START = {
    "type": "http.response.start",
    "status": 202,
    "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())],
}


class Batch(msgspec.Struct, frozen=True):
    events: list[EventIn]


_batch = msgspec.json.Decoder(Batch)


def _events(scope: Any, body: bytes) -> None:
    request = FastRequest("POST", "/v1/events", b"", dict(scope["headers"]), body, "10.0.0.1", "bench")
    moment = Moment(time.time_ns() // 1_000_000, lambda: str(new_id()))
    open_request(Dialect.OWN, request, moment).capture(Terms(1))


def _json(_: Any, body: bytes) -> None:
    _batch.decode(body)


WORK: dict[str, Callable[[Any, bytes], None]] = {LIMIT: _events, JSON: _json}


def _decoding_in_front(app: App) -> App:
    async def decoding(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] not in WORK:
            await app(scope, receive, send)
            return
        chunks = []
        while True:
            message = await receive()
            chunks.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        WORK[scope["path"]](scope, b"".join(chunks))
        await send(_START)
        await send({"type": "http.response.body", "body": _BODY})

    return decoding


def main() -> None:
    current = settings.current()
    logs.configure(current.log.level)
    ours = app.build
    server.build = lambda *given: _decoding_in_front(ours(*given))  # type: ignore[attr-defined] # in its place
    work = server.serve(build(current), current)
    wanted = os.environ.get("BENCH_PROFILE")
    if wanted is None:
        uvloop.run(work)
        return
    profile = cProfile.Profile()
    profile.runcall(uvloop.run, work)
    profile.dump_stats(wanted)


if __name__ == "__main__":
    main()
