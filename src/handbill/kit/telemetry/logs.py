"""JSON log lines through structlog: ts, level, event, logger, then the fields. No secrets, no personal data."""

from __future__ import annotations

import logging
import sys
from typing import Any, Protocol, TextIO, cast

import msgspec
import structlog

from handbill.kit.telemetry.trace_context import TRACE_ID

_encode = msgspec.json.Encoder(enc_hook=repr).encode

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Log(Protocol):
    """What a room may do with its logger: one event name, then fields."""

    def debug(self, event: str, /, **fields: Any) -> Any: ...
    def info(self, event: str, /, **fields: Any) -> Any: ...
    def warning(self, event: str, /, **fields: Any) -> Any: ...
    def error(self, event: str, /, **fields: Any) -> Any: ...
    def exception(self, event: str, /, **fields: Any) -> Any: ...
    def bind(self, **fields: Any) -> Any: ...


class _Stderr:
    """Writes to whatever sys.stderr is at that moment, so that tests that swap it see the lines."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _add_trace(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    trace_id = TRACE_ID.get()
    if trace_id is not None:
        event.setdefault("trace_id", trace_id)
    return event


def _render(_logger: object, _method: str, event: structlog.typing.EventDict) -> str:
    line = {"ts": event.pop("timestamp"), "level": event.pop("level"), "event": event.pop("event")}
    line["logger"] = event.pop("logger_name", "handbill")
    line.update(event)
    try:
        return _encode(line).decode()
    except (TypeError, ValueError, RecursionError):  # a log line must never be what fails: lone surrogates, odd keys
        return _encode({name: ascii(value) for name, value in line.items()}).decode()


class _Bridge(logging.Handler):
    """Lines of libraries that use the standard logging module, in the same shape."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = repr(record.exc_info[1])
        level = "error" if record.levelno >= logging.ERROR else "warning"
        getattr(get(record.name), level)(record.getMessage(), **fields)


def _shape(threshold: int, stream: TextIO | None) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_trace,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=stream or cast(TextIO, _Stderr())),
        cache_logger_on_first_use=False,
    )


def configure(level: str = "info", *, stream: TextIO | None = None) -> None:
    """Set up the process's logging. Without a stream, lines go to stderr."""
    threshold = LEVELS[level.lower()]
    _shape(threshold, stream)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Bridge)]:
        root.removeHandler(handler)
    root.addHandler(_Bridge(logging.WARNING))  # libraries speak only when something is wrong


def get(name: str) -> Log:
    """The logger of one room; it follows a later `configure`."""
    log: Log = structlog.get_logger(logger_name=name)
    return log


_shape(logging.INFO, None)  # a line written before the set-up has the same shape
