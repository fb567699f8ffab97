"""Whether a person's message says "no more" or "again, please". Whole messages only: "stop by tomorrow" is no opt-out.

Case, accents, punctuation and emoji do not matter. A tenant may add words of its own, or take ours away.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Wish = Literal["stop", "start"]
LONGEST = 40

STOP: dict[str, tuple[str, ...]] = {
    "en": ("stop", "stop all", "unsubscribe", "opt out", "optout", "cancel", "end", "quit", "remove me"),
    "es": ("baja", "dar de baja", "darme de baja", "alto", "parar", "detener", "cancelar", "no mas mensajes"),
    "pt": ("sair", "parar", "pare", "cancelar", "descadastrar", "remover", "nao quero mais"),
    "fr": ("arret", "arreter", "arretez", "desabonner", "desinscrire", "desinscription"),
    "de": ("stopp", "abmelden", "abbestellen", "austragen", "keine nachrichten"),
    "it": ("ferma", "basta", "annulla", "disiscrivimi", "cancellami"),
    "nl": ("afmelden", "uitschrijven", "stoppen"),
    "id": ("berhenti", "batal", "hentikan", "keluar"),
    "tr": ("dur", "durdur", "iptal", "cik", "ret"),
    "ru": ("стоп", "отписаться", "отпишите", "отмена"),
    "ar": ("توقف", "الغاء", "الغاء الاشتراك", "ايقاف"),
    "hi": ("बंद", "बंद करो", "रोकें", "रोको"),
    "vi": ("dung", "huy", "ngung"),
    "zh": ("退订", "停止", "取消"),
    "ja": ("停止", "解除", "配信停止"),
}
START: dict[str, tuple[str, ...]] = {
    "en": ("start", "unstop", "subscribe", "opt in", "optin", "resume"),
    "es": ("alta", "suscribir", "suscribirme", "reanudar"),
    "pt": ("voltar", "inscrever", "quero receber"),
    "fr": ("reprendre", "abonner", "inscrire"),
    "de": ("anmelden", "weiter"),
    "it": ("iscrivimi", "riprendi"),
    "nl": ("aanmelden",),
    "id": ("mulai", "langganan"),
    "tr": ("basla", "abone ol"),
    "ru": ("старт", "подписаться"),
    "ar": ("ابدا", "اشتراك"),
    "hi": ("शुरू", "शुरू करो"),
    "vi": ("bat dau", "dang ky"),
    "zh": ("订阅", "开始"),
    "ja": ("再開", "登録"),
}


class Heard(msgspec.Struct, frozen=True):
    """What was wished, by which of the words."""

    wish: Wish
    word: str


class Words:
    """A tenant's list, made once. Stop wins where a word is on both sides: a doubt is a no."""

    def __init__(
        self,
        stop: Mapping[str, Iterable[str]] = STOP,
        start: Mapping[str, Iterable[str]] = START,
        *,
        more_stop: Iterable[str] = (),
        more_start: Iterable[str] = (),
        without: Iterable[str] = (),
    ) -> None:
        gone = {plain(word) for word in without}
        starts = {plain(word) for words in start.values() for word in words} | {plain(word) for word in more_start}
        stops = {plain(word) for words in stop.values() for word in words} | {plain(word) for word in more_stop}
        self._wishes: dict[str, Wish] = dict.fromkeys(starts - gone - {""}, "start")
        self._wishes |= dict.fromkeys(stops - gone - {""}, "stop")

    def hear(self, text: str) -> Heard | None:
        """None for everything that is not, as a whole, one of the words."""
        if len(text) > LONGEST * 4:
            return None
        word = plain(text)
        wish = self._wishes.get(word)
        return None if wish is None else Heard(wish, word)


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
