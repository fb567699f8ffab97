"""A board that a test and its processes share: what time it is, whether commits are held, how far each process is.

One small mapped file of eight-byte numbers. The test writes the time; every process started by `show_process` tells its
decisions by it, so that a test can stand exactly on a boundary and skip a month without waiting.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

SLOTS = 8
_NOW, _HOLD, _TENANT, _PROJECTED, _VERSIONS = range(5)


class Board:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * (_VERSIONS + SLOTS)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def _get(self, at: int) -> int:
        return int(struct.unpack_from("=q", self._map, at * 8)[0])

    def _set(self, at: int, number: int) -> None:
        struct.pack_into("=q", self._map, at * 8, number)

    @property
    def now_ms(self) -> int:
        return self._get(_NOW)

    @now_ms.setter
    def now_ms(self, number: int) -> None:
        self._set(_NOW, number)

    @property
    def hold(self) -> bool:
        """While set, the worker commits nothing."""
        return bool(self._get(_HOLD))

    @hold.setter
    def hold(self, held: bool) -> None:
        self._set(_HOLD, int(held))

    @property
    def tenant(self) -> int:
        """Whose catalogue versions are told."""
        return self._get(_TENANT)

    @tenant.setter
    def tenant(self, number: int) -> None:
        for slot in range(SLOTS):
            self._set(_VERSIONS + slot, 0)
        self._set(_PROJECTED, 0)
        self._set(_TENANT, number)

    @property
    def projected(self) -> int:
        """Views of the tenant that were committed or refused, and told to Redis."""
        return self._get(_PROJECTED)

    @projected.setter
    def projected(self, number: int) -> None:
        self._set(_PROJECTED, number)

    def version(self, slot: int) -> int:
        """The tenant's catalogue as one process has it."""
        return self._get(_VERSIONS + slot)

    def tell_version(self, slot: int, version: int) -> None:
        self._set(_VERSIONS + slot, version)

    def close(self) -> None:
        self._map.close()
