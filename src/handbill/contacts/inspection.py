"""Reading the head of an uploaded file within limits: for its proposal, a changed header and its preview.

What a client sent is parsed in a process of its own, never in this one: a file that burns CPU time or memory costs that
process. A tenant has at most half of the processes, so that its files do not keep others from theirs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from handbill.contacts import understand
from handbill.contacts.chunks import Cpu
from handbill.contacts.model import Plan
from handbill.contacts.parse import Fields
from handbill.contacts.sources import Bounds
from handbill.jobs.model import CpuDied, CpuLimitExceeded
from handbill.kit.errors import Busy, HandbillError, Invalid, Throttled
from handbill.kit.telemetry import logs

WALL_FACTOR, WALL_EXTRA_S = 2, 30.0
"""A process that waits instead of computing is ended after this many times its CPU limit, and some seconds more."""
RETRY_AFTER_S = 5.0

log = logs.get("contacts")


class InspectionLimits(msgspec.Struct, frozen=True):
    """Processes that read heads of files, the CPU time of one reading, and who may wait for a process and how long."""

    processes: int = 2
    cpu_s: float = 30.0
    waiting_per_tenant: int = 20
    wait_s: float = 60.0

    @property
    def per_tenant(self) -> int:
        """Processes that one tenant may have at once."""
        return max(1, self.processes // 2)


class FileInspector:
    """Proposals and previews. All methods raise Invalid (`IMPORT_LIMIT`) for a file that exceeds a limit, Throttled or
    Busy (`PREVIEW_BUSY`) when no process is free in time, and what reading the file raises.
    """

    def __init__(self, cpu: Cpu, bounds: Bounds, limits: InspectionLimits) -> None:
        self._cpu = cpu
        self._bounds = bounds
        self._limits = limits
        self._processes = asyncio.Semaphore(limits.processes)
        self._tenants: dict[int, asyncio.Semaphore] = {}
        self._requests: Counter[int] = Counter()

    async def propose(
        self,
        tenant_id: int,
        path: Path,
        name: str,
        region: str | None,
        like: Plan | None = None,
        member: str | None = None,
    ) -> Plan:
        """How the file is read and where its columns go; `like` is the plan whose rejected rows these are.

        `member`: which file of a `.zip` is meant.
        """
        arguments = (str(path), name, self._bounds, region, like, member)
        try:
            plan: Plan = await self._run(tenant_id, understand.proposal, *arguments)
        except UnicodeDecodeError as error:
            raise Invalid("The file's encoding cannot be made out.", code="IMPORT_NOT_A_TABLE") from error
        return plan

    async def change_header(self, tenant_id: int, path: Path, plan: Plan, header: bool, skip_rows: int) -> Plan:
        """The plan for a file whose header is elsewhere, or nowhere. Raises FileNotFoundError."""
        changed: Plan = await self._run(
            tenant_id, understand.reheaded, str(path), self._bounds, plan, header, skip_rows
        )
        return changed

    async def read_head(
        self, tenant_id: int, path: Path, plan: Plan, max_rows: int
    ) -> tuple[list[list[str] | str], list[Fields | None]]:
        """The first rows as cells and as fields. Raises FileNotFoundError."""
        rows: tuple[list[list[str] | str], list[Fields | None]] = await self._run(
            tenant_id, understand.read_head, str(path), self._bounds, plan, max_rows
        )
        return rows

    async def _run(self, tenant_id: int, function: Callable[..., Any], *args: Any) -> Any:
        cpu_s = self._limits.cpu_s
        wall_s = cpu_s * WALL_FACTOR + WALL_EXTRA_S
        async with self._process(tenant_id):
            try:
                try:
                    return await self._cpu(function, *args, cpu_s=cpu_s, wall_s=wall_s)
                except CpuDied:  # killed from outside, or the file crashes its reader: then it does so again
                    return await self._cpu(function, *args, cpu_s=cpu_s, wall_s=wall_s)
            except (CpuLimitExceeded, CpuDied) as error:
                log.warning("import.inspection_limit_exceeded", tenant_id=tenant_id, reason=str(error))
                raise Invalid(
                    f"The first rows of the file could not be read within {cpu_s:g} s of CPU time and the memory of one"
                    " process. Save it as plain CSV, simplify it or split it.",
                    code="IMPORT_LIMIT",
                ) from error

    @asynccontextmanager
    async def _process(self, tenant_id: int) -> AsyncIterator[None]:
        """One of the tenant's places first, then a process: who waits for the tenant's own files takes none."""
        if self._requests[tenant_id] >= self._limits.per_tenant + self._limits.waiting_per_tenant:
            raise self._tenant_busy()
        self._requests[tenant_id] += 1
        places = self._tenants.setdefault(tenant_id, asyncio.Semaphore(self._limits.per_tenant))
        try:
            async with (
                _acquired(places, self._limits.wait_s, self._tenant_busy),
                _acquired(self._processes, self._limits.wait_s, _all_busy),
            ):
                yield
        finally:
            self._requests[tenant_id] -= 1
            if not self._requests[tenant_id]:
                del self._requests[tenant_id], self._tenants[tenant_id]

    def _tenant_busy(self) -> HandbillError:
        return Throttled(
            "Other files of yours are being read; try again when they are done.",
            code="PREVIEW_BUSY",
            retry_after=RETRY_AFTER_S,
        )


@asynccontextmanager
async def _acquired(
    semaphore: asyncio.Semaphore, wait_s: float, refusal: Callable[[], HandbillError]
) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(wait_s):
            await semaphore.acquire()
    except TimeoutError:
        raise refusal() from None
    try:
        yield
    finally:
        semaphore.release()


def _all_busy() -> HandbillError:
    return Busy(
        "All processes that read uploaded files are busy; try again shortly.",
        code="PREVIEW_BUSY",
        retry_after=RETRY_AFTER_S,
    )
