"""The ad platform's arithmetic once more, written as naively as possible: exact fractions, nothing shared.

`python -m tests.kit.adstats_naive` writes the vectors anew; the test reads them and asks both implementations.
"""

from __future__ import annotations

import hashlib
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "vectors" / "adstats"
NO_CENTS = {"JPY", "VND", "KRW"}
THREE = {"KWD"}


def mulberry32(start: int, count: int) -> list[int]:
    found, a = [], start % 2**32
    for _ in range(count):
        a = (a + 0x6D2B79F5) % 2**32
        t = a
        t = ((t ^ (t >> 15)) * (t | 1)) % 2**32
        t = t ^ ((t + (((t ^ (t >> 7)) * (t | 61)) % 2**32)) % 2**32)
        found.append((t ^ (t >> 14)) % 2**32)
    return found


def seed(seller: str, entity: str, day: str) -> int:
    return int(hashlib.sha256(":".join([seller, entity, day]).encode()).hexdigest()[0:8], base=16)


def round_half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def units(currency: str) -> int:
    return 1 if currency in NO_CENTS else 1000 if currency in THREE else 100


def day_of(seller: str, entity: str, day: str, budget: str, kind: str, currency: str) -> list[int]:
    draws = [Fraction(word, 2**32) for word in mulberry32(seed(seller, entity, day), 8)]
    base = Fraction(budget) if kind == "DAILY" else Fraction(budget) / 30
    spend = round_half_up(base * units(currency) * (Fraction(85, 100) + draws[0] * Fraction(30, 100)))
    noise = [Fraction(9, 10) + draw * Fraction(2, 10) for draw in draws]
    money = Fraction(spend, units(currency))
    impressions = round_half_up(money / Fraction("8.50") * 1000 * noise[1])
    clicks = round_half_up(impressions * Fraction("0.020") * noise[2])
    views = round_half_up(clicks * Fraction("0.70") * noise[3])
    carts = round_half_up(views * Fraction("0.12") * noise[4])
    checkouts = round_half_up(carts * Fraction("0.50") * noise[5])
    purchases = round_half_up(checkouts * Fraction("0.40") * noise[6])
    value = round_half_up(purchases * (35 + draws[7] * 115) * units(currency))
    return [spend, impressions, clicks, views, carts, checkouts, purchases, value]


def weights(seller: str, children: list[str], day: str) -> list[Fraction]:
    return [1 + Fraction(mulberry32(seed(seller, child, day), 1)[0], 2**32) for child in children]


def split(total: int, shares: list[Fraction]) -> list[int]:
    exact = [total * share / sum(shares) for share in shares]
    found = [math.floor(part) for part in exact]
    while sum(found) < total:
        gaps = [exact[n] - found[n] for n in range(len(found))]
        found[gaps.index(max(gaps))] += 1
    return found


def ratio(part: str, whole: str) -> str:
    if Fraction(whole) == 0:
        return "0"
    scaled = round_half_up(Fraction(part) / Fraction(whole) * 10**6)
    return f"{scaled // 10**6}.{scaled % 10**6:06d}"


SELLER = "a1b2c3d4-0000-4000-8000-000000000001"


def vectors() -> dict[str, Any]:
    names = [f"campaign-{n}" for n in range(4)]
    days = ["2026-02-19", "2026-03-01", "2026-12-31"]
    kinds = [
        ("100", "DAILY", "USD"),
        ("1000", "LIFETIME", "USD"),
        ("2500000", "DAILY", "VND"),
        ("75.5", "DAILY", "KWD"),
    ]
    funnel: list[dict[str, Any]] = [
        {"seller": SELLER, "entity": name, "day": day, "budget": budget, "kind": kind, "currency": currency,
         "figures": day_of(SELLER, name, day, budget, kind, currency)}
        for name, (budget, kind, currency) in zip(names, kinds, strict=True) for day in days
    ]  # fmt: skip
    children = ["set-a", "set-b", "set-c"]
    splits = []
    for row in funnel:
        parts = weights(SELLER, children, row["day"])
        shared = [split(figure, parts) for figure in row["figures"]]
        splits.append(
            {"seller": SELLER, "day": row["day"], "children": children, "totals": row["figures"], "parts": shared}
        )
    seeds = [{"seller": SELLER, "entity": name, "day": day, "seed": seed(SELLER, name, day),
              "draws": mulberry32(seed(SELLER, name, day), 10)} for name in names for day in days]  # fmt: skip
    halves = [{"part": p, "whole": w, "rounded": round_half_up(Fraction(p, w))}
              for p, w in [(1, 2), (3, 2), (5, 2), (1, 3), (2, 3), (0, 9), (249, 100), (250, 100)]]  # fmt: skip
    ratios = [{"part": p, "whole": w, "ratio": ratio(p, w)}
              for p, w in [("100.00", "11765"), ("5339.5", "0"), ("2", "3"), ("0.0000005", "1")]]  # fmt: skip
    return {"draws": seeds, "rounding": halves, "ratios": ratios, "funnel": funnel, "split": splits}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, rows in vectors().items():
        (FOLDER / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
