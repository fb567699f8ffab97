"""Tokens by reference: sealed where they are kept, opened for a call, remembered for a short while.

Only sealed bytes ever reach a table. The place that a secret is sealed for names its tenant and its reference, so that
bytes copied to another tenant's row do not open there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from handbill.kit.bounds import PROVIDER_SECRETS
from handbill.kit.caches import TtlCache
from handbill.kit.clock import Clock
from handbill.messaging.model import Account, Credentials

Load = Callable[[Account], Awaitable[bytes]]
"""Finds the sealed bytes behind an account's reference, or raises."""


class Seal(Protocol):
    def seal(self, clear: bytes, place: str) -> bytes: ...

    def open(self, sealed: bytes, place: str) -> bytes: ...


class Vault:
    """The port's `Secrets`. A changed token is used at the latest after `fresh_s`; `forget` makes it at once."""

    def __init__(self, seal: Seal, load: Load, clock: Clock, *, fresh_s: float = 30.0) -> None:
        self._seal = seal
        self._load = load
        self._opened: TtlCache[tuple[int, str], Credentials] = TtlCache(PROVIDER_SECRETS, fresh_s, clock.monotonic)

    def sealed(self, tenant_id: int, secret: str, credentials: Credentials) -> bytes:
        """What a row may keep."""
        return self._seal.seal(msgspec.json.encode(credentials), _place(tenant_id, secret))

    def lend(self, tenant_id: int, secret: str, credentials: Credentials) -> None:
        """For secrets that are not kept yet: good under this name for a short while, or until they are forgotten."""
        self._opened[(tenant_id, secret)] = credentials

    async def credentials(self, account: Account) -> Credentials:
        key = (account.tenant_id, account.secret)
        opened = self._opened.get(key)
        if opened is None:
            clear = self._seal.open(await self._load(account), _place(*key))
            opened = self._opened[key] = msgspec.json.decode(clear, type=Credentials)
        return opened

    def forget(self, tenant_id: int, secret: str) -> None:
        self._opened.pop((tenant_id, secret), None)


def _place(tenant_id: int, secret: str) -> str:
    return f"provider {tenant_id} {secret}"
