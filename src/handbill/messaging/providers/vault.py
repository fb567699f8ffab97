"""Tokens by reference: sealed where they are kept, opened for a call, remembered for a short while.

Only sealed bytes ever reach a table. The place that a secret is sealed for names its tenant and its reference, so that
bytes copied to another tenant's row do not open there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from handbill.kit.clock import Clock
from handbill.messaging.model import Account, Credentials

Load = Callable[[Account], Awaitable[bytes]]
"""Finds the sealed bytes behind an account's reference, or raises."""

MOST = 10_000


class Seal(Protocol):
    def seal(self, clear: bytes, place: str) -> bytes: ...

    def open(self, sealed: bytes, place: str) -> bytes: ...


class Vault:
    """The port's `Secrets`. A changed token is used at the latest after `fresh_s`; `forget` makes it at once."""

    def __init__(self, seal: Seal, load: Load, clock: Clock, *, fresh_s: float = 30.0) -> None:
        self._seal = seal
        self._load = load
        self._clock = clock
        self._fresh_s = fresh_s
        self._opened: OrderedDict[tuple[int, str], tuple[float, Credentials]] = OrderedDict()

    def sealed(self, tenant_id: int, secret: str, credentials: Credentials) -> bytes:
        """What a row may keep."""
        return self._seal.seal(msgspec.json.encode(credentials), _place(tenant_id, secret))

    def lend(self, tenant_id: int, secret: str, credentials: Credentials) -> None:
        """For secrets that are not kept yet: good under this name for a short while, or until they are forgotten."""
        self._remember((tenant_id, secret), credentials)

    async def credentials(self, account: Account) -> Credentials:
        key = (account.tenant_id, account.secret)
        kept = self._opened.get(key)
        now = self._clock.monotonic()
        if kept is not None and now - kept[0] < self._fresh_s:
            return kept[1]
        clear = self._seal.open(await self._load(account), _place(*key))
        found = msgspec.json.decode(clear, type=Credentials)
        self._remember(key, found)
        return found

    def _remember(self, key: tuple[int, str], found: Credentials) -> None:
        self._opened[key] = (self._clock.monotonic(), found)
        self._opened.move_to_end(key)
        if len(self._opened) > MOST:
            self._opened.popitem(last=False)

    def forget(self, tenant_id: int, secret: str) -> None:
        self._opened.pop((tenant_id, secret), None)


def _place(tenant_id: int, secret: str) -> str:
    return f"provider {tenant_id} {secret}"
