"""An import by real workers that are killed at random; shared by the test and the soak."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

from handbill.contacts.model import ImportView
from handbill.contacts.service import ContactsService
from tests.kit.processes import Process
from tests.kit.waiting import eventually

Begin = Callable[[AsyncExitStack], Any]
"""Starts a worker process, ready to work."""


async def through_fire(
    service: ContactsService,
    tenant: int,
    import_id: UUID,
    begin: Begin,
    dice: random.Random,
    kills: int,
    until: str = "done",
    timeout: float = 120,
) -> int:
    """Lets workers do the import until it is over; kills one each time that it has come a random step further."""
    done = 0

    async def look() -> ImportView:
        return await service.imports.read(tenant, import_id)

    def over(view: ImportView) -> bool:
        return view.info.status in (until, "failed")

    async with AsyncExitStack() as doors:
        worker: Process = await begin(doors)
        marks = sorted(dice.uniform(0.02, 1.9) for _ in range(kills))
        for mark in marks:

            async def far_enough(mark: float = mark) -> bool:
                view = await look()
                at = view.progress
                return over(view) or (at.rows > 0 and (at.parsed + at.merged) / at.rows >= mark)

            await eventually(far_enough, timeout=timeout, what=f"the import is at {mark:.2f}")
            if over(await look()):
                break
            worker.kill()
            await worker.exit()
            done += 1
            worker = await begin(doors)

        async def ended() -> bool:
            return over(await look())

        await eventually(ended, timeout=timeout, what=f"the import is {until}")
        view = await look()
        assert view.info.status == until, view.info.error
    return done
