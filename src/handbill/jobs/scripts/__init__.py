"""The Lua that runs inside Redis: BullMQ's own scripts, taken whole from its wheel, and ours composed around them.

A BullMQ script becomes a Lua function of (KEYS, ARGV), so that ours can decide before it and act after it in one
atomic step. Nothing of BullMQ's text is changed; its version is pinned.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

CLAIM, SETTLE, ADD, SWEEP = "claim_main", "settle_main", "add_main", "sweep_main"


@cache
def bullmq(name: str) -> str:
    """The text of one of BullMQ's scripts, e.g. "moveToActive-11". Found without importing the package itself."""
    spec = find_spec("bullmq")
    if spec is None or spec.origin is None:
        raise RuntimeError("the bullmq wheel, whose Lua scripts the queues run on, is not installed")
    return (Path(spec.origin).parent / "commands" / f"{name}.lua").read_text()


@cache
def own(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.lua").read_text()


def function(name: str, script: str) -> str:
    """A whole BullMQ script as a local Lua function."""
    return f"local function {name}(KEYS, ARGV)\n{bullmq(script)}\nend\n"


@cache
def claim() -> str:
    return function("bull_active", "moveToActive-11") + own("claim") + own(CLAIM)


@cache
def settle(script: str) -> str:
    return function("bull_settle", script) + function("bull_active", "moveToActive-11") + own("claim") + own(SETTLE)


@cache
def add(script: str) -> str:
    return function("bull_add", script) + own(ADD)


@cache
def sweep() -> str:
    return function("bull_sweep", "moveStalledJobsToWait-9") + own(SWEEP)
