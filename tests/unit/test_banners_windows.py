"""All faults of a refused banner at once, those of its times among them, under the names that were sent."""

from __future__ import annotations

import msgspec
import pytest

from handbill.banners.model import BannerPatch, NewBanner
from handbill.kit.faults import faults_of

EARLY, LATE = "2026-04-01T00:00:00Z", "2026-05-01T00:00:00Z"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"start_date": LATE, "end_date": EARLY}, {"x_times", "y_hours", "end_date"}),
        ({"publish_at": LATE, "expires_at": EARLY}, {"x_times", "y_hours", "expires_at"}),
        ({"start_date": LATE, "expires_at": EARLY}, {"x_times", "y_hours", "expires_at"}),
        ({"start_date": EARLY, "end_date": LATE}, {"x_times", "y_hours"}),
        ({"start_date": "soon", "end_date": EARLY}, {"x_times", "y_hours", "start_date"}),
        ({"start_date": EARLY, "publish_at": LATE}, {"x_times", "y_hours", "start_date"}),
        ({"end_date": "0001-01-01T00:00:00Z"}, {"x_times", "y_hours", "end_date"}),
        ({"end_date": None, "start_date": [EARLY]}, {"x_times", "y_hours", "start_date"}),
    ],
)
@pytest.mark.parametrize("kind", [NewBanner, BannerPatch])
def test_faults_of_times_are_named_beside_the_others(
    kind: type[NewBanner | BannerPatch], sent: dict[str, object], expected: set[str]
) -> None:
    body = msgspec.json.encode({"x_times": 0, "y_hours": "one", "z_duration_sec": 3, **sent})
    faults = faults_of(body, kind)
    assert {fault.field for fault in faults} == expected
    assert len(faults) == len(expected)
