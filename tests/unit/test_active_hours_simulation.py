"""Weeks of people with habits: what is learnt of them, and what a banner with the rule does to them. Seeded.

People are evening, morning, night-shift (over midnight) or flat ones. Their events come three a day on average, drawn
from their own habit, an eighth of them from anywhere in the day; so do their decisions. The banner is shown once a day.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import msgspec

from handbill.active_hours.gather import gather
from handbill.active_hours.model import DEFAULT_LEVEL, HOUR_MS, Profile, level_at, open_hours, profile_of
from handbill.events.model import CapturedEvent, Row, key

DAY_MS = 24 * HOUR_MS
MONDAY = 20_486 * DAY_MS  # 2 February 2026
LEARNING_DAYS = 28
NOISE = 1 / 8
ZONES = ("UTC", "Asia/Kathmandu", "America/Lima", "Australia/Darwin")
HABITS = {
    "evening": {18: 2, 19: 4, 20: 5, 21: 5, 22: 3},
    "morning": {6: 3, 7: 5, 8: 4, 9: 2},
    "night": {22: 3, 23: 5, 0: 4, 1: 3, 2: 2},
    "flat": dict.fromkeys(range(24), 1),
}
EACH = 40
"""People of each habit."""


class Person(msgspec.Struct, frozen=True):
    name: str
    habit: str
    zone: str


PEOPLE = [Person(f"{habit}-{n}", habit, ZONES[n % len(ZONES)]) for habit in HABITS for n in range(EACH)]


def moments(chance: random.Random, habit: str, first_day: int, days: int, a_day: int = 3) -> list[int]:
    """Local times of day as if UTC: the zone is taken off by whoever reads them."""
    hours, weights = list(HABITS[habit]), list(HABITS[habit].values())
    found = []
    for day in range(first_day, first_day + days):
        for _ in range(chance.randint(a_day - 1, a_day + 1)):
            hour = chance.randrange(24) if chance.random() < NOISE else chance.choices(hours, weights)[0]
            found.append(MONDAY + day * DAY_MS + hour * HOUR_MS + chance.randrange(HOUR_MS))
    return sorted(found)


def offset_ms(zone: str) -> int:
    """None of these zones moves its clock."""
    return {"UTC": 0, "Asia/Kathmandu": 345, "America/Lima": -300, "Australia/Darwin": 570}[zone] * 60_000


def learnt(person: Person, times: Sequence[int]) -> Profile:
    rows = []
    for number, local in enumerate(times):
        at, name = local - offset_ms(person.zone), f"{person.name}-{number}"
        event = CapturedEvent(1, name, at, at, "seen", person.name, "own", timezone=person.zone)
        rows.append(Row(number, key("capture", name), event, b""))
    profile = profile_of(gather(rows, lambda tenant: True).values(), "UTC")
    assert profile is not None
    return profile


@cache
def crowd() -> dict[str, tuple[Person, Profile]]:
    chance = random.Random(20_260_202)
    return {person.name: (person, learnt(person, moments(chance, person.habit, 0, LEARNING_DAYS))) for person in PEOPLE}


def of(habit: str) -> list[tuple[Person, Profile]]:
    return [each for each in crowd().values() if each[0].habit == habit]


def is_open(profile: Profile, hour: int) -> bool:
    return profile.levels[hour] >= DEFAULT_LEVEL


def mean(some: Sequence[float]) -> float:
    return sum(some) / len(some)


def test_the_open_hours_hold_what_people_do_in_few_hours() -> None:
    for habit in ("evening", "morning", "night"):
        total, held, hours = sum(HABITS[habit].values()), [], []
        for _, profile in of(habit):
            held.append(sum(weight for hour, weight in HABITS[habit].items() if is_open(profile, hour)) / total)
            hours.append(sum(is_open(profile, hour) for hour in range(24)))
        assert min(held) >= 0.95, habit
        assert mean(held) >= 0.99, habit
        assert mean(hours) <= 10, habit
        assert max(hours) <= 13, habit


def shown_at(profile: Profile | None, zone: str, decisions: Sequence[int]) -> list[int]:
    """The local times at which a banner of one view a day (24 hours) is shown, with the rule or without."""
    shown: list[int] = []
    for local in decisions:
        if shown and local - shown[-1] < DAY_MS:
            continue
        if profile is None or level_at(profile, local - offset_ms(zone)) >= DEFAULT_LEVEL:
            shown.append(local)
    return shown


def decisions_of(person: Person) -> list[int]:
    return moments(random.Random(person.name), person.habit, LEARNING_DAYS, 14, a_day=4)


def test_with_the_rule_more_views_come_in_the_hours_of_the_habit() -> None:
    for habit in ("evening", "morning", "night"):
        with_rule, without = list[bool](), list[bool]()
        for person, profile in of(habit):
            for rule, views in ((profile, with_rule), (None, without)):
                shown = shown_at(rule, person.zone, decisions_of(person))
                views += [local // HOUR_MS % 24 in HABITS[habit] for local in shown]
        assert mean(with_rule) >= 0.97, habit
        assert mean(with_rule) > mean(without) + 0.05, habit


def test_nobody_is_starved_and_flat_people_lose_nothing() -> None:
    for person, profile in crowd().values():
        decisions = decisions_of(person)
        came = any(is_open(profile, local // HOUR_MS % 24) for local in decisions)
        assert bool(shown_at(profile, person.zone, decisions)) is came
    with_rule = sum(len(shown_at(profile, person.zone, decisions_of(person))) for person, profile in of("flat"))
    without = sum(len(shown_at(None, person.zone, decisions_of(person))) for person, _ in of("flat"))
    assert with_rule >= 0.97 * without
    open_share = mean([sum(is_open(profile, hour) for hour in range(24)) / 24 for _, profile in of("flat")])
    assert open_share >= 0.95


def test_a_changed_habit_is_followed_within_two_half_lives() -> None:
    """From evenings to mornings: after four weeks the mornings are open and busier; after eight the evenings close."""
    chance, followed, closed = random.Random(5), [], []
    for person, _ in of("evening"):
        times = moments(chance, "evening", 0, LEARNING_DAYS)
        times += moments(chance, "morning", LEARNING_DAYS, LEARNING_DAYS)
        profile = learnt(person, times)
        best = max(range(24), key=lambda hour: profile.levels[hour])
        followed.append(best in range(5, 11) and all(is_open(profile, hour) for hour in HABITS["morning"]))
        times += moments(chance, "morning", 2 * LEARNING_DAYS, LEARNING_DAYS)
        later = learnt(person, times)
        closed.append(not is_open(later, 20) and all(is_open(later, hour) for hour in HABITS["morning"]))
        assert open_hours(later.levels, DEFAULT_LEVEL)
    assert mean(followed) == 1
    assert mean(closed) >= 0.9
