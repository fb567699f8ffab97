"""The event loop of an API process gets its turn soon, whatever other threads do."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from handbill.api import server
from handbill.settings import load


class Stopped(Exception):
    """The server went as far as the test wants."""


async def test_threads_of_an_api_process_give_way_to_the_event_loop_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise Stopped

    before = sys.getswitchinterval()
    monkeypatch.setattr(server, "readiness", stop)
    monkeypatch.setattr(server, "_check_free", lambda *_: None)
    house: Any = None
    try:
        with pytest.raises(Stopped):
            await server.serve(house, load({}))
        assert sys.getswitchinterval() == pytest.approx(server.SWITCH_S)
        assert before > 2 * server.SWITCH_S
    finally:
        sys.setswitchinterval(before)
