"""Every cache that outside bytes can fill is bounded in entries and bytes: no other kind of cache is in the source, and
large values fed through the product's own functions leave memory flat."""

from __future__ import annotations

import ast
import asyncio
import gc
import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import handbill
from handbill.banners.decide import Decider
from handbill.banners.targeting.context import Asked, Questions, minute_of_week
from handbill.banners.targeting.index import _TABLES, Index, clauses_of
from handbill.banners.targeting.reader import read
from handbill.banners.wire import ContextIn
from handbill.caps.model import Viewer
from handbill.caps.opened import Caps
from handbill.caps.packed import EMPTY
from handbill.events.entries import Entries, NoEvent
from handbill.infra.geo import Countries
from handbill.infra.postgres import Database, derive
from handbill.kit import agents, bounds
from handbill.kit.bounds import CacheLimit
from handbill.kit.caches import GenerationCache
from handbill.kit.errors import Busy
from handbill.tenants import jwt, keys
from handbill.tenants.directory import Directory, _Found
from handbill.tenants.jwks import KeySets
from handbill.tenants.model import WRITE_KEY_SCOPES, Principal
from handbill.tenants.seals import Sealer
from tests.kit.clocks import FakeClock
from tests.kit.growth import doubling
from tests.kit.hot import UNHURRIED

SOURCE = Path(handbill.__file__).parent
LONG = 60_000
SMALL = CacheLimit(2_000, 2 << 20)
"""In place of a cache's own limit, where filling it would take seconds."""
NOTHING: Any = None

OTHER_CACHES = {
    "adstats/cadence.py": "the names of all time zones, in one set: the function takes no arguments",
    "api/api_docs.py": "the files of one page: the function takes no arguments",
    "api/field_docs.py": "texts by module: the modules are this program's",
    "banners/stamps.py": "at most 100 seconds of this server's own clock",
    "banners/targeting/index.py": "a plain dict for speed, with its own limits in entries and bytes (tested below)",
    "contacts/uploads.py": "one block of an upload before it is written, not a cache",
    "contacts/phone_plans.py": "calling codes of one to three digits, and regions that were checked before",
    "events/dialects/bounded.py": "decoders by their type: the types are written in the source",
    "fake_graph/limits.py": "a stand-in for tests and trials, not part of an installation",
    "infra/journal/spill.py": "rates by the number of a tenant: three numbers each, at most 10,000 tenants",
    "infra/sqlfiles.py": "statements by package: the packages are written in the source",
    "jobs/scripts/__init__.py": "scripts by name: the names are written in the source",
    "kit/agents.py": "the one parser, made once: the function takes no arguments",
    "people/types.py": "names of properties, at most 200 characters: longer ones are left out before",
    "settings/fields.py": "the fields of the settings: the function takes no arguments",
}
"""File by file: caches that are not made with `kit.caches`, and why they cannot grow with what somebody sends."""


# --- which caches there are


def uses(tree: ast.Module) -> Iterator[int]:
    """Lines with a cache that is not of `kit.caches`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("functools", "collections", "cachetools"):
            if node.module == "cachetools" or {"lru_cache", "cache", "OrderedDict"} & {
                each.name for each in node.names
            }:
                yield node.lineno
        elif isinstance(node, ast.Import) and any(each.name == "cachetools" for each in node.names):
            yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in ("lru_cache", "cache", "OrderedDict"):
            if isinstance(node.value, ast.Name) and node.value.id in ("functools", "collections"):
                yield node.lineno
        elif isinstance(node, ast.If | ast.While) and _measures(node.test) and _empties(node.body):
            yield node.lineno


def _measures(test: ast.expr) -> bool:
    """`len(X) > limit`, also as a part of the condition."""
    return any(
        isinstance(node, ast.Compare) and any(_calls(side, "len") for side in (node.left, *node.comparators))
        for node in ast.walk(test)
    )


def _empties(body: list[ast.stmt]) -> bool:
    """`X.clear()`, `X.popitem()` or `del X[...]`."""
    nodes = [node for step in body for node in ast.walk(step)]
    methods = {node.func.attr for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    return bool(methods & {"clear", "popitem"}) or any(
        isinstance(node, ast.Delete) and isinstance(node.targets[0], ast.Subscript) for node in nodes
    )


def _calls(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def test_every_cache_is_of_kit_caches_or_in_the_table_with_its_reason() -> None:
    found = {
        path.relative_to(SOURCE).as_posix(): lines
        for path in sorted(SOURCE.rglob("*.py"))
        if (lines := list(uses(ast.parse(path.read_text("utf-8")))))
    }
    found.pop("kit/caches.py")
    assert set(found) == set(OTHER_CACHES), "use kit.caches, or name the file in OTHER_CACHES with its reason"


@pytest.mark.parametrize(
    "planted",
    [
        "from functools import lru_cache",
        "import functools\n@functools.cache\ndef f(x): ...",
        "from collections import OrderedDict",
        "import cachetools",
        "from cachetools import TTLCache",
        "def f(self):\n    if len(self.x) > 10:\n        self.x.clear()",
        "def f(self):\n    while len(self.x) >= 10:\n        del self.x[next(iter(self.x))]",
    ],
)
def test_the_scan_sees_a_planted_cache(planted: str) -> None:
    assert list(uses(ast.parse(planted)))


# --- what they hold


def growth(work: Callable[[], object]) -> int:
    """Bytes that are still held after the work, by tracemalloc."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def long_text(number: int, length: int = LONG) -> str:
    return f"{number} Mozilla/5.0 (Linux; Android 9; " + "x" * length


def test_user_agents_are_cut_before_they_are_remembered() -> None:
    agents.warm()
    cache = agents._remembered

    def many() -> None:
        for number in range(3_000):
            text = long_text(number)
            agents.is_bot(text)
            agents.device_of(text)
            agents.agent_of(text)

    assert growth(many) < 3_000 * 4 * bounds.USER_AGENT_MAX
    assert cache.currsize <= bounds.USER_AGENTS.bytes
    assert agents.agent_of(long_text(1)) is agents.agent_of(long_text(1, bounds.USER_AGENT_MAX)), "cut, then found"


def test_user_agents_of_the_longest_length_stay_within_the_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cache: GenerationCache[str, Any] = GenerationCache(SMALL)
    monkeypatch.setattr(agents, "_remembered", cache)

    def many() -> None:
        for number in range(5_000):
            agents.is_bot(f"{number:06}" * 90)

    agents.warm()
    assert growth(many) < 2 * SMALL.bytes
    assert cache.currsize <= SMALL.bytes
    assert len(cache) <= SMALL.entries


def test_half_a_surrogate_pair_is_parsed_like_any_text() -> None:
    assert agents.agent_of("Mozilla/5.0 \ud800 Firefox/115.0").browser == "Firefox"


FILLS = ("y", "Mozilla/5.0 (Linux; Android 9; ", "1.", "a b;", "Android ", "; ", "Safari/5 Version/", "bingbot/")


TURNS = itertools.count()


def parsing(fill: str, length: int) -> Callable[[], None]:
    """Asks everything about texts of this length; each call has texts that were never parsed before."""

    def parse() -> None:
        turn = next(TURNS)
        for number in range(20):
            text = (f"{length} {turn} {number} " + fill * (length // len(fill) + 1))[:length]
            agents.is_bot(text)
            agents.device_of(text)
            agents.agent_of(text)

    return parse


@pytest.mark.parametrize("fill", FILLS)
def test_the_cpu_for_a_user_agent_grows_with_its_length_and_ends_at_the_limit(fill: str) -> None:
    agents.warm()
    parsing(fill, 64)()
    slack = 20 * 20e-6  # what a text costs however short it is, twenty times
    assert doubling([parsing(fill, length) for length in (128, 256, 512)], slack) is None
    for beyond in (5_000, LONG):
        wrong = doubling([parsing(fill, 512), parsing(fill, beyond)], slack)
        assert wrong is None, "what lies beyond the limit is not looked at"


def test_targeting_values_stay_within_the_limit_in_bytes() -> None:
    rule = {"custom": {"key": "plan", "op": "eq", "value": "team"}, "language": "en", "region": "noord"}
    index = Index([clauses_of(read(rule, "salt"))])

    def many() -> None:
        for number in range(6_000):
            text = long_text(number)
            index.narrowed(1, {"custom:plan": text, "language": text[:200], "region": text[:3_000]})

    assert growth(many) < 2 * 3 * bounds.TARGETING_TABLE.bytes
    for _, remembered, table in index._tables:
        assert table.currsize <= bounds.TARGETING_TABLE.bytes
        assert len(remembered) <= bounds.TARGETING_TABLE.entries


def test_targeting_tables_of_all_tenants_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_TABLES, "_limit", 1 << 20)
    rule = {"custom": {"key": "plan", "op": "eq", "value": "team"}}
    tenants = [Index([clauses_of(read(rule, "salt"))]) for _ in range(50)]
    for number in range(200):
        for index in tenants:
            assert index.narrowed(1, {"custom:plan": f"{number} " + "x" * 500}) == 0
    tables = [table for index in tenants for _, _, table in index._tables]
    assert sum(table.currsize for table in tables) <= 1 << 20
    assert all(index.narrowed(1, {"custom:plan": "team"}) == 1 for index in tenants)


class Redis:
    """Caps that are always empty."""

    async def look(self, *_: object) -> Caps:
        return Caps((EMPTY, EMPTY, EMPTY), True, {})


class Asks:
    """As much of a plan and of a question as the caps are asked with."""

    people, kinds, raised = None, (), False

    def __init__(self, viewer: Viewer | None = None) -> None:
        self.viewer = viewer


async def test_callers_of_decisions_stay_within_the_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handbill.banners.decide.VIEWER_CAPS", SMALL)
    service: Any = Redis()
    plan: Any = Asks()
    decider = Decider(NOTHING, service, None)

    async def many(number: int, length: int) -> None:
        for each in range(number):
            ids = (f"{name}{each}" + "x" * length for name in "uds")
            ask: Any = Asks(Viewer(1, *ids))
            assert await decider.caps(plan, 1, (), ask)

    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number, length in ((1_000, LONG), (1_000, LONG // 20), (5_000, bounds.ID_MAX)):
        await many(number, length)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 2 * SMALL.bytes, length
    tracemalloc.stop()
    assert decider._last_seen.currsize <= SMALL.bytes
    assert len(decider._last_seen) <= SMALL.entries


def test_verified_tokens_are_remembered_without_their_claims_and_within_the_limit() -> None:
    clock = FakeClock()
    memory = jwt.Memory(clock, SMALL)

    def many() -> None:
        for number in range(5_000):
            memory.keep(1, 1, f"token {number}", jwt.Verified(f"{number:0200}", clock.now_ms() + 1_000))

    assert growth(many) < 2 * SMALL.bytes
    assert memory.currsize <= SMALL.bytes
    assert jwt.Verified.__struct_fields__ == ("subject", "expires_ms")


class DeadHost:
    """A host that refuses once it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()

    async def get(self, url: str) -> bytes:
        self.asked += 1
        await self.answer.wait()
        raise Busy("away")


class Empty(Directory):
    """No key is known."""

    def __init__(self, clock: FakeClock) -> None:
        database = Database(derive("postgresql://nobody@127.0.0.1:1/none"), hot=UNHURRIED)
        super().__init__(database, Sealer(b"k" * 32), KeySets(NOTHING, clock), clock)

    async def _load_key(self, digest: bytes) -> _Found:
        return self._nobody()


async def test_unknown_keys_stay_within_the_limit_and_push_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handbill.tenants.directory.UNKNOWN_CREDENTIALS", SMALL)
    directory = Empty(FakeClock())
    principal = Principal(1, "write_key", WRITE_KEY_SCOPES, "test")
    good = keys.make(keys.WRITE)
    directory._remember(keys.digest(good), _Found(1, principal, False, 1e9, 1e9))
    for number in range(200):
        assert await directory.write_key(f"hbw_{number:032}") is None
        assert await directory.write_key(f"hbw_{number:060000}") is None
    assert len(directory._unknown) == 200, "a key of another length than ours is not even hashed"
    unknown = directory._nobody()
    digests = [keys.digest(str(number)) for number in range(5_000)]

    def many() -> None:
        for digest in digests:
            directory._remember(digest, unknown)

    assert growth(many) < 2 * SMALL.bytes
    assert len(directory._unknown) <= SMALL.entries
    assert directory._unknown.currsize <= SMALL.bytes
    assert await directory.write_key(good) is principal


async def test_a_project_with_a_long_name_is_not_remembered() -> None:
    entries = Entries(NOTHING, FakeClock())
    for number in range(100):
        with pytest.raises(NoEvent):
            await entries._tenant({"project_id": long_text(number)})
    assert len(entries._projects) == 0


def test_an_address_that_is_too_long_is_not_looked_up() -> None:
    countries = Countries()
    for number in range(100):
        assert countries.of("fe80::1%" + long_text(number)) is None
    assert len(countries._countries.cache) == 0


@pytest.mark.parametrize("zone", ["Mars/Olympus", "America", "../../etc/passwd", "x" * LONG, "Europe/Par\0is", ""])
def test_a_zone_that_there_is_not_is_utc(zone: str) -> None:
    assert minute_of_week(zone, 29_389_530) == minute_of_week("UTC", 29_389_530)
    asked = Asked("ann", 29_389_530 * 60_000, ContextIn(), {}, "1.2.3.4", zone)
    assert Questions(["moment"]).answered(asked) == {"moment": minute_of_week("UTC", 29_389_530)}


def test_only_the_beginning_of_a_language_header_is_looked_at() -> None:
    headers = {b"accept-language": b"x" * LONG, b"user-agent": b"y" * LONG}
    values = Questions(["language", "device", "os", "browser"]).answered(Asked("a", 0, ContextIn(), headers, ""))
    assert values == {"language": "x" * bounds.LANGUAGE_MAX}


async def test_callers_that_wait_for_a_dead_key_set_share_one_fetch_and_its_failure() -> None:
    clock = FakeClock()
    host = DeadHost()
    keysets = KeySets(host, clock)
    waiting = [asyncio.create_task(keysets.get("https://a", "kid")) for _ in range(20)]
    await asyncio.sleep(0)
    host.answer.set()
    assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {Busy}
    assert host.asked == 1
    for _ in range(20):
        with pytest.raises(Busy):
            await keysets.get("https://a", "kid")
    assert host.asked == 1, "the failure is remembered"
    clock.advance(seconds=11)
    with pytest.raises(Busy):
        await keysets.get("https://a", "kid")
    assert host.asked == 2
    for number in range(3_000):
        with pytest.raises(Busy):
            await keysets.get(f"https://a/{number}", "kid")
    assert len(keysets._failed) <= bounds.FAILED_KEY_SETS.entries
    assert not keysets._fetching
