"""Passwords: argon2id, checked in a thread, a few at a time, because each check costs tens of megabytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from handbill.kit.errors import Busy

AT_ONCE = 2
WAITING = 50
"""Of known browsers as many wait in a queue of their own: a flood of guesses does not keep them out."""


class Passwords:
    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._gates = {known: asyncio.Semaphore(AT_ONCE) for known in (False, True)}
        self._waiting = dict.fromkeys(self._gates, 0)
        self._nobody: str | None = None

    async def hash(self, password: str) -> str:
        async with self._turn():
            return await asyncio.to_thread(self._hasher.hash, password)

    async def matches(self, known: str | None, password: str, *, known_browser: bool = False) -> bool:
        """Checks against `known`; against nobody's hash when there is none, so that both take equally long."""
        if known is None:
            if self._nobody is None:
                self._nobody = await self.hash("nobody has this password")
            known_hash, exists = self._nobody, False
        else:
            known_hash, exists = known, True
        async with self._turn(known_browser):
            return await asyncio.to_thread(self._check, known_hash, password) and exists

    @contextlib.asynccontextmanager
    async def _turn(self, known_browser: bool = False) -> AsyncIterator[None]:
        """A place in a short queue; past its end we say busy, so that a flood of logins costs only logins."""
        if self._waiting[known_browser] >= WAITING:
            raise Busy("Too many logins at once; nothing was done. Try again shortly.", retry_after=2)
        self._waiting[known_browser] += 1
        try:
            async with self._gates[known_browser]:
                yield
        finally:
            self._waiting[known_browser] -= 1

    def _check(self, known: str, password: str) -> bool:
        try:
            return self._hasher.verify(known, password)
        except (VerificationError, InvalidHashError):
            return False
