"""Traces through OpenTelemetry, when an endpoint is configured and the `telemetry` extra is installed; else nothing.

A span is opened per request, batch or job, never per statement. While tracing is off `span` costs one comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from handbill.kit.errors import Broken
from handbill.kit.telemetry import logs

Value: TypeAlias = str | int | float | bool

_log = logs.get("tracing")
_OFF: AbstractContextManager[Any] = nullcontext()
_tracer: Any = None
_provider: Any = None


def configure(endpoint: str | None, *, service: str = "handbill", exporter: Any = None) -> None:
    """Start exporting to an OTLP/HTTP endpoint. Without one (and without an exporter) tracing is off."""
    global _tracer, _provider
    stop()
    if not endpoint and exporter is None:
        return
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Broken(
            "An OTLP endpoint is set, but OpenTelemetry is not installed: pip install 'handbill[telemetry]'.",
            code="TELEMETRY_MISSING",
        ) from error
    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)
    # A provider of our own, not the process-wide one: setting that one is the embedding program's choice.
    _provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    _provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = _provider.get_tracer("handbill")
    _log.info("tracing-on", service=service)


def stop() -> None:
    """Send what is left and switch off."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None
    if provider is not None:
        provider.shutdown()


def span(name: str, attributes: Mapping[str, Value] | None = None) -> AbstractContextManager[Any]:
    """A span around a block. Attributes carry numbers and our own names, never personal data."""
    if _tracer is None:
        return _OFF
    opened: AbstractContextManager[Any] = _tracer.start_as_current_span(name, attributes=attributes)
    return opened
