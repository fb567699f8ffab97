"""What is said when everything runs: where to look, and the demo keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.panel import Panel

from handbill.ops.demo import Demo
from handbill.settings import Settings


class Ready(msgspec.Struct, frozen=True):
    settings: Settings
    home: Path
    demo: Demo | None
    seconds: float

    @property
    def api_url(self) -> str:
        host = self.settings.api.host
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104 - shown, not bound
        return f"http://{shown}:{self.settings.api.port}"

    def facts(self) -> dict[str, Any]:
        """For a machine: the addresses and the demo keys."""
        return {
            "api": self.api_url,
            "schema": f"{self.api_url}/schema",
            "home": str(self.home),
            "logs": str(self.home / "logs"),
            "seconds": self.seconds,
            "demo_page": None if self.demo is None else f"{self.api_url}/demo",
            "demo": None if self.demo is None else msgspec.to_builtins(self.demo),
        }

    def panel(self) -> Panel:
        """For a person."""
        settings = self.settings
        lines = [
            f"API        {self.api_url}",
            f"Routes     {self.api_url}/schema",
            f"Health     {self.api_url}/health  {self.api_url}/ready",
        ]
        if settings.api.metrics_port:
            lines.append(f"Metrics    http://{settings.api.metrics_host}:{settings.api.metrics_port}/metrics  /ready")
        if settings.worker.port:
            lines.append(f"Worker     http://{settings.worker.host}:{settings.worker.port}/health")
        lines += [f"Home       {self.home}", f"Logs       {self.home / 'logs'}"]
        if self.demo is not None:
            lines += [
                "",
                f"Demo shop    {self.api_url}/demo",
                f"Demo tenant  {self.demo.tenant}",
                f"Write key    {self.demo.write_key}",
                f"Secret key   {self.demo.secret_key}",
                f"Placement    {self.demo.placement_id}",
                f"Banner       {self.demo.banner_id}",
            ]
        lines += ["", "Ctrl-C stops everything in order."]
        return Panel("\n".join(lines), title=f"Handbill is ready ({self.seconds} s)", expand=False)
