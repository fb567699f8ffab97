"""Alerts by webhook: JSON that Slack and its like understand, with the same as fields for programs."""

from __future__ import annotations

import msgspec

from handbill.alerts.messages import Message
from handbill.infra.safe_http import HttpPolicy, RequestFailed, SafeHttpClient

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class WebhookSender:
    """Posts to one address; `insecure` allows plain HTTP and private hosts. Raises Invalid for another address."""

    name = "webhook"

    def __init__(self, url: str, *, insecure: bool) -> None:
        self._url = url
        self._http = SafeHttpClient(
            HttpPolicy(https_only=not insecure, public_only=not insecure, ports=None, max_bytes=65_536, total_s=10.0)
        )
        self._http.check(url)

    async def send(self, message: Message) -> None:
        """Raises RequestFailed unless the answer is 2xx."""
        text = f"*{message.subject}*\n{message.text}" if len(message.changes) != 1 else message.text
        body = {
            "text": text.translate(_ESCAPES),
            "installation": message.installation,
            "incidents": message.fields(),
        }
        headers = {"Content-Type": "application/json"}
        reply = await self._http.request("POST", self._url, headers=headers, body=msgspec.json.encode(body))
        if not 200 <= reply.status < 300:
            raise RequestFailed(f"status {reply.status}", reply.status, f"The webhook answered {reply.status}.")

    async def close(self) -> None:
        await self._http.close()
