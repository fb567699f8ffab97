"""How long the tokens of providers last: into the metrics, by kind and without tenants, and into the log with them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from handbill.jobs.chores import Loop
from handbill.kit.clock import Clock
from handbill.kit.telemetry import logs, metrics
from handbill.kit.token_ends import EndingToken, TokenSummary

_log = logs.get("tokens")
EVERY_S = 15.0
Summarise = Callable[[datetime], Awaitable[TokenSummary]]
GAUGES = (metrics.TOKEN_SECONDS_LEFT, metrics.TOKENS_ENDING, metrics.TOKENS_DEAD)


class TokenEnds(Loop):
    """Only the leader measures; who leads no more shows nothing."""

    def __init__(self, sources: Mapping[str, Summarise], clock: Clock) -> None:
        super().__init__("token-ends")
        self._sources = sources
        self._clock = clock
        self._logged: dict[str, set[EndingToken]] = {}

    async def turn(self) -> None:
        for kind, summarise in self._sources.items():
            self._show(kind, await summarise(self._clock.now()))
        self.health.processed()
        self.ready.set()
        await self.rest(EVERY_S)

    async def stop(self) -> None:
        await super().stop()
        for gauge in GAUGES:
            gauge.clear()

    def _show(self, kind: str, found: TokenSummary) -> None:
        metrics.TOKENS_ENDING.labels(kind).set(found.ending)
        metrics.TOKENS_DEAD.labels(kind).set(found.dead)
        if found.seconds_left is not None:
            metrics.TOKEN_SECONDS_LEFT.labels(kind).set(found.seconds_left)
        else:
            with contextlib.suppress(KeyError):
                metrics.TOKEN_SECONDS_LEFT.remove(kind)
        for token in set(found.first) - self._logged.get(kind, set()):
            names = {"tenant_id": token.tenant_id, "connection_id": token.connection_id}
            _log.warning("tokens.ending", kind=kind, ends_at=token.ends_at.isoformat(), **names)
        self._logged[kind] = set(found.first)
