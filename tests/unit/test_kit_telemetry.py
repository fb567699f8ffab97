"""Log lines, metrics and traces: what the house says about itself."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from handbill.kit.telemetry import logs, metrics, tracing
from handbill.kit.telemetry.trace_context import TraceParent, read_traceparent


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    yield stream
    logs.configure("info")
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler).__module__ == logs.__name__]:
        root.removeHandler(handler)


def read(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_and_starts_with_what_one_looks_for(lines: io.StringIO) -> None:
    logs.get("room").info("it-happened", count=3, thing={1: object}, text="a\nb")
    (line,) = read(lines)
    assert list(line)[:4] == ["ts", "level", "event", "logger"]
    assert (line["level"], line["event"], line["logger"], line["count"]) == ("info", "it-happened", "room", 3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", str(line["ts"]))
    assert "object" in str(line["thing"])
    assert line["text"] == "a\nb"
    assert lines.getvalue().count("\n") == 1


def test_no_field_can_make_a_line_fail(lines: io.StringIO) -> None:
    round_and_round: list[object] = []
    round_and_round.append(round_and_round)
    for odd in ("\ud800", {(1, 2): 3}, round_and_round, 2**70, float("nan"), b"\xff", object(), ValueError("x")):
        logs.get("room").info("odd", field=odd)
    assert len(read(lines)) == 8


def test_the_level_holds_and_can_be_changed_for_loggers_made_before(lines: io.StringIO) -> None:
    early = logs.get("early")
    early.debug("unheard")
    logs.configure("debug", stream=lines)
    early.debug("heard")
    early.bind(request="r1").warning("bound")
    assert [(line["event"], line.get("request")) for line in read(lines)] == [("heard", None), ("bound", "r1")]


def test_an_exception_comes_with_its_traceback(lines: io.StringIO) -> None:
    try:
        raise RuntimeError("oh")
    except RuntimeError:
        logs.get("room").exception("failed")
    (line,) = read(lines)
    assert line["level"] == "error"
    assert "RuntimeError: oh" in str(line["exception"])


def test_libraries_speak_in_the_same_shape_and_only_when_something_is_wrong(lines: io.StringIO) -> None:
    library = logging.getLogger("some.library")
    library.info("chatter")
    library.warning("careful with %s", "that")
    logs.configure("info", stream=lines)  # twice configured is not twice written
    library.error("no")
    assert [(line["logger"], line["level"], line["event"]) for line in read(lines)] == [
        ("some.library", "warning", "careful with that"),
        ("some.library", "error", "no"),
    ]


def test_without_a_stream_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logs.get("room").info("plain")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "plain"


def test_every_metric_has_a_name_of_ours_and_one_line() -> None:
    found = {name: value for name, value in vars(metrics).items() if isinstance(value, MetricWrapperBase)}
    assert len(found) > 8
    for name, metric in found.items():
        assert name.isupper()
        assert re.fullmatch(r"handbill_[a-z0-9_]+", metric._name), name
        assert metric._documentation.strip(), name
        assert "\n" not in metric._documentation, name
        assert "tenant_name" not in metric._labelnames, name
    assert len({metric._name for metric in found.values()}) == len(found)
    assert b"handbill_pg_seconds" in generate_latest(metrics.REGISTRY)


def test_tracing_is_off_and_costs_nothing_until_it_is_configured() -> None:
    tracing.configure(None)
    with tracing.span("request", {"n": 1}) as span:
        assert span is None
    assert tracing.span("a") is tracing.span("b")


def test_spans_reach_the_exporter() -> None:
    exporter = InMemorySpanExporter()
    tracing.configure(None, service="test", exporter=exporter)
    with tracing.span("batch", {"rows": 5}), tracing.span("inner"):
        pass
    tracing.stop()
    inner, batch = exporter.get_finished_spans()
    assert inner.parent is not None
    assert (batch.name, batch.attributes, inner.parent.span_id) == ("batch", {"rows": 5}, batch.context.span_id)
    assert batch.resource.attributes["service.name"] == "test"
    with tracing.span("after") as span:
        assert span is None


CALLER = TraceParent("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", is_sampled=True)


def test_a_span_continues_the_trace_of_its_caller_and_its_log_lines_name_it(lines: io.StringIO) -> None:
    exporter = InMemorySpanExporter()
    tracing.configure(None, service="test", exporter=exporter)
    try:
        with tracing.span("request", parent=CALLER):
            logs.get("test").info("inside")
        with tracing.span("request", parent=msgspec.structs.replace(CALLER, is_sampled=False)) as unsampled:
            assert not unsampled.is_recording(), "the caller decides what is sampled"
        with tracing.span("batch"):
            logs.get("test").info("alone")
        logs.get("test").info("outside")
    finally:
        tracing.stop()
    request, batch = exporter.get_finished_spans()
    assert f"{request.context.trace_id:032x}" == CALLER.trace_id
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == CALLER.span_id
    by_event = {line["event"]: line.get("trace_id") for line in read(lines)}
    assert by_event["inside"] == CALLER.trace_id
    assert by_event["alone"] == f"{batch.context.trace_id:032x}" != CALLER.trace_id
    assert by_event["outside"] is None


def test_log_lines_name_the_callers_trace_while_tracing_is_off(lines: io.StringIO) -> None:
    with tracing.span("request", parent=CALLER):
        logs.get("test").info("inside")
    logs.get("test").info("outside")
    assert [line.get("trace_id") for line in read(lines)] == [CALLER.trace_id, None]


ZEROES = ("0" * 32, "0" * 16)
GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [(GOOD, True), (GOOD[:-2] + "00", False), (GOOD[:-2] + "03", True), ("01" + GOOD[2:] + "-more", True)],
)
def test_a_traceparent_is_read_as_the_standard_says(header: str, is_sampled: bool) -> None:
    found = read_traceparent(header.encode())
    assert found == msgspec.structs.replace(CALLER, is_sampled=is_sampled)


@pytest.mark.parametrize(
    "header",
    [
        "", "00", GOOD[:-1], GOOD + "-more", GOOD + "x", "ff" + GOOD[2:], GOOD.upper(), GOOD.replace("-", "_"),
        GOOD.replace("0af7651916cd43dd8448eb211c80319c", ZEROES[0]), GOOD.replace("b7ad6b7169203331", ZEROES[1]),
        "01" + GOOD[2:] + "x", "0x" + GOOD[2:], GOOD.replace("0af7", "+af7"), " " + GOOD,
    ],
)  # fmt: skip
def test_a_traceparent_that_is_not_well_formed_is_none(header: str) -> None:
    assert read_traceparent(header.encode()) is None


@given(st.binary(max_size=80))
def test_whatever_comes_as_a_traceparent_is_none_or_well_formed(header: bytes) -> None:
    found = read_traceparent(header)
    if found is not None:
        assert re.fullmatch("[0-9a-f]{32} [0-9a-f]{16}", f"{found.trace_id} {found.span_id}")


def test_a_missing_traceparent_is_none() -> None:
    assert read_traceparent(None) is None
