"""Python's collector of reference cycles, set for a server: it looks less often, and not at what stays anyway.

With its defaults it took a sixth of a busy API process' event loop: requests make many small objects that die by their
reference counts, and every seven hundred that are alive at once sent the collector through the living.
"""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 20, 20)
"""New objects before a look at the young, and how many of those before a look at the older ones."""


def settle() -> None:
    """Called once a process has started: all that exists now is taken to stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
