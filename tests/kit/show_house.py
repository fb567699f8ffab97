"""A shop on the stage, beside its model: every request and every change goes to both, every answer is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.engines import Engines
from tests.kit.hot import UNHURRIED_SETTINGS
from tests.kit.show_model import Model, Saw, Who
from tests.kit.show_stage import START_MS, Shop, Stage

HOUR = 3_600_000
SESSION = 24 * HOUR
FOREVER = 1 << 50
Z_S = 2
LEASE = Z_S * 1_000 + 60_000


def staged(engines: Engines, home: Path) -> Stage:
    """A started stage on this worker's engines."""
    env = {
        "HANDBILL_HOME": str(home / "home"),
        "HANDBILL_POSTGRES__URL": engines.postgres_url,
        **UNHURRIED_SETTINGS,
        "HANDBILL_REDIS__URL": engines.redis_url,
        "HANDBILL_REDIS__TIMEOUT_MS": "30000",
        "HANDBILL_TENANTS__SEAL_KEY": "a seal key for tests",
        "HANDBILL_API__METRICS_PORT": "0",
        "HANDBILL_WORKER__PORT": "0",
        "HANDBILL_WORKER__METRICS_PORT": "0",
    }
    made = Stage(env, engines.postgres_url, engines.redis_url, home)
    made.start()
    return made


class House:
    """A shop with a campaign, a placement, a soft banner and a strict one; the model is told of every change."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.model = stage, Model()
        self._nameless = 0
        self.shop: Shop = stage.do(stage.shop())
        self.ids: dict[str, str] = {}
        self.caps: dict[str, dict[str, Any]] = {}
        self.make("campaign", {"name": "C"})
        self.make("place", {"name": "P", "slug": "p"})
        for name, mode in (("soft", "soft"), ("strict", "strict")):
            self.make(name, {
                "name": name, "x_times": 2, "y_hours": 1, "z_duration_sec": Z_S, "cap_mode": mode,
                "campaign_id": self.ids["campaign"],
            })  # fmt: skip
        stage.do(stage.known(self.shop))

    @property
    def now(self) -> int:
        return self.stage.board.now_ms

    def make(self, name: str, body: dict[str, Any]) -> None:
        kind = _KINDS[name]
        made = self.stage.do(self.stage.admin(self.shop, "POST", f"/admin/{kind}s", body))
        self.ids[name] = made[f"{kind}_id"]
        self.caps[name] = body
        self._tell(name)

    def change(self, name: str, process: int = 0, **patch: Any) -> None:
        path = f"/admin/{_KINDS[name]}s/{self.ids[name]}"
        self.stage.do(self.stage.admin(self.shop, "PATCH", path, patch, process))
        self.caps[name] |= patch
        self._tell(name)
        self.stage.do(self.stage.known(self.shop))

    def _tell(self, name: str) -> None:
        told = self.caps[name]
        by = told.get("cap_by", "user")
        limits: dict[str, list[tuple[int, int]]] = {}
        if "x_times" in told:
            limits[by] = [(told["x_times"], told["y_hours"] * HOUR)]
        for each in told.get("caps", []):
            span = {"session": SESSION, "lifetime": FOREVER}.get(each.get("per", ""), each.get("y_hours", 0) * HOUR)
            limits.setdefault("session" if each.get("per") == "session" else by, []).append((each["x"], span))
        self.model.limits[name] = limits

    def scopes(self, banner: str, placed: bool) -> tuple[str, ...]:
        return (banner, "campaign", "place") if placed else (banner, "campaign")

    def expected(self, who: Who, placed: bool) -> set[str]:
        return {
            name
            for name in ("soft", "strict")
            if self.model.may_see(who, self.scopes(name, placed), self.now, strict=name == "strict")
        }

    def decide(self, who: Who, placed: bool, process: int) -> dict[str, str]:
        """A decision with tokens, held against the model. The strict banner's slot is named by its token."""
        expected = self.expected(who, placed)
        body: dict[str, Any] = {"user_id": who.user, "device_id": who.device, "session_id": who.session, "limit": 20}
        if placed:
            body["placements"] = ["p"]
        found = self.stage.do(self.stage.decide(self.shop, process, body))
        tokens = {name: found[each] for name, each in self.ids.items() if each in found}
        assert set(tokens) == expected, f"{who} {placed=} {expected=} {set(tokens)=} at {self.now - START_MS} ms"
        if "strict" in tokens:
            self.model.hold(who, self.scopes("strict", placed), tokens["strict"], self.now + LEASE)
        return tokens

    def look(self, who: Who, placed: bool, process: int) -> None:
        """The same by GET /banners, which knows no tokens."""
        expected = self.expected(who, placed)
        found = self.stage.do(
            self.stage.shown(
                self.shop, process, user_id=who.user, device_id=who.device, session_id=who.session,
                placement="p" if placed else None,
            )
        )  # fmt: skip
        names = {name for name, each in self.ids.items() if each in found}
        assert names == expected, f"{who} {placed=} {expected=} {names=} at {self.now - START_MS} ms"
        if "strict" in names:
            self._nameless += 1  # never the name of another one that is held still
            self.model.hold(who, self.scopes("strict", placed), f"nameless-{self._nameless}", self.now + LEASE)

    def body(self, event: str, banner: str, who: Who, placed: bool, token: str | None, counted: bool) -> dict[str, Any]:
        body = {
            "banner_id": self.ids[banner], "user_id": who.user, "event_id": event, "view_duration_ms": 0,
            "dismissed": counted, "device_id": who.device, "session_id": who.session, "token": token,
            "placement_id": self.ids["place"] if placed else None,
        }  # fmt: skip
        return {name: value for name, value in body.items() if value is not None}

    def saw(self, event: str, banner: str, who: Who, placed: bool, token: str | None) -> None:
        """The model's side of an accepted view."""
        scopes = self.scopes(banner, placed)
        if event in self.model.saw:
            return
        self.model.saw[event] = Saw(who, self.now, scopes)
        if banner == "strict":
            self.model.give_back(who, scopes, token, self.now)


_KINDS = {"campaign": "campaign", "place": "placement", "soft": "banner", "strict": "banner"}
