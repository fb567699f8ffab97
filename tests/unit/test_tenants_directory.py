"""The directory's memory: a change told while a question is under way is never overruled by the older answer."""

from __future__ import annotations

import asyncio
from typing import Any

from handbill.infra.postgres import Database, derive
from handbill.tenants import keys
from handbill.tenants.directory import Directory, _Found
from handbill.tenants.jwks import KeySets
from handbill.tenants.model import WRITE_KEY_SCOPES, Principal
from handbill.tenants.seals import Sealer
from tests.kit.clocks import FakeClock
from tests.kit.hot import UNHURRIED


class Slow(Directory):
    """A directory whose database answers when the test says so."""

    def __init__(self, clock: FakeClock) -> None:
        nobody: Any = None
        database = Database(derive("postgresql://nobody@127.0.0.1:1/none"), hot=UNHURRIED)
        super().__init__(database, Sealer(b"k" * 32), KeySets(nobody, clock), clock)
        self.asked: list[asyncio.Future[_Found]] = []

    async def _load_key(self, digest: bytes) -> _Found:
        question: asyncio.Future[_Found] = asyncio.get_running_loop().create_future()
        self.asked.append(question)
        return await question

    def answer(self, number: int, tenant: int | None) -> None:
        now = self._clock.monotonic()
        who = Principal(tenant, "write_key", WRITE_KEY_SCOPES, "test") if tenant else None
        self.asked[number].set_result(_Found(tenant or 0, who, False, now + 5, now + 600))


async def asked(directory: Slow, number: int) -> None:
    while len(directory.asked) < number:
        await asyncio.sleep(0)


async def test_an_answer_overtaken_by_a_change_is_not_remembered() -> None:
    directory, key = Slow(FakeClock()), keys.make(keys.WRITE)
    first = asyncio.create_task(directory.write_key(key))
    await asked(directory, 1)
    directory.forget(7)
    second = asyncio.create_task(directory.write_key(key))
    await asked(directory, 2)
    directory.answer(1, None)
    assert await second is None
    directory.answer(0, 7)
    assert await first is not None, "it was asked before the change"
    assert await directory.write_key(key) is None, "the newer answer stands"


async def test_forgetting_is_by_tenant_and_takes_the_unknown_along() -> None:
    clock = FakeClock()
    directory = Slow(clock)
    one, two, nobody = (keys.make(keys.WRITE) for _ in range(3))
    for number, (key, tenant) in enumerate(((one, 1), (two, 2), (nobody, None))):
        question = asyncio.create_task(directory.write_key(key))
        await asked(directory, number + 1)
        directory.answer(number, tenant)
        await question
    assert await directory.write_key(one)
    assert await directory.write_key(two)
    directory.forget(1)
    assert await directory.write_key(two), "from memory"
    for number, key in ((3, one), (4, nobody)):
        question = asyncio.create_task(directory.write_key(key))
        await asked(directory, number + 1)
        directory.answer(number, None)
        assert await question is None
    clock.advance(seconds=60)
    question = asyncio.create_task(directory.write_key(two))
    await asked(directory, 6)
    directory.answer(5, 2)
    assert await question
