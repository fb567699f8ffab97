"""The Python client against the page of vectors, and handbill.js as far as it can be judged without a browser."""

from __future__ import annotations

import gzip
from importlib.resources import files
from typing import Any

import msgspec
import pytest

from handbill.api.served_files import accepts_gzip, static_script
from handbill.banners.tracking import BODY_LIMIT
from handbill.banners.wire import ClickIn, ImpressionIn, ViewIn, decide_in, one
from handbill.client import rules
from handbill.client.model import Banner, Fate, Moment, Report, Showing
from handbill.events.dialects.own_wire import ContextIn, EventIn, PersonIn
from handbill.events.model import HORIZON_DAYS
from handbill.kit.errors import Invalid
from tests.kit.dialects import read, request
from tests.kit.vectors import vectors

PAGE = vectors()


def showing_of(vector: dict[str, Any]) -> Showing:
    return msgspec.convert({**vector, "banner": msgspec.convert(vector["banner"], Banner)}, Showing)


def test_what_a_showing_reports() -> None:
    for vector in PAGE["reports"]:
        found = rules.report_of(vector["visible_ms"], vector["how"])
        assert found == Report(**vector["report"]), vector["why"]
        counted = found.dismissed or found.view_duration_ms >= vector["z_duration_sec"] * 1000
        assert counted is vector["counted"], vector["why"]
        assert (not counted and found.view_duration_ms < 500) is vector["accidental"], vector["why"]


def test_what_becomes_of_a_report() -> None:
    for vector in PAGE["fates"]:
        more = {name: vector[name] for name in ("count", "understood") if name in vector}
        found = rules.fate_of(vector["status"], vector["retry_after"], vector["tries"], **more)
        assert found == Fate(vector["keep"], vector["wait_ms"], vector.get("batch_max")), vector["why"]


def test_which_answers_are_understood() -> None:
    for vector in PAGE["understood"]:
        found = rules.is_understood(vector["status"], vector["answer"], vector["count"])
        assert found is vector["understood"], vector["why"]


def test_what_a_batch_holds() -> None:
    for vector in PAGE["batches"]:
        found = list(rules.batches(vector["sizes"], lambda size: size))
        assert [len(batch) for batch in found] == vector["batches"], vector["why"]
        assert [size for batch in found for size in batch] == vector["sizes"], vector["why"]
    most = PAGE["limits"]["batch_max"]
    assert [len(batch) for batch in rules.batches(range(most + 1), lambda _: 1)] == [most, 1]


def test_how_many_placements_a_request_names() -> None:
    for vector in PAGE["placements"]:
        assert rules.placements_by_request(vector["names"]) == vector["requests"], vector["why"]
        for names in vector["requests"]:
            assert len(decide_in(msgspec.json.encode({"placements": names})).placements) == len(names)


def test_how_long_a_decision_waits_after_the_opening() -> None:
    for vector in PAGE["openings"]:
        found = rules.wait_before_decision(vector["open_ms"], vector["open_after_ms"])
        assert found == vector["wait_ms"], vector["why"]


def test_what_a_queue_keeps() -> None:
    for vector in PAGE["queues"]:
        found = rules.fitting([(at, at) for at in vector["at"]], vector["now"], vector["max"])
        assert [at for at, _ in found] == vector["kept"], vector["why"]


def test_what_an_answer_holds() -> None:
    for vector in PAGE["answers"]:
        found = rules.decisions_of(vector["reply"])
        assert [[banner.banner_id for banner in one.banners] for one in found] == vector["banners"], vector["why"]


def test_what_is_sent_and_that_the_server_reads_it() -> None:
    for vector in PAGE["payloads"]:
        showing = showing_of(vector["showing"])
        assert rules.impression(showing) == vector["impression"], vector["why"]
        assert rules.view(showing, Report(**vector["report"])) == vector["view"], vector["why"]
        assert rules.click(showing, vector["destination"], vector["clicked_at"]) == vector["click"], vector["why"]
        assert one(ImpressionIn, msgspec.json.encode(vector["impression"])).correlationId
        assert one(ClickIn, msgspec.json.encode(vector["click"])).correlationId
        assert one(ViewIn, msgspec.json.encode(vector["view"])).event_id


def test_no_client_sends_a_field_that_the_server_does_not_declare() -> None:
    for vector in PAGE["payloads"]:
        for body, struct in (("impression", ImpressionIn), ("click", ClickIn), ("view", ViewIn)):
            assert undeclared(vector[body], struct) == set(), (body, vector["why"])
    for vector in PAGE["events"]:
        body = vector["body"]
        assert undeclared(body, EventIn) == set(), vector["why"]
        assert undeclared(body["context"], ContextIn) == set(), vector["why"]
        assert undeclared(body.get("user_properties", {}), PersonIn) == set(), vector["why"]


def undeclared(body: dict[str, Any], struct: type[msgspec.Struct]) -> set[str]:
    return set(body) - {field.encode_name for field in msgspec.structs.fields(struct)}


def test_an_answer_of_an_older_server_names_no_campaign() -> None:
    sent = {"banner_id": "b", "z_duration_sec": 3}
    for named, body in ((sent, {}), ({**sent, "campaign_id": "c"}, {"campaignPublicId": "c"})):
        (decision,) = rules.decisions_of(
            {"decisions": [{"placement": "home", "placement_id": "p", "banners": [named]}]}
        )
        made = rules.impression(decision.showing(decision.banners[0], user="ada"))
        assert {name: made[name] for name in made if name.startswith("campaign")} == body


def test_what_an_event_looks_like_and_that_the_server_reads_it() -> None:
    for vector in PAGE["events"]:
        moment = msgspec.convert(vector["moment"], Moment)
        body = rules.event(moment, vector["event"], vector["properties"], vector["person"])
        assert body == vector["body"], vector["why"]
        parsed = read(request("/v1/events", msgspec.json.encode({"events": [body]})))
        assert [event.id for event in parsed.events] == [body["event_id"]], vector["why"]
        assert (parsed.events[0].edge is not None) is (vector["event"] == "$identify")


def test_what_was_refused() -> None:
    for vector in PAGE["refusals"]:
        found = rules.refusals(vector["status"], vector["answer"], vector["count"])
        assert {str(place): code for place, code in found.items()} == vector["refused"], vector["why"]


def test_the_ids_that_a_server_takes() -> None:
    body = PAGE["payloads"][0]["view"]
    for accepted in [*PAGE["event_ids"]["accepted"], "x" * PAGE["limits"]["event_id_max"]]:
        assert one(ViewIn, msgspec.json.encode({**body, "event_id": accepted})).event_id == accepted
    for refused in [*PAGE["event_ids"]["refused"], "x" * (PAGE["limits"]["event_id_max"] + 1)]:
        with pytest.raises(Invalid):
            one(ViewIn, msgspec.json.encode({**body, "event_id": refused}))


def test_the_limits_are_the_same_everywhere() -> None:
    limits = PAGE["limits"]
    assert limits["horizon_ms"] == rules.HORIZON_MS < HORIZON_DAYS * 86_400_000
    assert limits["batch_max"] == rules.BATCH_MAX
    assert limits["batch_bytes"] == rules.BATCH_BYTES < BODY_LIMIT
    assert limits["placements_max"] == rules.PLACEMENTS_MAX
    assert limits["accidental_close_ms"] == rules.ACCIDENTAL_MS
    assert limits["duration_max_ms"] == rules.DAY_MS


def test_the_script_is_small_as_it_is_served() -> None:
    source = files("handbill.client").joinpath("handbill.js").read_bytes()
    served = static_script(source)
    assert served.compressed is not None
    assert len(served.compressed) < 8_192
    assert gzip.decompress(served.compressed) == served.body
    without_comments = [line.strip() for line in source.decode().splitlines()]
    lines = [line for line in without_comments if not line.startswith(("//", "/**", "* ", "*/"))]
    assert served.body.decode().splitlines() == lines, "only comments and indentation are gone"


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip, deflate, br, zstd", True),
        ("*", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("identity;q=1, *;q=0", False),
        ("br", False),
        ("", False),
    ],
)
def test_compressed_files_go_to_who_takes_them(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted
