"""The clients of Handbill: `handbill.js` for pages, and this package for Python. They import nothing of the server.

    async with AsyncClient("https://promo.example.com", write_key="hbw_...") as client:
        for decision in await client.decide(user_id="user-42", placements=["home"]):
            for banner in decision.banners:
                showing = decision.showing(banner, user="user-42")
                await client.impression(showing)
                await client.view(showing, visible_ms=3_200)

`Client` is the same without `await`. What both promise, and `vectors.json` for writers of other clients, is written
down in docs/clients.md.
"""

from __future__ import annotations

from handbill.client.http import AsyncClient
from handbill.client.model import Banner, Decision, Outcome, Showing
from handbill.client.outbox import Outbox
from handbill.client.sync import Client

__all__ = ["AsyncClient", "Banner", "Client", "Decision", "Outbox", "Outcome", "Showing"]
