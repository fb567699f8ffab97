"""Our own evaluation of conditions against series worked out by hand, and against a slow and simple second one."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.alerts.condition import Condition
from handbill.alerts.conditions import CONDITIONS
from handbill.alerts.evaluation import Evaluator, Page, Sample, histogram_quantile
from handbill.alerts.grammar import (
    Absent,
    Both,
    Compare,
    Increase,
    Labels,
    Latest,
    Match,
    Quantile,
    Ratio,
    SecondsSince,
    Test,
    Unless,
)
from handbill.alerts.pages import parse

NAME = "HandbillTest"


def condition(test: Test) -> Condition:
    return Condition(name=NAME, area="test", severity="warning", summary="", description="", test=test)


def page(*samples: tuple[str, dict[str, str], float], instance: str = "a", is_up: bool = True) -> Page:
    return Page("handbill-api", instance, is_up, [Sample(*one) for one in samples])


def run(
    test: Test, *rounds: Sequence[Page], step: float = 10.0, wall: float = 1_000_000.0
) -> list[dict[Labels, float]]:
    evaluator = Evaluator([condition(test)])
    return [
        evaluator.observe(100.0 + step * number, wall + step * number, pages)[NAME]
        for number, pages in enumerate(rounds)
    ]


def counter(*values: float | None) -> list[list[Page]]:
    """One process whose counter has these values; None: it did not answer."""
    return [[page(is_up=False)] if value is None else [page(("c_total", {}, value))] for value in values]


GROWN = Compare(Increase("c_total", 60), ">", 0)


def test_latest_aggregates_by_labels() -> None:
    pages = [
        page(("g", {"lane": "1"}, 5.0), ("g", {"lane": "2"}, 40.0)),
        page(("g", {"lane": "1"}, 50.0), ("g", {"lane": "2"}, math.nan), instance="b"),
    ]
    by_lane = ("lane",)
    assert run(Compare(Latest("g", "max", by_lane), ">", 30), pages) == [
        {(("lane", "1"),): 50.0, (("lane", "2"),): 40.0}
    ]
    assert run(Compare(Latest("g", "min", by_lane), ">", 30), pages) == [{(("lane", "2"),): 40.0}]
    assert run(Compare(Latest("g", "sum"), "==", 95), pages) == [{(): 95.0}]
    assert run(Compare(Latest("g", "sum", (), (Match("lane", "!~", "2|3"),)), "==", 55), pages) == [{(): 55.0}]


def test_an_absent_gauge_has_no_group_or_its_default() -> None:
    assert run(Compare(Latest("g", "sum"), "<", 1), [page()]) == [{}]
    assert run(Compare(Latest("g", "sum", absent=0), "<", 1), [page()]) == [{(): 0.0}]
    assert run(Absent("g", (Match("x", "=", "1"),)), [page(("g", {"x": "2"}, 1.0))]) == [{(): 1.0}]
    assert run(Absent("g", ()), [page(("g", {}, 1.0))]) == [{}]


def test_a_counter_grows_from_what_was_seen_first() -> None:
    assert run(GROWN, *counter(7, 7, 9, 10)) == [{}, {}, {(): 2.0}, {(): 3.0}]


def test_a_restart_begins_at_zero_and_loses_nothing() -> None:
    assert run(GROWN, *counter(7, 9, None, 1, 4))[-1] == {(): 6.0}


def test_growth_leaves_the_window() -> None:
    found = run(GROWN, *counter(0, 3, 3, 3, 3, 3, 3, 3, 3))
    assert [bool(one) for one in found] == [False, True, True, True, True, True, True, False, False]


def test_a_new_series_of_a_known_process_grew_from_zero() -> None:
    test = Compare(Increase("c_total", 60, ("queue",)), ">", 0)
    first = [page(("c_total", {"queue": "x"}, 4.0))]
    second = [page(("c_total", {"queue": "x"}, 4.0), ("c_total", {"queue": "y"}, 1.0))]
    assert run(test, first, second) == [{}, {(("queue", "y"),): 1.0}]


def test_a_ratio_needs_a_denominator() -> None:
    ratio = Compare(Ratio(Increase("bad_total", 60), Increase("all_total", 60)), ">", 0.5)
    zero = [page(("bad_total", {}, 0.0), ("all_total", {}, 0.0))]
    some = [page(("bad_total", {}, 3.0), ("all_total", {}, 4.0))]
    assert run(ratio, zero, zero, some) == [{}, {}, {(): 0.75}]


def test_a_comparison_with_another_increase_takes_a_missing_one_as_zero() -> None:
    test = Compare(Increase("bad_total", 60), ">", Increase("good_total", 60))
    assert run(test, [page(("bad_total", {}, 0.0))], [page(("bad_total", {}, 2.0))]) == [{}, {(): 2.0}]


def test_both_and_unless() -> None:
    by = ("queue",)
    first, second = Compare(Latest("a", "sum", by), ">", 0), Compare(Latest("b", "sum", by), ">", 0)
    pages = [page(("a", {"queue": "x"}, 1.0), ("a", {"queue": "y"}, 1.0), ("b", {"queue": "y"}, 1.0))]
    assert run(Both(first, second), pages) == [{(("queue", "y"),): 1.0}]
    assert run(Unless(first, (second,)), pages) == [{(("queue", "x"),): 1.0}]


def test_seconds_since() -> None:
    test = Compare(SecondsSince(Latest("t", "min")), ">", 30)
    assert run(test, [page(("t", {}, 960.0))], wall=1_000.0) == [{(): 40.0}]
    assert run(test, [page(("t", {}, 980.0))], wall=1_000.0) == [{}]


def test_a_process_that_does_not_answer_is_not_up() -> None:
    test = Compare(Latest("up", "min", ("job", "instance"), (Match("job", "=~", "handbill-.*"),)), "==", 0)
    labels = (("instance", "b"), ("job", "handbill-api"))
    assert run(test, [page(), page(instance="b", is_up=False)]) == [{labels: 0.0}]


def test_quantiles_are_interpolated() -> None:
    assert histogram_quantile(0.5, {0.1: 0.0, 0.2: 10.0, math.inf: 10.0}) == pytest.approx(0.15)
    assert histogram_quantile(0.9, {0.1: 10.0, math.inf: 10.0}) == pytest.approx(0.09)
    assert histogram_quantile(0.99, {0.1: 1.0, 0.2: 2.0, math.inf: 100.0}) == 0.2
    assert histogram_quantile(0.99, {0.1: 0.0, math.inf: 0.0}) is None
    assert histogram_quantile(0.99, {}) is None
    test = Compare(Quantile("h", 0.5, 60), ">", 0)
    buckets = [("h_bucket", {"le": "0.1"}, 5.0), ("h_bucket", {"le": "0.2"}, 15.0), ("h_bucket", {"le": "+Inf"}, 15.0)]
    zero = [(name, labels, 0.0) for name, labels, _ in buckets]
    assert run(test, [page(*zero)], [page(*buckets)])[-1] == {(): pytest.approx(0.125)}


@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=1, max_size=40), st.integers(1, 12))
def test_an_increase_is_the_sum_of_what_happened_in_the_window(steps: list[int | None], window: int) -> None:
    """Each step adds to the counter; None is a restart that also happens between two looks."""
    value, values, grown = 0, [0], [0]
    for step in steps:
        added = 1 if step is None else step
        value = added if step is None else value + step
        seen = value if step is None and value < values[-1] else value - values[-1]
        values.append(value)
        grown.append(seen if step is None else added)
    found = run(Compare(Increase("c_total", window * 10), ">=", 0), *counter(*values))
    for place, groups in enumerate(found):
        inside = grown[max(0, place - window + 1) : place + 1]
        assert groups == {(): float(sum(inside))}


def test_memory_is_bounded() -> None:
    evaluator = Evaluator([condition(Compare(Increase("c_total", 3_600), ">", 0))])
    for number in range(2_000):
        evaluator.observe(float(number), float(number), [page(("c_total", {}, float(number)))])
    (window,) = evaluator._windows.values()
    assert len(window._last) == 1
    assert [len(sums) for sums in window._sums.values()] <= [61]


def test_nothing_is_wrong_with_a_quiet_installation() -> None:
    evaluator = Evaluator([one for one in CONDITIONS if not one.prometheus_only and one.name != "HandbillNobodyLeads"])
    for number in range(3):
        assert not any(evaluator.observe(float(number), 1e9, [page()]).values())


def test_nothing_is_wrong_with_processes_that_have_just_started() -> None:
    """Gauges that nobody has set yet are no trouble: 0 would be a full disk."""
    code = (
        "import sys; from prometheus_client import generate_latest; from handbill.kit.telemetry import metrics; "
        "sys.stdout.buffer.write(generate_latest(metrics.REGISTRY))"
    )
    body = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert b"handbill_disk_free_ratio NaN" in body
    evaluator = Evaluator([one for one in CONDITIONS if not one.prometheus_only and one.name != "HandbillNobodyLeads"])
    for number in range(3):
        troubles = evaluator.observe(float(number), 1e9, [Page("handbill-api", "a", True, parse(body))])
        assert not any(troubles.values())
