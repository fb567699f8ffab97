"""What a scenario is given: its seed, its time, engines of its own, and a place to say how it goes."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.kit.stack import Stack, stack


@dataclass
class Context:
    """All randomness comes from `random`; the same seed makes the same choices again."""

    name: str
    seed: int
    seconds: float
    settings: dict[str, Any] = field(default_factory=dict)
    """What the scenario chose for itself (sizes, numbers of workers); goes into the evidence."""
    is_partial: bool = False
    """Set by a scenario that ran only a part of itself: no evidence is written."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.name}:{self.seed}")
        self.begin = time.monotonic()

    def time_left(self) -> float:
        return self.begin + self.seconds - time.monotonic()

    def stack(
        self,
        *,
        postgres: bool = True,
        redis: bool = True,
        clickhouse: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[Stack]:
        """Fresh engines with shipped durability, migrated."""
        return stack(postgres=postgres, redis=redis, clickhouse=clickhouse, settings=settings)

    def say(self, text: str) -> None:
        took = time.monotonic() - self.begin
        print(f"[{self.name} {took:7.1f} s] {text}", file=sys.stderr, flush=True)
