"""Log lines, metrics and traces: what the house says about itself."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from handbill.kit.telemetry import logs, metrics, tracing


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
    assert (batch.name, dict(batch.attributes), inner.parent.span_id) == ("batch", {"rows": 5}, batch.context.span_id)
    assert batch.resource.attributes["service.name"] == "test"
    with tracing.span("after") as span:
        assert span is None
