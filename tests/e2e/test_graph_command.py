"""`handbill fake-graph` as a real process."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp

from tests.kit.graph import HELLO
from tests.kit.processes import handbill, process


async def test_the_command_serves_and_stops(tmp_path: Path) -> None:
    async with process("fake-graph", "--port", "0", "--numbers", "3", "--json", cwd=tmp_path) as running:
        facts = json.loads(await running.says('"url"'))
        body = {"messaging_product": "whatsapp", "to": "4915112345", **HELLO}
        headers = {"Authorization": "Bearer any"}
        async with aiohttp.ClientSession(headers=headers) as http:
            url = f"{facts['url']}/v23.0/{facts['numbers'][2]}/messages"
            async with http.post(url, json=body) as reply:
                assert reply.status == 200
            async with http.get(f"{facts['url']}/_log") as reply:
                assert json.loads(await reply.text())["outcome"] == "accepted"
        port = facts["url"].rpartition(":")[2]
        code, said = await handbill("fake-graph", "--port", port)
        assert (code, "nothing was started" in said) == (1, True)
        assert await running.stop() == 0
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"sede": 1}')
    code, said = await handbill("fake-graph", "--config", str(wrong))
    assert (code, "sede" in said) == (2, True)
