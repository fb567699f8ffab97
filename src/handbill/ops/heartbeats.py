"""Ends a child that hangs: its heartbeat file grew old, so it is killed and then started again like any that died.

Where no file can be touched (the disk is read-only, or full and of a kind that needs room for it) an old file tells
nothing: then nobody is killed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from handbill.kit.clock import Clock, SystemClock
from handbill.ops.teller import Teller

LIMIT_S = 30.0
"""A living child touches its file every 5 s."""
PERIOD_S = 1.0


class Killable(Protocol):
    """A supervised process; `pid` is None until it is ready."""

    name: str

    @property
    def pid(self) -> int | None: ...

    def kill(self) -> None: ...


@dataclass(slots=True)
class _Watched:
    unit: Killable
    file: Path
    pid: int | None = None
    modified: float | None = None
    since: float = 0.0
    """When this run was first seen ready, or when its file last changed; monotonic."""
    is_trusted: bool = True
    """False while a file of a former run could not be removed."""
    excused_until: float = 0.0
    """Nobody could touch the file: the child gets a whole period once somebody can."""

    @property
    def probe(self) -> Path:
        """A file beside the child's, to see whether one can be touched there."""
        return self.file.with_name(f"{self.file.name}.probe")


class HeartbeatCheck:
    """Looks at the heartbeat files of children that are ready; `check` is to be called every `PERIOD_S`."""

    def __init__(self, teller: Teller, clock: Clock | None = None) -> None:
        self._teller = teller
        self._clock = clock or SystemClock()
        self._watched: dict[str, _Watched] = {}
        self._checked_at: tuple[float, float] | None = None
        self._excused_until = 0.0

    def watch(self, unit: Killable, file: Path) -> None:
        """Check this child from now on, whenever it is ready."""
        self._watched[unit.name] = _Watched(unit, file)

    def prepare_start(self, name: str) -> None:
        """Remove the file of a former run; to be called before each start."""
        watched = self._watched[name]
        watched.pid = None
        _touch(watched.probe)  # now: on a full disk no new file can be made, but one that is there can be touched
        try:
            watched.file.unlink(missing_ok=True)
            watched.is_trusted = True
        except OSError as error:
            watched.is_trusted = False
            detail = (
                f"{name} is not restarted if it hangs: {watched.file} cannot be removed ({error.strerror or error})"
            )
            self._teller.warn("heartbeat.not_removed", detail, name=name)

    async def check(self) -> None:
        """Kill every child whose file was not touched within the limit."""
        monotonic, wall = self._clock.monotonic(), self._clock.now().timestamp()
        self._excuse_own_lateness(monotonic, wall)
        for watched in self._watched.values():
            age = self._age(watched, monotonic, wall)
            if age < LIMIT_S or monotonic < max(self._excused_until, watched.excused_until):
                continue
            if (error := _touch(watched.probe)) is not None:
                watched.excused_until = monotonic + LIMIT_S
                self._warn_not_watched(watched, error)
            else:
                detail = f"{watched.unit.name} gave no heartbeat for {age:.0f} s; it is killed and started again"
                self._teller.warn("heartbeat.too_old", detail, name=watched.unit.name, pid=watched.pid)
                watched.since = monotonic
                watched.unit.kill()

    def _warn_not_watched(self, watched: _Watched, error: OSError) -> None:
        name, why = watched.unit.name, error.strerror or error
        detail = f"{name} is not restarted if it hangs: no file in {watched.file.parent} can be touched ({why})"
        self._teller.warn("heartbeat.not_writable", detail, name=name)

    def _excuse_own_lateness(self, monotonic: float, wall: float) -> None:
        """After we ourselves stood still (stopped, machine asleep, clock changed), children get one more period."""
        if self._checked_at is not None:
            late = max(monotonic - self._checked_at[0], wall - self._checked_at[1])
            if late >= LIMIT_S / 2:
                self._excused_until = monotonic + LIMIT_S
        self._checked_at = monotonic, wall

    def _age(self, watched: _Watched, monotonic: float, wall: float) -> float:
        """Seconds since the last touch; 0 for a child that is not ready or has not written a file in this run."""
        if not watched.is_trusted or watched.unit.pid is None:
            return 0.0
        if watched.pid != watched.unit.pid:
            watched.pid, watched.modified, watched.since = watched.unit.pid, None, monotonic
        try:
            modified = watched.file.stat().st_mtime
        except OSError:  # gone: not touched either
            modified = watched.modified or 0.0
        if not modified:
            return 0.0
        if modified != watched.modified:
            watched.modified, watched.since = modified, monotonic
        return max(wall - modified, monotonic - watched.since)  # the second also after the clock was set back


def _touch(path: Path) -> OSError | None:
    """Touch a file as children touch theirs; the error if that is not possible."""
    try:
        path.touch()
        os.utime(path)
    except OSError as error:
        return error
    return None
