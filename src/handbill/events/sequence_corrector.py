"""Smaller sequences for rows that ClickHouse had before a copy with a smaller one came.

    open      the pipeline wrote a correction; ClickHouse is asked which sequence it has
    absent    it does not have the event yet: the exporter reads the correction; asked again later
    larger    one mutation for the corrections of all tenants, then asked again when it is done
    finished  ClickHouse was seen to have the right one; forgotten a day later

It may end anywhere: nothing is finished before ClickHouse shows it, and a mutation that runs twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from handbill.events.correction_store import Correction, CorrectionStore, EventKey
from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse, ClickHouseError
from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.errors import Broken
from handbill.kit.telemetry import logs, metrics

Q = sqlfiles.queries("handbill.events")
_log = logs.get("sequence_corrector")
_NO_TABLE = frozenset({60, 81})
_STATEMENT_BYTES = 16 << 20


class CorrectorPolicy(msgspec.Struct, frozen=True):
    """At most `max_rows` corrections at a time, `max_rows_per_tenant` of one tenant. Finished ones are kept for a day:
    the exporter may have to export their events again."""

    max_rows: int = 5_000
    max_rows_per_tenant: int = 1_000
    keep: timedelta = timedelta(days=1)


class SequenceCorrector:
    def __init__(
        self, database: Database, clickhouse: ClickHouse, clock: Clock, policy: CorrectorPolicy | None = None
    ) -> None:
        self._database = database
        self._clickhouse = clickhouse
        self._clock = clock
        self._policy = policy or CorrectorPolicy()
        self._store = CorrectionStore()

    async def run(self) -> bool:
        """One round. True: look again soon, a mutation was begun or is under way, or there is more to look at.

        Raises Busy while an engine does not answer, Broken when ClickHouse cannot carry out the mutation.
        """
        if await self._is_mutating():
            return True
        policy = self._policy
        async with self._database.worker() as tx:
            due = await self._store.due(tx, per_tenant=policy.max_rows_per_tenant, limit=policy.max_rows)
        began = await self._check(due) if due else False
        async with self._database.worker() as tx:
            await self._store.forget_finished(tx, self._clock.now() - policy.keep, policy.max_rows)
            metrics.SEQUENCE_CORRECTIONS_OPEN.set(await self._store.open(tx))
        return began or len(due) >= policy.max_rows

    async def _check(self, due: Sequence[Correction]) -> bool:
        """Finish what is right, postpone what is absent, and begin a mutation for the rest; whether there was one."""
        stored = await self._stored(due)
        finished: list[Correction] = []
        absent: list[Correction] = []
        larger: list[Correction] = []
        for each in due:
            sequence = stored.get((each.tenant_id, each.event_key))
            (absent if sequence is None else larger if sequence > each.sequence else finished).append(each)
        async with self._database.worker() as tx:
            await self._store.finish(tx, finished)
        async with self._database.worker() as tx:
            await self._store.postpone(tx, absent)
        metrics.SEQUENCE_CORRECTIONS_FINISHED.inc(len(finished))
        if larger:
            settings = {"mutations_sync": 0, "max_query_size": _STATEMENT_BYTES}
            await self._clickhouse.command(_mutation(larger), settings)
            _log.info("sequence_corrections.begun", rows=len(larger))
        return bool(larger)

    async def _stored(self, corrections: Sequence[Correction]) -> dict[EventKey, int]:
        """The sequences that ClickHouse has of those events that it has."""
        tenants, keys = _lists(corrections)
        statement = Q.stored_sequences.text.replace("<<tenants>>", tenants).replace("<<keys>>", keys)
        try:
            rows = await self._clickhouse.query(statement, settings={"max_query_size": _STATEMENT_BYTES})
        except ClickHouseError as error:
            if error.code not in _NO_TABLE:
                raise
            return {}
        return {(int(tenant), bytes.fromhex(digits)): int(sequence) for tenant, digits, sequence in rows}

    async def _is_mutating(self) -> bool:
        """One that fails would be tried for ever, and hold up all later ones: it is ended and reported."""
        running = await self._clickhouse.query(Q.corrections_running.text)
        for mutation, reason in running:
            if reason:
                await self._clickhouse.command(Q.end_mutation.text.replace("<<mutation>>", mutation))
                raise Broken(f"ClickHouse could not correct sequences: {reason}", code="SEQUENCES_NOT_CORRECTED")
        return bool(running)


def _mutation(corrections: Sequence[Correction]) -> str:
    tenants, keys = _lists(corrections)
    names = ", ".join(f"'{each.tenant_id} {each.event_key.hex().upper()}'" for each in corrections)
    sequences = ", ".join(f"toUInt64({each.sequence})" for each in corrections)
    wanted = Q.wanted_sequence.text.replace("<<names>>", names).replace("<<sequences>>", sequences)
    statement = Q.correct_sequences.text.replace("<<tenants>>", tenants).replace("<<keys>>", keys)
    return statement.replace("<<wanted>>", wanted)


def _lists(corrections: Sequence[Correction]) -> tuple[str, str]:
    tenants = ", ".join(str(number) for number in sorted({each.tenant_id for each in corrections}))
    keys = ", ".join(f"unhex('{digits}')" for digits in sorted({each.event_key.hex() for each in corrections}))
    return tenants, keys
