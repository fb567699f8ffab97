"""Redis in a backup: memory does not grow with the number of keys, and a key that SCAN names twice does no harm."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

from handbill.ops.backup import redis as backup

PAGES = 200


class Source:
    """Redis with as many keys as wanted. SCAN names the first key again at its end."""

    def __init__(self, pages: int, page: int) -> None:
        self._pages = pages
        self._page = page

    async def time_ms(self) -> int:
        return 1_000

    async def call(self, *command: Any) -> Any:
        assert command[0] == "SCAN"
        number = int(command[1])
        keys = [b"bull:%030d" % (number * self._page + place) for place in range(self._page)]
        if number + 1 == self._pages:
            return b"0", [*keys, b"bull:%030d" % 0]
        return str(number + 1).encode(), keys

    async def many(self, commands: Any) -> Any:
        return [b"value of %s" % key if name == "DUMP" else -1 for name, key in commands]


async def test_memory_does_not_grow_with_the_number_of_keys(tmp_path: Path) -> None:
    source: Any = Source(PAGES, backup.CHUNK)
    await backup._write(source, tmp_path / "first")  # what is made once is made by now
    tracemalloc.start()
    try:
        assert await backup._write(source, tmp_path / "frames") == PAGES * backup.CHUNK + 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    names = PAGES * backup.CHUNK * 60
    assert peak < names / 3, "less than the names of the keys alone"


async def test_a_key_that_scan_names_twice_is_restored_with_its_value(tmp_path: Path) -> None:
    source: Any = Source(1, 3)
    assert await backup._write(source, tmp_path / "frames") == 4
    restored: dict[bytes, bytes] = {}

    class Target:
        async def time_ms(self) -> int:
            return 2_000

        async def many(self, commands: Any) -> None:
            for name, key, _, value, replace in commands:
                assert (name, replace) == ("RESTORE", "REPLACE")
                restored[key] = value

    target: Any = Target()
    await backup.copy_in(target, tmp_path / "frames")
    assert restored == {key: b"value of " + key for key in (b"bull:%030d" % number for number in range(3))}
