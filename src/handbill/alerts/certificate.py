"""When the TLS certificate of the public address ends; asked once an hour."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from handbill.alerts.evaluation import Page, Sample
from handbill.kit.clock import Clock
from handbill.kit.telemetry import logs

CHECK_EVERY_S = 3_600.0
TIMEOUT_S = 10.0
METRIC = "probe_ssl_earliest_cert_expiry"
"""The name that Prometheus' blackbox exporter gives it: one condition serves both."""
_log = logs.get("alerts")
ReadEnd: TypeAlias = Callable[[str, int], Awaitable[float]]


class CertificateCheck:
    """Asks at most once an hour. A failed attempt keeps the last answer: it says nothing about the certificate."""

    def __init__(self, host: str, port: int, clock: Clock, read_end: ReadEnd | None = None) -> None:
        self._host = host
        self._port = port
        self._clock = clock
        self._read_end = read_end or read_certificate_end
        self._due = float("-inf")
        self._end: float | None = None

    async def page(self) -> Page:
        """The end of the certificate as a metrics page of its own."""
        if self._clock.monotonic() >= self._due:
            self._due = self._clock.monotonic() + CHECK_EVERY_S
            await self._check()
        samples = () if self._end is None else (Sample(METRIC, {}, self._end),)
        return Page("certificate", f"{self._host}:{self._port}", is_up=True, samples=samples)

    async def _check(self) -> None:
        try:
            self._end = await self._read_end(self._host, self._port)
        except ssl.SSLCertVerificationError as error:
            _log.warning("alerts.certificate_refused", host=self._host, reason=error.verify_message)
            self._end = self._clock.now_ms() / 1000
        except (OSError, ValueError) as error:
            _log.warning("alerts.certificate_not_read", host=self._host, reason=type(error).__name__)


async def read_certificate_end(host: str, port: int) -> float:
    """Seconds since 1970. Raises OSError without a connection, SSLCertVerificationError if it is not valid now."""
    async with asyncio.timeout(TIMEOUT_S):
        _, writer = await asyncio.open_connection(host, port, ssl=ssl.create_default_context())
        try:
            certificate = writer.get_extra_info("peercert") or {}
            return float(ssl.cert_time_to_seconds(str(certificate.get("notAfter", ""))))
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
