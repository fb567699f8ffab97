"""What is printed when everything runs: where to look, and the demo tenant's keys.

A person sees the demo tenant's secret key once, on the start that made it; later starts name the file that holds it.
`--json` is for programs, which read the keys at every start, and always has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.panel import Panel

from handbill.ops.demo import DemoTenant, file_of
from handbill.settings import Settings


class Ready(msgspec.Struct, frozen=True):
    settings: Settings
    home: Path
    demo: DemoTenant | None
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
            "demo": None if self.demo is None else msgspec.to_builtins(self.demo.demo),
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
            lines += ["", *self._demo_lines(self.demo)]
        lines += ["", "Ctrl-C stops everything in order."]
        return Panel("\n".join(lines), title=f"Handbill is ready ({self.seconds} s)", expand=False)

    def _demo_lines(self, made: DemoTenant) -> list[str]:
        demo = made.demo
        secret = f"{demo.secret_key}  (printed this once)" if made.is_new else f"in {file_of(self.home)}"
        return [
            f"Demo shop    {self.api_url}/demo",
            f"Demo tenant  {demo.tenant}  (HANDBILL_DEMO=off switches the demo off)",
            f"Write key    {demo.write_key}",
            f"Secret key   {secret}",
            f"Placement    {demo.placement_id}",
            f"Banner       {demo.banner_id}",
        ]
