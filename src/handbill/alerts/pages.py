"""Reads the metrics pages of processes: bounded in time, bytes and series, and only what the conditions need."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from handbill.alerts.conditions import METRICS
from handbill.alerts.evaluation import Page, Sample
from handbill.infra.safe_http import HttpPolicy, SafeHttpClient
from handbill.kit.errors import HandbillError, Invalid
from handbill.kit.telemetry import logs

PAGE_TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_SERIES = 20_000
"""Lines of one page that conditions read; a page with more counts as not answered."""
_POLICY = HttpPolicy(https_only=False, public_only=False, ports=None, max_bytes=MAX_PAGE_BYTES, total_s=PAGE_TIMEOUT_S)
_log = logs.get("alerts")


def can_read(url: str) -> bool:
    """Whether a metrics page may have this address: http or https, without credentials."""
    try:
        _POLICY.check(url)
    except Invalid:
        return False
    return True


class Target(msgspec.Struct, frozen=True):
    """A process to watch: `job` is what it is (handbill-api, handbill-worker), `instance` which one."""

    job: str
    instance: str
    url: str


class PageReader:
    """Reads all targets at once. The addresses are the administrator's own, so any host and port may be named."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = tuple(targets)
        self._http = SafeHttpClient(_POLICY)

    async def read(self) -> list[Page]:
        return list(await asyncio.gather(*(self._read(target) for target in self._targets)))

    async def close(self) -> None:
        await self._http.close()

    async def _read(self, target: Target) -> Page:
        try:
            body = await self._http.get(target.url)
            samples = await asyncio.to_thread(parse, body)
        except (HandbillError, ValueError) as error:
            _log.debug("alerts.page_failed", job=target.job, instance=target.instance, reason=type(error).__name__)
            return Page(target.job, target.instance, is_up=False)
        return Page(target.job, target.instance, is_up=True, samples=samples)


def parse(body: bytes) -> list[Sample]:
    """The samples that conditions read. Raises ValueError for a page that cannot be read or has too many of them."""
    names = tuple(METRICS)
    lines = [line for line in body.decode().split("\n") if line.startswith(names) and _name_of(line) in METRICS]
    if len(lines) > MAX_SERIES:
        raise ValueError(f"more than {MAX_SERIES} series")
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    return [Sample(one.name, one.labels, one.value) for family in families for one in family.samples]


def _name_of(line: str) -> str:
    return line.split("{", 1)[0].split(" ", 1)[0]
