"""Templates with variables, and words that mean "no more"."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.messaging.model import Template
from handbill.messaging.optout import LANGUAGES, START, STOP, OptOutKeywords, plain
from handbill.messaging.render import (
    Binding,
    Filled,
    Missing,
    TooLong,
    fill,
    preflight,
    unbound,
    unsupported,
    variables,
)

SALE = Template(
    id="1",
    name="sale",
    language="en",
    category="MARKETING",
    state="APPROVED",
    components=(
        {"type": "HEADER", "format": "IMAGE", "example": {}},
        {"type": "BODY", "text": "Hi {{1}}, {{2}} % off. Really, {{1}}."},
        {"type": "FOOTER", "text": "Reply STOP to end"},
        {"type": "BUTTONS", "buttons": [{"type": "QUICK_REPLY"}, {"type": "URL", "url": "https://x.example/{{1}}"}]},
        {"type": "CAROUSEL_OF_NEXT_YEAR"},
    ),
)
BINDINGS = {
    "header.image": Binding(fallback="https://x.example/a.png"),
    "body.1": Binding(field="first_name", fallback="friend"),
    "body.2": Binding(field="discount"),
    "button.1.1": Binding(field="code"),
}
NAMED = Template(
    "2", "n", "en", "UTILITY", "APPROVED", ({"type": "BODY", "text": "{{order}} for {{name}}"},), named=True
)


def test_every_hole_has_a_key() -> None:
    assert [hole.key for hole in variables(SALE)] == ["header.image", "body.1", "body.2", "button.1.1"]
    assert unbound(SALE, BINDINGS) == ()
    assert unbound(NAMED, {"body.name": Binding("name")}) == ("body.order",)


def test_a_filled_template_is_what_the_provider_wants() -> None:
    found = fill(SALE, BINDINGS, {"first_name": " Ada\nLovelace ", "discount": 20, "code": "A1"})
    assert isinstance(found, Filled)
    assert list(found.send.components) == [
        {"type": "header", "parameters": [{"type": "image", "image": {"link": "https://x.example/a.png"}}]},
        {"type": "body", "parameters": [{"type": "text", "text": "Ada Lovelace"}, {"type": "text", "text": "20"}]},
        {"type": "button", "sub_type": "url", "index": "1", "parameters": [{"type": "text", "text": "A1"}]},
    ]
    assert found.text == "Hi Ada Lovelace, 20 % off. Really, Ada Lovelace.\nReply STOP to end"
    named = fill(NAMED, {"body.order": Binding("o"), "body.name": Binding("n")}, {"o": "7", "n": "Bo"})
    assert isinstance(named, Filled)
    assert named.send.components[0]["parameters"][1] == {"type": "text", "text": "Bo", "parameter_name": "name"}


def test_a_coupon_is_copied_and_what_we_cannot_fill_is_named() -> None:
    buttons = {"type": "BUTTONS", "buttons": [None, {"type": "COPY_CODE"}, {"type": "FLOW"}]}
    parts = ({"type": "HEADER", "format": "LOCATION"}, {"type": "BODY", "text": "Hi"}, buttons, {"type": "CAROUSEL"})
    template = Template("4", "c", "en", "MARKETING", "APPROVED", parts)
    found = fill(template, {"button.1.coupon": Binding("code")}, {"code": "SAVE"})
    assert isinstance(found, Filled)
    (button,) = found.send.components
    assert (button["sub_type"], button["index"]) == ("copy_code", "1")
    assert button["parameters"] == [{"type": "coupon_code", "coupon_code": "SAVE"}]
    assert unsupported(template) == ("HEADER LOCATION", "BUTTON FLOW", "CAROUSEL")
    assert unsupported(NAMED) == ()


def test_a_missing_value_is_named_not_guessed() -> None:
    assert fill(SALE, BINDINGS, {"discount": " \n", "code": None}) == Missing(("body.2", "button.1.1"))
    long = fill(SALE, BINDINGS, {"discount": "9" * 1100, "code": "A"})
    assert isinstance(long, TooLong)
    assert (long.place, long.limit) == ("body", 1024)


def test_ten_variables_are_filled_by_number() -> None:
    text = " ".join(f"{{{{{n}}}}}" for n in (10, 2, 1))
    template = Template("3", "t", "en", "UTILITY", "APPROVED", ({"type": "BODY", "text": text},))
    assert [hole.name for hole in variables(template)] == ["1", "2", "10"]


people = st.lists(
    st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(["", "x", " ", None, 0]) for key in ("discount", "code", "first_name")}
    ),
    max_size=12,
)


@given(people)
def test_preflight_counts_what_sending_would_skip(rows: list[dict[str, Any]]) -> None:
    counted = preflight(SALE, BINDINGS, iter(rows))
    outcomes = [fill(SALE, BINDINGS, row) for row in rows]
    assert counted.total == len(rows)
    assert counted.ready == sum(isinstance(one, Filled) for one in outcomes)
    lacking = [one for one in outcomes if isinstance(one, Missing)]
    assert counted.ready + len(lacking) + counted.too_long == counted.total
    assert sum(counted.missing.values()) == sum(len(one.keys) for one in lacking)


@pytest.mark.parametrize(
    ("text", "preference"),
    [
        ("STOP", "stop"),
        ("  stop!!! 🙏", "stop"),
        ("Désabonner.", "stop"),
        ("Arrêt", "stop"),
        ("ÇIK", "stop"),
        ("बंद करो", "stop"),
        ("إلغاء الاشتراك", "stop"),
        ("退订", "stop"),
        ("Não quero mais", "stop"),
        ("unstop", "start"),
        ("Старт", "start"),
        ("stop by tomorrow", None),
        ("please do not stop", None),
        ("", None),
        ("🙏", None),
        ("stop " * 100, None),
    ],
)
def test_whole_messages_are_matched(text: str, preference: str | None) -> None:
    match = OptOutKeywords().match(text)
    assert (match.preference if match else None) == preference


@pytest.mark.parametrize(
    "text",
    [
        "Cancel", "cancelar", "取消", "Отмена", "İptal", "batal", "hủy", "Annulla", "End", "Quit", "Weiter", "Alta",
        "Resume", "voltar", "reanudar", "riprendi", "reprendre", "开始", "再開", "mulai", "bắt đầu",
    ],
)  # fmt: skip
def test_words_that_may_mean_something_else_do_nothing(text: str) -> None:
    keywords = OptOutKeywords()
    assert keywords.match(text) is None
    assert keywords.match_reply("button", text, text) is None


def test_a_button_counts_by_its_payload_alone() -> None:
    keywords = OptOutKeywords()
    assert keywords.match_reply("button", "Stop", "stop-the-timer") is None
    assert keywords.match_reply("interactive", "Unsubscribe", "row 3") is None
    for payload in ("STOP", "OPT_OUT"):
        match = keywords.match_reply("button", "No, thanks", payload)
        assert match is not None
        assert match.preference == "stop"
    assert keywords.match_reply("text", "hello", "STOP") is None, "a text has no payload of ours"


def test_every_word_of_the_lists_is_matched_and_stop_wins() -> None:
    keywords = OptOutKeywords()
    for preference, lists in (("stop", STOP), ("start", START)):
        assert lists.keys() == set(LANGUAGES)
        for word in (word for listed in lists.values() for word in listed):
            match = keywords.match(word.upper())
            assert match is not None, word
            assert match.preference == preference, word


def test_a_tenant_has_languages_and_words_of_its_own() -> None:
    keywords = OptOutKeywords(stop=["Adiós", "start"], start=["hola"], without=["Remove me"])
    assert keywords.match("remove me") is None
    found = [keywords.match(text) for text in ("adios", "HOLA", "start")]
    assert [one and one.preference for one in found] == ["stop", "start", "stop"]
    german = OptOutKeywords(["de"])
    assert german.match("abmelden") is not None
    assert german.match("sair") is None


def test_a_long_message_is_not_looked_at() -> None:
    assert OptOutKeywords().match("stop" + " " * 200) is None
    assert plain("\ufdfa" * 160) != "", "each of these letters stands for eighteen"


@given(st.text(max_size=60))
def test_plain_is_stable(text: str) -> None:
    assert plain(plain(text)) == plain(text)
