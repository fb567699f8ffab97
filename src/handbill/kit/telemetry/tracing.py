"""Traces through OpenTelemetry, when an endpoint is configured and the `telemetry` extra is installed; else nothing.

A span is opened per request, batch or job, never per statement. While tracing is off `span` costs two comparisons,
and log lines of a request still carry the trace that its caller named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

from handbill.kit.errors import Broken
from handbill.kit.telemetry import logs
from handbill.kit.telemetry.trace_context import TRACE_ID, TraceParent

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


def span(
    name: str, attributes: Mapping[str, Value] | None = None, *, parent: TraceParent | None = None
) -> AbstractContextManager[Any]:
    """A span around a block. Attributes carry numbers and our own names, never personal data.

    `parent`: the caller's span, whose trace this one continues.
    """
    if _tracer is not None:
        return _traced(_tracer, name, attributes, parent)
    return _OFF if parent is None else _logged(parent.trace_id)


@contextmanager
def _traced(
    tracer: Any, name: str, attributes: Mapping[str, Value] | None, parent: TraceParent | None
) -> Iterator[Any]:
    context = None if parent is None else _context_of(parent)
    with (
        tracer.start_as_current_span(name, context=context, attributes=attributes) as opened,
        _logged(f"{opened.get_span_context().trace_id:032x}"),
    ):
        yield opened


@contextmanager
def _logged(trace_id: str) -> Iterator[None]:
    mark = TRACE_ID.set(trace_id)
    try:
        yield
    finally:
        TRACE_ID.reset(mark)


def _context_of(parent: TraceParent) -> Any:
    from opentelemetry import trace

    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if parent.is_sampled else trace.TraceFlags.DEFAULT)
    remote = trace.SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(remote))
