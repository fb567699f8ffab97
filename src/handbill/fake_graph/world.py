"""Everything the server knows: numbers, templates, tokens, limits, its clock and its log."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from handbill.fake_graph.courier import Courier
from handbill.fake_graph.dice import Dice
from handbill.fake_graph.errors import GraphError
from handbill.fake_graph.limits import DAY_MS, Pairs, Portfolio, Throughput
from handbill.fake_graph.model import PORTFOLIO, WABA, Config, Logged, Number, Outcome, Template
from handbill.kit.clock import Clock, SystemClock

HELLO = Template(
    id="400000000000001",
    name="hello_world",
    language="en_US",
    category="UTILITY",
    components=[{"type": "BODY", "text": "Welcome and congratulations!"}],
)


class World:
    def __init__(self, config: Config | None = None, clock: Clock | None = None) -> None:
        self.config = config or Config()
        self._clock = clock or SystemClock()
        self.ahead_ms = 0
        self.faults = self.config.faults
        self.dice = Dice(self.config.seed)
        self.pairs = Pairs(self.config.pair_interval_ms, self.config.pair_burst)
        self.numbers: dict[str, Number] = {}
        self.throughput: dict[str, Throughput] = {}
        self.portfolios: dict[str, Portfolio] = {}
        self.templates: dict[str, dict[tuple[str, str], Template]] = {}
        self.media: dict[str, dict[str, object]] = {}
        self.written: dict[tuple[str, str], int] = {}
        """When a person last wrote to a number: (number, address) to time."""
        self.stopped: set[str] = set()
        """Who stopped marketing messages."""
        self.dead_tokens: set[str] = set()
        self.all_dead = False
        self.log: list[Logged] = []
        self._ids = 0
        self._wamid = f"wamid.F{hashlib.blake2b(str(self.config.seed).encode(), digest_size=6).hexdigest()}"
        self.courier = Courier(self.config, self.now_ms)
        for portfolio, tier in self.config.tiers.items():
            self.portfolios[portfolio] = Portfolio(tier)
        for number in self.config.numbers:
            self.add_number(number)
        self.add_template(WABA, msgspec.structs.replace(HELLO))

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.ahead_ms

    def new_id(self) -> str:
        self._ids += 1
        return str(500_000_000_000_000 + self._ids)

    def new_wamid(self) -> str:
        self._ids += 1
        return f"{self._wamid}{self._ids:012d}"

    def add_number(self, number: Number) -> None:
        self.numbers[number.id] = number
        self.throughput[number.id] = Throughput(number.per_second)
        self.portfolio(number.portfolio)
        self.templates.setdefault(number.waba, {})

    def portfolio(self, name: str = PORTFOLIO) -> Portfolio:
        return self.portfolios.setdefault(name, Portfolio(None))

    def add_template(self, waba: str, template: Template) -> None:
        self.templates.setdefault(waba, {})[(template.name, template.language)] = template

    def window_open(self, number: str, address: str, now_ms: int) -> bool:
        at = self.written.get((number, address))
        return at is not None and now_ms - at < DAY_MS

    def check_token(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str:
        """The caller's token, or the error that the real server gives."""
        kind, _, token = headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token:
            token = query.get("access_token", "")
        if not token:
            raise GraphError(190, "An access token is required to request this resource.", status=401)
        if self.all_dead or token in self.dead_tokens:
            raise GraphError(190, "Error validating access token: the session has expired.", subcode=463)
        if self.config.tokens and token not in self.config.tokens:
            raise GraphError(190, "Invalid OAuth access token: it cannot be parsed.")
        self._check_proof(token, query.get("appsecret_proof"))
        return token

    def _check_proof(self, token: str, proof: str | None) -> None:
        if proof is None and self.config.require_proof:
            raise GraphError(100, "API calls from the server require an appsecret_proof argument")
        if proof is not None and self.courier.app_secret:
            good = hmac.new(self.courier.app_secret.encode(), token.encode(), hashlib.sha256).hexdigest()
            if not hmac.compare_digest(good.encode(), proof.encode("utf-8", "replace")):
                raise GraphError(100, "Invalid appsecret_proof provided in the API argument")

    def number(self, number_id: str) -> Number:
        found = self.numbers.get(number_id)
        if found is None:
            raise GraphError(100, f"Object with ID '{number_id}' does not exist or cannot be loaded.", subcode=33)
        return found

    def write(
        self, at_ms: int, number: str, to: str, opaque: str, outcome: Outcome, code: int, wamid: str, kind: str
    ) -> None:
        """One line of the log, or the error of a server that cannot keep one: nothing is taken unseen."""
        if len(self.log) >= self.config.log_limit:
            raise GraphError(2, "The fake server's log is full: start it anew.")
        answer = bool(self.written) and self.window_open(number, to, at_ms)
        self.log.append(Logged(len(self.log) + 1, at_ms, number, to, opaque, outcome, code, wamid, kind, answer))
