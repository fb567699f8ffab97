"""Empty replies a second on the fast lane. It has no bar: it is the limit that other benches are held against."""

from __future__ import annotations

import statistics

from benches._bench import ROUNDS, Options, Result, main, require, rounded, say
from benches._load import Report, Request, client_address, load
from tests.kit.stack import stack

BAR = "none: it is the limit"


async def body(options: Options) -> Result:
    requests = [Request("GET", "/ping", {"X-Forwarded-For": client_address(n)}) for n in range(1_000)]
    reports: list[Report] = []
    async with stack() as built, built.api() as port:
        for number in range(ROUNDS):
            report = await load(port, requests, seconds=3 if options.quick else 10)
            require(report.failed == 0, f"{report.failed} replies were no success: {dict(report.statuses)}")
            say(f"round {number + 1}: {report.rate:,.0f}/s, p99 {report.p99_ms:g} ms")
            reports.append(report)
    value = statistics.median(report.rate for report in reports)
    detail = {
        "generator": reports[0].generator,
        "connections": 64,
        "rounds": [rounded(report.rate) for report in reports],
        "p99_ms": statistics.median(report.p99_ms for report in reports),
        "note": "limit is the value itself",
    }
    return Result(value, "replies/s", value, detail)


if __name__ == "__main__":
    main("hello", body)
