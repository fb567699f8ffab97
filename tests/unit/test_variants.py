"""A/B tests: a fair split that lasts, faces, and who is held out."""

from __future__ import annotations

from collections import Counter

from handbill.banners.model import Variant
from handbill.banners.variants import face, held_out, variant_of
from tests.unit.test_ranking import banner

PEOPLE = [f"user-{number}" for number in range(3_000)]


def test_the_split_follows_the_weights_and_lasts() -> None:
    tested = banner(1, variants=[Variant("a", 100), Variant("b", 300)])
    split = Counter(variant_of(tested, who) for who in PEOPLE)
    assert 2_100 < split[1] < 2_400
    assert [variant_of(tested, who) for who in PEOPLE] == [variant_of(tested, who) for who in PEOPLE]


def test_two_banners_split_the_same_people_differently() -> None:
    faces = [Variant("a"), Variant("b")]
    one, two = banner(1, variants=faces), banner(2, variants=faces)
    same = sum(variant_of(one, who) == variant_of(two, who) for who in PEOPLE)
    assert 1_350 < same < 1_650


def test_a_variant_says_what_differs_and_the_banner_the_rest() -> None:
    whole = banner(1, variants=[Variant("a", title="Other")])
    assert face(whole, whole.variants[0])["title"] == "Other"
    assert face(whole, whole.variants[0])["image_url"] is None
    assert face(whole, None)["title"] is None


def test_the_holdout_is_a_share_of_its_own() -> None:
    assert not held_out(banner(1), "anybody")
    held = {who for who in PEOPLE if held_out(banner(1, holdout_percent=20.0), who)}
    assert 500 < len(held) < 700
    assert all(held_out(banner(1, holdout_percent=100.0), who) for who in PEOPLE)
