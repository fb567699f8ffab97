"""Whether a person's message asks for no more messages, or for messages again. Whole messages only: "stop by tomorrow"
is no opt-out.

Case, accents, punctuation and emoji do not matter. The defaults hold only words that mean nothing else in an answer to
a shop: "cancel" may mean an order, "continue" a talk. A tenant chooses languages, adds words or takes some away.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Literal

import msgspec

Preference = Literal["stop", "start"]
MAX_LENGTH = 40
BUTTON_KINDS = frozenset({"button", "interactive"})

STOP: dict[str, tuple[str, ...]] = {
    "en": ("stop", "stop all", "stopall", "unsubscribe", "opt out", "optout", "remove me"),
    "es": ("baja", "dar de baja", "darme de baja", "no mas mensajes", "desuscribir"),
    "pt": ("sair", "parar mensagens", "descadastrar", "descadastre", "nao quero mais", "nao quero mais mensagens"),
    "fr": ("arret", "desabonner", "me desabonner", "desinscrire", "desinscription"),
    "de": ("stopp", "abmelden", "abbestellen", "austragen", "keine nachrichten"),
    "it": ("disiscrivimi", "cancellami", "annulla iscrizione", "basta messaggi"),
    "nl": ("afmelden", "uitschrijven"),
    "id": ("berhenti", "berhenti berlangganan", "hentikan pesan"),
    "tr": ("cik", "ret", "mesaj istemiyorum", "abonelikten cik"),
    "ru": ("стоп", "отписаться", "отпишите"),
    "ar": ("توقف", "الغاء الاشتراك", "ايقاف الرسائل"),
    "hi": ("बंद करो", "संदेश बंद करो", "रोकें"),
    "vi": ("huy dang ky", "ngung gui", "tu choi nhan tin"),
    "zh": ("退订", "取消订阅"),
    "ja": ("配信停止", "配信解除"),
}
START: dict[str, tuple[str, ...]] = {
    "en": ("start", "unstop", "subscribe", "opt in", "optin"),
    "es": ("suscribir", "suscribirme"),
    "pt": ("inscrever", "quero receber mensagens"),
    "fr": ("abonner", "m abonner"),
    "de": ("anmelden",),
    "it": ("iscrivimi",),
    "nl": ("aanmelden",),
    "id": ("langganan", "berlangganan"),
    "tr": ("abone ol",),
    "ru": ("старт", "подписаться"),
    "ar": ("اشتراك",),
    "hi": ("संदेश शुरू करो",),
    "vi": ("dang ky",),
    "zh": ("订阅",),
    "ja": ("配信再開",),
}
LANGUAGES = tuple(STOP)


class KeywordMatch(msgspec.Struct, frozen=True):
    """Which of the two a message asks for, and by which word."""

    preference: Preference
    word: str


class OptOutKeywords:
    """The words of one tenant, made once. Stop wins where a word is on both sides."""

    def __init__(
        self,
        languages: Iterable[str] | None = None,
        *,
        stop: Iterable[str] = (),
        start: Iterable[str] = (),
        without: Iterable[str] = (),
    ) -> None:
        """The defaults of these languages (None: of all), with a tenant's own words, without those it takes away."""
        chosen = LANGUAGES if languages is None else tuple(languages)
        removed = {plain(word) for word in without} | {""}
        starts = {plain(word) for language in chosen for word in START.get(language, ())} - removed
        stops = {plain(word) for language in chosen for word in STOP.get(language, ())} - removed
        starts |= {plain(word) for word in start} - {""}
        stops |= {plain(word) for word in stop} - {""}
        self._preferences: dict[str, Preference] = dict.fromkeys(starts, "start")
        self._preferences |= dict.fromkeys(stops, "stop")

    def match(self, text: str) -> KeywordMatch | None:
        """None for everything that is not, as a whole, one of the words."""
        if len(text) > MAX_LENGTH * 4:
            return None
        word = plain(text)
        preference = self._preferences.get(word)
        return None if preference is None else KeywordMatch(preference, word)

    def match_reply(self, kind: str, text: str, payload: str) -> KeywordMatch | None:
        """A button or a list row counts by its payload alone: its title is what the sender of the template wrote."""
        return self.match(payload) if kind in BUTTON_KINDS else self.match(text)

    def words(self, preference: Preference) -> list[str]:
        return sorted(word for word, one in self._preferences.items() if one == preference)


def plain(text: str) -> str:
    """Small letters without accents, single spaces, nothing but letters, their signs and digits."""
    folded = unicodedata.normalize("NFKD", text).casefold().replace("ı", "i")
    decomposed = unicodedata.normalize("NFKD", folded).casefold()
    kept = []
    for letter in decomposed:
        kind = unicodedata.category(letter)
        if kind == "Mn" and not _vowel_sign(letter):
            continue
        kept.append(letter if kind[0] in "LNM" else " ")
    return unicodedata.normalize("NFC", " ".join("".join(kept).split()))


def _vowel_sign(letter: str) -> bool:
    """In Indian scripts a mark is part of the word, not an accent on it."""
    return "\u0900" <= letter <= "\u0dff"
