"""Load over HTTP: `wrk` where it is installed, else our own generator. One bench uses one of them throughout."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches._bench import say

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Request:
    """One request, prepared before the clock runs."""

    method: str = "GET"
    path: str = "/"
    headers: Mapping[str, str] | None = None
    body: bytes = b""

    def wire(self, host: str) -> bytes:
        head = {"Host": host, **(self.headers or {})}
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            head["Content-Length"] = str(len(self.body))
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{k}: {v}" for k, v in head.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


@dataclass(frozen=True)
class Report:
    """What came back. `statuses` is empty under wrk, which only counts what was no 2xx or 3xx in `failed`."""

    generator: str
    requests: int
    seconds: float
    rate: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    statuses: Mapping[str, int]
    failed: int
    sample: str


def client_address(number: int) -> str:
    """One of many client addresses, for X-Forwarded-For: limits per address must not be what a bench measures."""
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


async def load(
    port: int,
    requests: Sequence[Request],
    *,
    seconds: float = 5,
    warm: float = 1,
    connections: int = 64,
    rate: float = 0,
    count: int = 0,
    host: str = "127.0.0.1",
) -> Report:
    """Send `requests` round and round over keep-alive connections for `seconds`, or until `count` replies came.

    With `rate`, at that many a second.
    """
    wrk = shutil.which("wrk")
    if wrk and not rate and not count:  # wrk knows neither
        try:
            return await _wrk(wrk, host, port, requests, seconds, warm, connections)
        except (RuntimeError, ValueError, KeyError) as error:
            say(f"wrk did not do ({error}); our own generator takes over")
    return await _own(host, port, requests, seconds, warm, connections, rate, count)


async def _own(
    host: str,
    port: int,
    requests: Sequence[Request],
    seconds: float,
    warm: float,
    connections: int,
    rate: float = 0,
    count: int = 0,
) -> Report:
    plan = {
        "host": host,
        "port": port,
        "connections": connections,
        "seconds": seconds,
        "warm": warm,
        "rate": rate,
        "count": count,
        "requests": [base64.b64encode(request.wire(f"{host}:{port}")).decode() for request in requests],
    }
    said = await _run([sys.executable, "-m", "benches._generator"], json.dumps(plan).encode())
    found: dict[str, Any] = json.loads(said)
    failed = sum(count for status, count in found["statuses"].items() if status[0] not in "23")
    return Report(**found, failed=failed)


_SCRIPT = """
local file = assert(io.open("%s", "rb"))
local requests, at = {}, 0
while true do
  local size = file:read("*n")
  if not size then break end
  file:read(1)
  requests[#requests + 1] = file:read(size)
  file:read(1)
end
file:close()
function request()
  at = at %% #requests + 1
  return requests[at]
end
function done(summary, latency, _)
  local e = summary.errors
  io.write(string.format('\\nREPORT {"requests": %%d, "us": %%d, "p50": %%f, "p99": %%f, "max": %%f, "failed": %%d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency.max,
    e.status + e.connect + e.read + e.write + e.timeout))
end
"""


async def _wrk(
    wrk: str, host: str, port: int, requests: Sequence[Request], seconds: float, warm: float, connections: int
) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "requests"
        wires = [request.wire(f"{host}:{port}") for request in requests]
        packed.write_bytes(b"".join(b"%d\n%s\n" % (len(wire), wire) for wire in wires))
        script = Path(folder) / "load.lua"
        script.write_text(_SCRIPT % packed)
        for span in (warm, seconds):
            command = [wrk, "-t1", f"-c{connections}", f"-d{max(1, round(span))}s", "-s", str(script)]
            said = await _run([*command, f"http://{host}:{port}/"], b"")
    found = json.loads(said.split("REPORT ", 1)[1].splitlines()[0])
    return Report(
        generator="wrk",
        requests=found["requests"],
        seconds=found["us"] / 1e6,
        rate=found["requests"] / (found["us"] / 1e6),
        p50_ms=found["p50"] / 1000,
        p99_ms=found["p99"] / 1000,
        max_ms=found["max"] / 1000,
        statuses={},
        failed=found["failed"],
        sample="",
    )


async def _run(command: Sequence[str], sent: bytes) -> str:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT)
    out, err = await child.communicate(sent)
    if child.returncode:
        raise RuntimeError(f"{Path(command[0]).name} ended with {child.returncode}: {err.decode()[-1000:]}")
    return out.decode()
