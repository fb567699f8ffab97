"""Where the processes of this installation keep their heartbeat files; `handbill up` looks at the same places."""

from __future__ import annotations

from pathlib import Path

from handbill.settings import Settings


def api_heartbeat_file(settings: Settings, number: str = "") -> Path:
    """The file of an API process; `up` gives every further one (`2`, `3`, ...) a file of its own."""
    given = settings.api.heartbeat_file
    path = Path(given) if given else _run_directory(settings) / "api.heartbeat"
    return path.with_stem(f"{path.stem}-{number}") if number else path


def worker_heartbeat_file(settings: Settings) -> Path:
    """Workers with different tasks have files of their own: one must not vouch for another."""
    given = settings.worker.heartbeat_file
    name = "-".join(("worker", *settings.worker.only))
    return Path(given) if given else _run_directory(settings) / f"{name}.heartbeat"


def _run_directory(settings: Settings) -> Path:
    return Path(settings.home) / "run"
