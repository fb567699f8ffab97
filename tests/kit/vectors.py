"""The page of vectors that every client of Handbill must satisfy."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def vectors() -> Any:
    return json.loads(files("handbill.client").joinpath("vectors.json").read_text(encoding="utf-8"))
