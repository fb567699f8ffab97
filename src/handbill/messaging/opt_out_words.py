"""A tenant's own opt-out and opt-in words: read, changed, and looked up for the messages of a batch of webhooks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from handbill.infra.postgres import Database, Tx
from handbill.kit import etags
from handbill.kit.clock import Clock
from handbill.kit.errors import Fault
from handbill.messaging import checks
from handbill.messaging.optout import LANGUAGES, MAX_LENGTH, OptOutKeywords, plain
from handbill.messaging.store import S
from handbill.tenants.service import Audit

Language = Literal["en", "es", "pt", "fr", "de", "it", "nl", "id", "tr", "ru", "ar", "hi", "vi", "zh", "ja"]
Word = Annotated[str, Meta(min_length=1, max_length=MAX_LENGTH)]
WordList = Annotated[list[Word], Meta(max_length=100)]
DEFAULTS = OptOutKeywords()


class NewOptOutWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes the place of what was there. Nothing given: the defaults of all languages."""

    languages: Annotated[list[Language], Meta(max_length=len(LANGUAGES))] | None = None
    """Languages whose default words count; null: all of them."""
    stop: WordList = []
    """Words of your own that end messages to whoever sends them."""
    start: WordList = []
    """Words of your own that lift an earlier opt-out of whoever sends them."""
    without: WordList = []
    """Default words that do nothing."""


class OptOutWords(msgspec.Struct, frozen=True, kw_only=True):
    """The words that count for a tenant, and where they come from."""

    languages: list[str] | None
    """Languages whose default words count; null: all of them."""
    stop: list[str]
    """Opt-out words of your own."""
    start: list[str]
    """Opt-in words of your own."""
    without: list[str]
    """Default words that do nothing."""
    all_stop: list[str]
    """Every opt-out word that counts, as messages are compared with it: small letters, no accents."""
    all_start: list[str]
    """Every opt-in word that counts, likewise."""
    version: int
    """0 before the first change."""
    updated_at: datetime | None
    """When it was changed; null: never."""


class OptOutWordService:
    def __init__(self, database: Database, audit: Audit, clock: Clock) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock

    async def read(self, tenant_id: int) -> OptOutWords:
        async with self._database.tenant(tenant_id) as tx:
            row = await tx.fetchrow(S.read_opt_out_words, tenant_id)
        return _view(row or {})

    async def replace(
        self, tenant_id: int, new: NewOptOutWords, *, actor: str, version: int | None = None
    ) -> OptOutWords:
        """Counts for the next message that comes in. Raises Invalid when a word is no word or asks for both."""
        checks.refuse(_faults(new), "no words were changed")
        async with self._database.tenant(tenant_id) as tx:
            await tx.execute(S.lock_counted, tenant_id)
            etags.check(version, await tx.fetchval(S.lock_opt_out_words, tenant_id) or 0)
            before = await tx.fetchrow(S.read_opt_out_words, tenant_id)
            languages = None if new.languages is None else sorted(set(new.languages))
            row = await tx.fetchrow(
                S.put_opt_out_words, tenant_id, languages, _unique(new.stop), _unique(new.start), _unique(new.without),
                self._clock.now(),
            )  # fmt: skip
            await self._audit.write(
                tx, tenant_id, actor=actor, action="opt_out_words.change", object="opt-out words",
                before=_shown(before), after=_shown(row),
            )  # fmt: skip
        assert row is not None
        return _view(row)

    async def keywords_of(self, tx: Tx, tenant_ids: Collection[int]) -> Mapping[int, OptOutKeywords]:
        """Those of tenants that have words of their own; `DEFAULTS` are everybody else's."""
        if not tenant_ids:
            return {}
        rows = await tx.fetch(S.opt_out_words_of, sorted(tenant_ids))
        return {row["tenant_id"]: _keywords(row) for row in rows}


def _faults(new: NewOptOutWords) -> list[Fault]:
    found = []
    for field, words in (("stop", new.stop), ("start", new.start), ("without", new.without)):
        for place, word in enumerate(words):
            found += checks.plain(f"{field}.{place}", word)
            if not plain(word):
                found.append(Fault(f"{field}.{place}", "has no letter or digit"))
    both = {plain(word) for word in new.stop} & {plain(word) for word in new.start}
    return found + [Fault("start", f"{word!r} cannot be an opt-out word as well") for word in sorted(both - {""})]


def _unique(words: list[str]) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in words))


def _keywords(row: Mapping[str, Any]) -> OptOutKeywords:
    return OptOutKeywords(row["languages"], stop=row["stop"], start=row["start"], without=row["without"])


def _shown(row: Any) -> dict[str, Any] | None:
    return None if row is None else {name: row[name] for name in ("languages", "stop", "start", "without")}


def _view(row: Any) -> OptOutWords:
    keywords = _keywords(row) if row else DEFAULTS
    given = dict(row) or {"languages": None, "stop": [], "start": [], "without": [], "version": 0, "updated_at": None}
    return OptOutWords(**given, all_stop=keywords.words("stop"), all_start=keywords.words("start"))
