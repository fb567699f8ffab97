"""How long a noisy tenant's lane pauses: by counting, without a clock."""

from __future__ import annotations

import pytest

from handbill.events.sharing import STEP_S, leave_time


@pytest.mark.parametrize(
    ("looks", "pauses"),
    [
        ([], []),
        ([True, True], [STEP_S, STEP_S]),
        ([True] * 99, [STEP_S, STEP_S, 0.04]),
    ],
    ids=["nobody waits", "others wait for a moment", "others wait all the time"],
)
async def test_pauses_last_while_others_wait_and_never_longer_than_the_share(
    looks: list[bool], pauses: list[float]
) -> None:
    answers = iter(looks)
    paused: list[float] = []

    async def others_wait() -> bool:
        return next(answers, False)

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    await leave_time(0.08, 0.25, others_wait, pause)
    assert paused == pytest.approx(pauses)
