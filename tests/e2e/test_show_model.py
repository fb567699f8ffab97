"""Caps over HTTP against the reference: two API processes and a worker, real Redis and PostgreSQL, clocks set wrong.

The machine makes up requests (decisions, views, copies, late and out of order), changes of every limit, jumps in time
to the millisecond, lost caches and held commits. The model sees the requests and the replies, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from handbill.caps.copies import RECENT_MS
from tests.kit.engines import Engines
from tests.kit.show_house import FOREVER, HOUR, LEASE, House, staged
from tests.kit.show_model import Who
from tests.kit.show_stage import Stage

people = st.builds(  # few, so that their limits are reached
    Who,
    st.sampled_from(["ann", "ann", "ann", "bob"]),
    st.sampled_from([None, "d", "d", "e"]),
    st.sampled_from([None, "s", "s", "t"]),
)
processes = st.integers(0, 1)
banners = st.sampled_from(["soft", "strict"])
scopes = st.sampled_from(["soft", "strict", "campaign", "place"])
more = st.sampled_from(
    [
        [],
        [{"x": 3, "per": "lifetime"}],
        [{"x": 1, "per": "session"}],
        [{"x": 4, "y_hours": 48}, {"x": 6, "per": "lifetime"}],
        [{"x": 2, "y_hours": 3}, {"x": 2, "per": "session"}],
    ]
)


@pytest.fixture(scope="module")
def stage(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = staged(engines, tmp_path_factory.mktemp("stage"))
    yield made
    made.stop()


class Caps(RuleBasedStateMachine):
    stage: ClassVar[Stage]

    @initialize(named=st.booleans())
    def open(self, named: bool) -> None:
        self.stage.board.hold = False
        self.house = House(self.stage)
        self.named = named
        self.events = 0
        self.last = Who("ann"), False  # who saw something last, to be asked about after a change
        self.tokens: list[tuple[str, Who, bool, str, int]] = []
        self.told: list[tuple[str, dict[str, Any]]] = []  # counted views, to be sent again
        self.decided: dict[str, int] = {}  # when those under a token were decided
        self.waiting: set[str] = set()  # sent while commits are held

    def teardown(self) -> None:
        self.stage.board.hold = False

    # --- a client
    @rule(who=people, placed=st.booleans(), process=processes)
    def decides(self, who: Who, placed: bool, process: int) -> None:
        if self.named:
            tokens = self.house.decide(who, placed, process)
            self.tokens += [(banner, who, placed, token, self.house.now) for banner, token in tokens.items()]
        else:
            self.house.look(who, placed, process)

    @rule(
        who=people, placed=st.booleans(), process=processes, strict=st.booleans(), counted=st.integers(0, 5),
        times=st.sampled_from([1, 1, 2, 3]),
    )  # fmt: skip
    def views(self, who: Who, placed: bool, process: int, strict: bool, counted: int, times: int) -> None:
        """Some views at once: one by one, or in a batch with a copy inside. In the end one in six does not count."""
        banner = "strict" if strict and not self.named else "soft"
        bodies = []
        for n in range(times):
            self.events += 1
            event = f"e{self.events}"
            bodies.append(self.house.body(event, banner, who, placed, None, counted=counted > 0 or n > 0))
            if bodies[-1]["dismissed"]:
                self.house.saw(event, banner, who, placed, None)
                self.told.append((event, bodies[-1]))
                self.waiting.add(event)
        sent: Any = bodies[0] if times == 1 else [*bodies, bodies[0]]
        self.stage.do(self.stage.view(self.house.shop, process, sent))
        self.last = who, placed
        self.decides(who, placed, 1 - process)

    @precondition(lambda self: self.tokens)
    @rule(process=processes, which=st.integers(0, 99))
    def reports(self, process: int, which: int) -> None:
        """A view under a token, in any order, perhaps long after its lease or after its own end."""
        banner, who, placed, token, at = self.tokens.pop(which % len(self.tokens))
        self.events += 1
        body = self.house.body(f"e{self.events}", banner, who, placed, token, counted=True)
        self.stage.do(self.stage.view(self.house.shop, process, body))
        self.house.saw(f"e{self.events}", banner, who, placed, token)
        self.told.append((f"e{self.events}", body))
        self.decided[f"e{self.events}"] = at
        self.waiting.add(f"e{self.events}")
        self.decides(who, placed, 1 - process)

    @precondition(lambda self: self.told)
    @rule(process=processes, which=st.integers(0, 9), many=st.integers(1, 8), days=st.sampled_from([0, 0, 1, 2]))
    def repeats(self, process: int, which: int, many: int, days: int) -> None:
        """A client sends what lies in its queue again, at once or days later: no copy changes an answer at any moment.

        Redis may have forgotten the first ones. While commits are held nothing is taken back: then copies under the
        token of a recent decision are left out, which are not looked up; no window opens before they are taken back.
        """
        self.stage.board.now_ms += days * 24 * HOUR
        last = len(self.told) - which % len(self.told)
        copies = dict(self.told[max(0, last - many) : last])
        held = [event for event in copies if self.stage.board.hold and event not in self.waiting]
        for event in filter(self._is_recent, held):
            del copies[event]
        if copies:
            self.stage.do(self.stage.view(self.house.shop, process, list(copies.values())))
        for who, placed in {(saw.who, "place" in saw.scopes) for saw in map(self.house.model.saw.get, copies) if saw}:
            self.decides(who, placed, 1 - process)

    def _is_recent(self, event: str) -> bool:
        return self.house.now - self.decided.get(event, 0) < RECENT_MS

    # --- time
    @rule(by=st.sampled_from([1, 999, 30_000, LEASE - 1, LEASE, HOUR // 2, HOUR, 5 * HOUR, 24 * HOUR]))
    def passes(self, by: int) -> None:
        self.stage.board.now_ms += by

    @precondition(lambda self: self.house.model.saw)
    @rule(which=st.integers(0, 99), span=st.integers(0, 9), off=st.sampled_from([-1, 0, 1]), process=processes)
    def stands_on_a_boundary(self, which: int, span: int, off: int, process: int) -> None:
        """Exactly y after a view, one millisecond before, one after."""
        views = list(self.house.model.saw.values())
        saw = views[-1 - which % len(views)]
        spans = [
            y for scope in saw.scopes for windows in self.house.model.limits[scope].values() for _, y in windows
            if y < FOREVER
        ]  # fmt: skip
        moment = saw.at + spans[span % len(spans)] + off
        if moment >= self.house.now:
            self.stage.board.now_ms = moment
            self.decides(saw.who, "place" in saw.scopes, process)

    # --- an operator
    @rule(
        banner=st.sampled_from(["soft", "strict"]),
        x=st.integers(1, 4),
        y=st.sampled_from([1, 2, 24]),
        process=processes,
    )
    def changes_x_in_y(self, banner: str, x: int, y: int, process: int) -> None:
        """Also while views wait for their commit."""
        self.house.change(banner, process, x_times=x, y_hours=y)
        self.decides(*self.last, 1 - process)

    @precondition(lambda self: not self.stage.board.hold)
    @rule(
        name=st.sampled_from(["soft", "strict", "campaign", "place"]), caps=more, by=st.sampled_from(["user", "device"])
    )
    def changes_further_limits(self, name: str, caps: list[dict[str, Any]], by: str) -> None:
        """A limit of another kind counts from what is committed: what waits is not asked about it."""
        self.stage.do(self.stage.drained(self.house.shop))
        limits: dict[str, Any] = {"cap_by": by} if name in ("soft", "strict") else {}
        self.house.change(name, caps=caps, **limits)

    # --- trouble
    @precondition(lambda self: not self.stage.board.hold)
    @rule()
    def loses_the_cache(self) -> None:
        """Leases are lost with it: the one thing that only Redis knows."""
        self.stage.do(self.stage.drained(self.house.shop))
        self.stage.do(self.stage.forget())
        self.house.model.held.clear()
        self.decides(*self.last, 0)

    @rule()
    def holds_or_releases_commits(self) -> None:
        self.stage.board.hold = not self.stage.board.hold
        self.waiting.clear()


def test_every_answer_agrees_with_the_model(stage: Stage) -> None:
    """The same dozen lives every time; new ones, and many, under the soak profile."""

    class Staged(Caps):
        pass

    Staged.stage = stage
    long = settings.get_current_profile_name() == "soak"
    chosen = settings(
        max_examples=250 if long else 25,
        stateful_step_count=50,
        derandomize=not long,
        database=None,
        deadline=None,
        phases=[Phase.generate],  # a life that fails is told whole: shrinking it would take minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Staged, settings=chosen)
