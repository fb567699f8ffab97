"""Our own small HTTP load generator: many keep-alive connections, one epoll loop, requests prepared beforehand.

Run as a process of its own, so that it never shares a loop with what it measures: it reads one JSON plan from stdin
and prints one JSON report. Used where `wrk` is not installed. With `rate`, requests are due at fixed times and latency
counts from the due time, so that a slow server cannot slow down the questions.
"""

from __future__ import annotations

import array
import base64
import contextlib
import gc
import json
import select
import socket
import sys
import time
from collections import Counter, deque
from typing import Any


class Line:
    """One connection: at most one request under way."""

    __slots__ = ("buffer", "due", "need", "socket")

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.buffer = b""
        self.need = 0
        self.due = 0.0


class Generator:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.address = (str(plan["host"]), int(plan["port"]))
        self.requests = [base64.b64decode(text) for text in plan["requests"]]
        self.seconds = float(plan["seconds"])
        self.warm = float(plan["warm"])
        self.rate = float(plan["rate"])
        self.count = int(plan["count"]) or sys.maxsize
        self.lines = {line.socket.fileno(): line for line in (Line(self.address) for _ in range(plan["connections"]))}
        self.poll = select.epoll()
        for number in self.lines:
            self.poll.register(number, select.EPOLLIN)
        self.latencies = array.array("d")
        self.statuses: Counter[str] = Counter()
        self.sample = ""
        self.next = 0
        self.sent = 0

    def send(self, line: Line, due: float) -> None:
        request = self.requests[self.next]
        self.next = (self.next + 1) % len(self.requests)
        line.due = due
        line.buffer = b""
        line.need = 0
        line.socket.sendall(request)  # a request fits into an empty socket buffer
        self.sent += 1

    def receive(self, line: Line) -> bool:
        """Read what came; True when the reply is whole."""
        data = line.socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed a keep-alive connection")
        line.buffer = data = line.buffer + data if line.buffer else data
        if not line.need:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                return False
            line.need = end + 4 + _content_length(data[:end])
        return len(data) >= line.need

    def note(self, line: Line, now: float) -> None:
        self.latencies.append(now - line.due)
        self.statuses[line.buffer[9:12].decode("latin-1")] += 1
        if not self.sample:
            self.sample = line.buffer.partition(b"\r\n\r\n")[2][:500].decode("utf-8", "replace")

    def run(self) -> dict[str, Any]:
        gc.disable()
        begin = time.monotonic()
        counting = begin + self.warm
        end = counting + self.seconds
        idle = deque(self.lines.values())
        now = begin
        while now < end and len(self.latencies) < self.count:
            self._ask(idle, now, begin)
            for number, _ in self.poll.poll(0.001 if self.rate else 0.1):
                line = self.lines[number]
                if self.receive(line):
                    now = time.monotonic()
                    if now >= counting:
                        self.note(line, now)
                    idle.append(line)
            now = time.monotonic()
        return self.report(now - counting)

    def _ask(self, idle: deque[Line], now: float, begin: float) -> None:
        while idle:
            due = begin + self.sent / self.rate if self.rate else now
            if due > now:
                return
            self.send(idle.popleft(), due)

    def report(self, seconds: float) -> dict[str, Any]:
        for line in self.lines.values():
            with contextlib.suppress(OSError):
                line.socket.close()
        ordered = sorted(self.latencies)
        return {
            "generator": "own",
            "requests": len(ordered),
            "seconds": seconds,
            "rate": len(ordered) / seconds,
            "p50_ms": _percentile(ordered, 0.50),
            "p99_ms": _percentile(ordered, 0.99),
            "max_ms": _percentile(ordered, 1.0),
            "statuses": dict(self.statuses),
            "sample": self.sample,
        }


def _content_length(head: bytes) -> int:
    low = head.lower()
    at = low.find(b"content-length:")
    if at < 0:
        return 0
    end = low.find(b"\r\n", at)
    return int(low[at + 15 : end if end > 0 else None])


def _percentile(ordered: list[float], share: float) -> float:
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 3)


if __name__ == "__main__":
    print(json.dumps(Generator(json.load(sys.stdin)).run()))
