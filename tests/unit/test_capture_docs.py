"""The routes at which events come in: each described or a known alias of one that is, with examples that fit."""

from __future__ import annotations

import msgspec

from handbill.events.capture_docs import ALIASES, DOCS
from handbill.events.dialects.canon import Dialect
from handbill.events.dialects.router import ROUTES
from tests.kit.dialects import HEADERS, read, request


def test_every_described_route_is_there_with_examples_that_its_own_parser_reads() -> None:
    assert set(DOCS) <= set(ROUTES)
    assert set(ALIASES) == set(Dialect)
    for (_, path), doc in DOCS.items():
        msgspec.convert(doc.body_example, doc.body)
        msgspec.convert(doc.reply_example, doc.reply)
        assert (doc.error is None) is (path == "/v1/events"), "only our own errors are problem+json"
        if doc.error is not None:
            msgspec.convert(doc.error_example, doc.error)
        headers = {**HEADERS, b"authorization": b"Bearer hbw_..."} if "/v1/analytics" in path else {}
        parsed = read(request(path, msgspec.json.encode(doc.body_example), headers=headers))
        wrong = {note.reason for note in parsed.dropped}
        assert not wrong or path in ("/v1/alias",), (path, wrong)


def test_every_dialect_has_a_described_route() -> None:
    assert {ROUTES[place] for place in DOCS} == set(Dialect)
    assert len({doc.operation_id for doc in DOCS.values()}) == len(DOCS)
