"""Which port an engine listens on. Addresses stay the same over restarts where they can."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from handbill.infra.embedded import home as homes
from handbill.kit.errors import Broken

T = TypeVar("T")
_TRIES = 5
_LOOKS = 40
_RANGE = range(20_000, 32_000)


async def on_port(home: Path, name: str, wanted: int | None, begin: Callable[[int], Awaitable[T]]) -> T:
    """Begin on the wanted port; else on the one used last time; else on any free one.

    Between looking and binding another program may take a free port: then we take another. A wanted port is final.
    """
    note = home / "run" / f"{name}.port"
    for left in reversed(range(_TRIES)):
        port = wanted or await _last(note) or _any()
        try:
            if not await _soon_free(port):
                raise port_taken(name, port)
            begun = await begin(port)
        except Broken as error:
            if wanted is not None or error.code != "PORT_TAKEN" or not left:
                raise
            note.unlink(missing_ok=True)
        else:
            with homes.explained(note):
                homes.write_private(note, f"{port}\n")
            return begun
    raise AssertionError("unreachable")


async def _last(note: Path) -> int | None:
    """The port of the last start, if it is free now or soon: a process that ends closes its port a moment later."""
    try:
        last = int(note.read_text())
    except (OSError, ValueError):
        return None
    return last if await _soon_free(last) else None


async def _soon_free(port: int) -> bool:
    for _ in range(_LOOKS):
        if _free(port):
            return True
        await asyncio.sleep(0.05)
    return False


def _any() -> int:
    """A free port below the range from which outgoing connections take theirs: free it stays over a restart."""
    for port in random.sample(_RANGE, _LOOKS):
        if _free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_taken(name: str, port: int) -> Broken:
    return Broken(
        f"{name}: port {port} on 127.0.0.1 is taken by another program. Nothing was changed. "
        f"Stop that program, or set HANDBILL_{name.upper()}__PORT.",
        code="PORT_TAKEN",
    )


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
