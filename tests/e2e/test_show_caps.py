"""Caps over HTTP against the reference: two API processes and a worker, real Redis and PostgreSQL, clocks set wrong.

The machine makes up requests (decisions, views, copies, late and out of order), changes of every limit, jumps in time
to the millisecond, lost caches and held commits. The model sees the requests and the replies, nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.kit.engines import Engines
from tests.kit.show_model import Model, Saw, Who
from tests.kit.show_stage import START_MS, Shop, Stage
from tests.kit.waiting import eventually

HOUR = 3_600_000
SESSION = 24 * HOUR
FOREVER = 1 << 50
Z_S = 2
LEASE = Z_S * 1_000 + 60_000

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
    home = tmp_path_factory.mktemp("stage")
    env = {
        "HANDBILL_HOME": str(home / "home"),
        "HANDBILL_POSTGRES__URL": engines.postgres_url,
        "HANDBILL_REDIS__URL": engines.redis_url,
        "HANDBILL_REDIS__TIMEOUT_MS": "30000",
        "HANDBILL_TENANTS__SEAL_KEY": "a seal key for tests",
        "HANDBILL_API__METRICS_PORT": "0",
        "HANDBILL_WORKER__PORT": "0",
        "HANDBILL_WORKER__METRICS_PORT": "0",
    }
    made = Stage(env, engines.postgres_url, engines.redis_url, Path(home))
    made.start()
    yield made
    made.stop()


class House:
    """A shop with a campaign, a placement, a soft banner and a strict one; the model is told of every change."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.model = stage, Model()
        self.shop: Shop = stage.do(stage.shop())
        self.ids: dict[str, str] = {}
        self.caps: dict[str, dict[str, Any]] = {}
        self.make("campaign", {"name": "C"})
        self.make("place", {"name": "P", "slug": "p"})
        for name, mode in (("soft", "soft"), ("strict", "strict")):
            self.make(name, {
                "name": name, "x_times": 2, "y_hours": 1, "z_duration_sec": Z_S, "cap_mode": mode,
                "campaign_id": self.ids["campaign"],
            })  # fmt: skip
        stage.do(stage.known(self.shop))

    @property
    def now(self) -> int:
        return self.stage.board.now_ms

    def make(self, name: str, body: dict[str, Any]) -> None:
        kind = _KINDS[name]
        made = self.stage.do(self.stage.admin(self.shop, "POST", f"/admin/{kind}s", body))
        self.ids[name] = made[f"{kind}_id"]
        self.caps[name] = body
        self._tell(name)

    def change(self, name: str, process: int = 0, **patch: Any) -> None:
        path = f"/admin/{_KINDS[name]}s/{self.ids[name]}"
        self.stage.do(self.stage.admin(self.shop, "PATCH", path, patch, process))
        self.caps[name] |= patch
        self._tell(name)
        self.stage.do(self.stage.known(self.shop))

    def _tell(self, name: str) -> None:
        told = self.caps[name]
        by = told.get("cap_by", "user")
        limits: dict[str, list[tuple[int, int]]] = {}
        if "x_times" in told:
            limits[by] = [(told["x_times"], told["y_hours"] * HOUR)]
        for each in told.get("caps", []):
            span = {"session": SESSION, "lifetime": FOREVER}.get(each.get("per", ""), each.get("y_hours", 0) * HOUR)
            limits.setdefault("session" if each.get("per") == "session" else by, []).append((each["x"], span))
        self.model.limits[name] = limits

    def scopes(self, banner: str, placed: bool) -> tuple[str, ...]:
        return (banner, "campaign", "place") if placed else (banner, "campaign")

    def expected(self, who: Who, placed: bool) -> set[str]:
        return {
            name
            for name in ("soft", "strict")
            if self.model.may_see(who, self.scopes(name, placed), self.now, strict=name == "strict")
        }

    def decide(self, who: Who, placed: bool, process: int) -> dict[str, str]:
        """A decision with tokens, held against the model. The strict banner's slot is named by its token."""
        expected = self.expected(who, placed)
        body = {"user_id": who.user, "device_id": who.device, "session_id": who.session, "limit": 20}
        if placed:
            body["placements"] = ["p"]
        found = self.stage.do(self.stage.decide(self.shop, process, body))
        tokens = {name: found[each] for name, each in self.ids.items() if each in found}
        assert set(tokens) == expected, f"{who} placed={placed} at {self.now - START_MS} ms"
        if "strict" in tokens:
            self.model.hold(who, self.scopes("strict", placed), tokens["strict"], self.now + LEASE)
        return tokens

    def look(self, who: Who, placed: bool, process: int) -> None:
        """The same by GET /banners, which knows no tokens."""
        expected = self.expected(who, placed)
        found = self.stage.do(
            self.stage.shown(
                self.shop, process, user_id=who.user, device_id=who.device, session_id=who.session,
                placement="p" if placed else None,
            )
        )  # fmt: skip
        names = {name for name, each in self.ids.items() if each in found}
        assert names == expected, f"{who} placed={placed} at {self.now - START_MS} ms"
        if "strict" in names:
            nameless = f"nameless-{sum(map(len, self.model.held.values()))}-{self.now}"
            self.model.hold(who, self.scopes("strict", placed), nameless, self.now + LEASE)

    def body(self, event: str, banner: str, who: Who, placed: bool, token: str | None, counted: bool) -> dict[str, Any]:
        body = {
            "banner_id": self.ids[banner], "user_id": who.user, "event_id": event, "view_duration_ms": 0,
            "dismissed": counted, "device_id": who.device, "session_id": who.session, "token": token,
            "placement_id": self.ids["place"] if placed else None,
        }  # fmt: skip
        return {name: value for name, value in body.items() if value is not None}

    def saw(self, event: str, banner: str, who: Who, placed: bool, token: str | None) -> None:
        """The model's side of an accepted view."""
        scopes = self.scopes(banner, placed)
        if event in self.model.saw:
            return
        self.model.saw[event] = Saw(who, self.now, scopes)
        if banner == "strict":
            self.model.give_back(who, scopes, token, self.now)


_KINDS = {"campaign": "campaign", "place": "placement", "soft": "banner", "strict": "banner"}


class Caps(RuleBasedStateMachine):
    stage: ClassVar[Stage]

    @initialize(named=st.booleans())
    def open(self, named: bool) -> None:
        self.stage.board.hold = False
        self.house = House(self.stage)
        self.named = named
        self.events = 0
        self.last = Who("ann"), False  # who saw something last, to be asked about after a change
        self.tokens: list[tuple[str, Who, bool, str]] = []
        self.told: list[tuple[str, dict[str, Any]]] = []  # soft views or named ones, to be sent again
        self.waiting: set[str] = set()  # sent while commits are held

    def teardown(self) -> None:
        self.stage.board.hold = False

    # --- a client
    @rule(who=people, placed=st.booleans(), process=processes)
    def decides(self, who: Who, placed: bool, process: int) -> None:
        if self.named:
            tokens = self.house.decide(who, placed, process)
            self.tokens += [(banner, who, placed, token) for banner, token in tokens.items()]
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
                if banner == "soft":
                    self.told.append((event, bodies[-1]))
                self.waiting.add(event)
        sent: Any = bodies[0] if times == 1 else [*bodies, bodies[0]] if banner == "soft" else bodies
        self.stage.do(self.stage.view(self.house.shop, process, sent))
        self.last = who, placed
        self.decides(who, placed, 1 - process)

    @precondition(lambda self: self.tokens)
    @rule(process=processes, which=st.integers(0, 99))
    def reports(self, process: int, which: int) -> None:
        """A view under a token, in any order, perhaps long after its lease."""
        banner, who, placed, token = self.tokens.pop(which % len(self.tokens))
        self.events += 1
        body = self.house.body(f"e{self.events}", banner, who, placed, token, counted=True)
        self.stage.do(self.stage.view(self.house.shop, process, body))
        self.house.saw(f"e{self.events}", banner, who, placed, token)
        self.told.append((f"e{self.events}", body))
        self.waiting.add(f"e{self.events}")
        self.decides(who, placed, 1 - process)

    @precondition(lambda self: self.told)
    @rule(process=processes, which=st.integers(0, 99))
    def repeats(self, process: int, which: int) -> None:
        """A copy. The first may be forgotten in Redis: then the copy closes the cap until the commit finds it out."""
        event, body = self.told[-1 - which % len(self.told)]
        if self.stage.board.hold and event not in self.waiting:
            return
        self.stage.do(self.stage.view(self.house.shop, process, body))
        if not self.stage.board.hold:
            self.stage.do(self.stage.drained(self.house.shop))

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
        self.house.change(name, caps=caps, **({"cap_by": by} if name in ("soft", "strict") else {}))

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


@pytest.fixture
def house(stage: Stage) -> House:
    stage.board.hold = False
    return House(stage)


ANN = Who("ann")


def seen(house: House, *events: str, banner: str = "soft", process: int = 0) -> None:
    for event in events:
        house.stage.do(house.stage.view(house.shop, process, house.body(event, banner, ANN, False, None, True)))
        house.saw(event, banner, ANN, False, None)


def soft(house: House) -> list[bool]:
    """Whether the soft banner is shown, by each process."""
    found = [
        house.stage.do(house.stage.shown(house.shop, process, user_id="ann", device_id=None)) for process in (0, 1)
    ]
    return [house.ids["soft"] in each for each in found]


def test_a_view_counts_until_exactly_y_hours_on_every_host(house: House) -> None:
    """The hosts' own clocks are an hour apart."""
    board = house.stage.board
    seen(house, "a")
    board.now_ms += 1_000
    seen(house, "b", process=1)
    assert soft(house) == [False, False]
    for off, shown in ((-1, False), (0, True), (1, True)):
        board.now_ms = house.model.saw["a"].at + HOUR + off
        assert soft(house) == [shown, shown], f"y {off:+d} ms"


def test_several_windows_and_a_lifetime_hold_together(house: House) -> None:
    board = house.stage.board
    house.change("soft", x_times=2, y_hours=1, caps=[{"x": 3, "y_hours": 6}, {"x": 5, "per": "lifetime"}])
    begin = board.now_ms
    story = []
    for n, after in enumerate((0, 0, 1, 6, 7, 100)):  # hours after the beginning
        board.now_ms = begin + after * HOUR
        shown = soft(house)
        assert shown[0] == shown[1] == house.model.may_see(ANN, ("soft", "campaign"), board.now_ms)
        story.append(shown[0])
        if shown[0]:
            seen(house, f"e{n}", process=n % 2)
    assert story == [True, True, True, True, True, False], "five in a lifetime, and never more than two in an hour"
    board.now_ms += 10_000 * HOUR
    assert soft(house) == [False, False]


def test_x_raised_while_older_views_wait_for_their_commit_is_exact(house: House) -> None:
    board = house.stage.board
    house.change("soft", x_times=1)
    board.hold = True
    for n in range(4):
        board.now_ms += 1_000
        seen(house, f"e{n}", process=n % 2)
    answers = {}
    for x in (4, 5):
        house.change("soft", process=1, x_times=x)
        answers[x] = soft(house)
    assert answers == {4: [False, False], 5: [True, True]}
    board.hold = False
    house.stage.do(house.stage.drained(house.shop))
    assert soft(house) == [True, True]
    house.change("soft", x_times=4)
    assert soft(house) == [False, False]


def test_x_raised_after_the_old_limit_let_views_go_is_exact_before_and_after_the_back_fill(house: House) -> None:
    stage, board = house.stage, house.stage.board
    house.change("soft", x_times=1)
    seen(house, "e0", "e1", "e2", "e3")
    stage.do(stage.drained(house.shop))
    house.change("soft", x_times=4)
    assert soft(house) == [False, False], "Redis had kept one of four: PostgreSQL was asked"
    board.now_ms += 6_000

    async def settled() -> None:
        raised = "select count(*) from banners.banners where tenant_id = $1 and limits_raised_at is not null"
        await eventually(lambda: nothing(stage.owner.fetchval(raised, house.shop.tenant)), what="the back-fill has run")
        await stage.known(house.shop)

    async def nothing(count: Awaitable[int]) -> bool:
        return await count == 0

    stage.do(settled())
    assert soft(house) == [False, False], "and now Redis knows by itself"
    house.change("soft", x_times=5)
    assert soft(house) == [True, True]


def test_a_copy_of_a_forgotten_view_closes_nothing_once_it_is_found_out(house: House) -> None:
    house.change("soft", x_times=1)
    seen(house, "a")
    house.stage.do(house.stage.drained(house.shop))
    house.stage.board.now_ms += HOUR
    seen(house, "b")
    house.stage.board.now_ms += HOUR
    seen(house, "a", process=1)
    house.stage.do(house.stage.drained(house.shop))
    assert soft(house) == [True, True]


def test_a_strict_view_without_a_token_takes_the_place_of_one_lease(house: House) -> None:
    house.look(ANN, False, 0)
    assert len(house.model.held["strict", ("user", "ann")]) == 1
    seen(house, "a", banner="strict", process=1)
    assert house.expected(ANN, False) == {"soft", "strict"}, "one was seen, none is held, two are allowed"
    house.look(ANN, False, 1)
    assert house.expected(ANN, False) == {"soft"}
    house.look(ANN, False, 0)


def test_strict_grants_x_slots_to_any_number_of_requests_at_once(house: House) -> None:
    """Law 4: at most x for views reported within the lease, a slot withheld no longer than that, late ones counted."""
    stage, board = house.stage, house.stage.board
    house.change("strict", x_times=3)

    async def rush(number: int) -> list[str]:
        body = {"user_id": "ann", "limit": 20}
        found = await asyncio.gather(*(stage.decide(house.shop, n % 2, body) for n in range(number)))
        return [tokens[house.ids["strict"]] for tokens in found if house.ids["strict"] in tokens]

    def report(event: str, token: str) -> None:
        stage.do(stage.view(house.shop, 1, house.body(event, "strict", ANN, False, token, True)))

    tokens = stage.do(rush(30))
    assert len(tokens) == 3
    report("one", tokens[0])
    report("one", tokens[0])
    assert stage.do(rush(6)) == [], "two are held, one was seen; a copy frees nothing"
    board.now_ms += LEASE - 1
    assert stage.do(rush(6)) == []
    board.now_ms += 1
    again = stage.do(rush(30))
    assert len(again) == 2, "nobody reported them: their slots are free, at the very millisecond"
    report("two", again[0])
    report("late", tokens[1])
    assert stage.do(rush(6)) == []
    board.now_ms += LEASE
    assert stage.do(rush(6)) == [], "the late one counts: three were seen within the hour"


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
