"""Open incidents and what each sender has reported, in one small file: a restart reports nothing twice."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from handbill.alerts.channel import ChannelState
from handbill.alerts.incidents import Incident
from handbill.kit.telemetry import logs

_MAX_BYTES = 4 * 1024 * 1024
_log = logs.get("alerts")


class WatchState(msgspec.Struct):
    open: list[Incident] = []
    channels: dict[str, ChannelState] = {}


def load_state(path: Path) -> WatchState:
    """The state as it was saved; an empty one if there is none or it cannot be read, which is logged."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=WatchState)  # more than that is cut, and unreadable
    except FileNotFoundError:
        return WatchState()
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        _log.warning("alerts.state_unreadable", path=str(path), reason=f"{type(error).__name__}: {error}")
        return WatchState()


def save_state(path: Path, open_incidents: list[Incident], channels: Mapping[str, ChannelState]) -> None:
    """Replace the file in one step. A disk that is full is logged: messages go on, a restart may repeat some."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(WatchState(open_incidents, dict(channels))))
            Path(draft).replace(path)
        except OSError:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        _log.warning("alerts.state_not_saved", path=str(path), reason=f"{type(error).__name__}: {error}")
