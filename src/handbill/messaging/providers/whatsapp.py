"""WhatsApp through Meta's Cloud API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from handbill.infra.safe_http import FormPart
from handbill.kit.errors import Busy, Conflict, HandbillError, Invalid
from handbill.kit.telemetry import metrics
from handbill.kit.token_ends import end_of
from handbill.kit.untrusted_json import UNREADABLE
from handbill.messaging.errors import Action, by_code
from handbill.messaging.limits import THROUGHPUT, TIERS
from handbill.messaging.model import (
    OPAQUE_LIMIT,
    Accepted,
    Account,
    Channel,
    Lost,
    Media,
    Message,
    NumberInfo,
    Outcome,
    Refused,
    Template,
    TemplateState,
    Text,
    TokenInfo,
    Unwritten,
)
from handbill.messaging.providers.graph import Graph, Reply
from handbill.messaging.providers.port import Secrets

_ID = re.compile(r"[0-9]{1,32}")
_FIELDS = "id,name,language,category,status,components,parameter_format"
_CARD = "id,display_phone_number,verified_name,quality_rating,throughput,messaging_limit_tier"
_PAGES = 1_000
_STATES = frozenset(get_args(TemplateState))
_ID_CHARS = 500
_DETAILS_CHARS = 500


class _Named(msgspec.Struct):
    id: str
    message_status: Any = "accepted"


class _Sent(msgspec.Struct):
    """Only the id must be there: whatever else changes in the answer, a message that was taken stays taken."""

    messages: list[_Named]
    contacts: Any = None


class _Data(msgspec.Struct):
    details: str = ""


class _Error(msgspec.Struct):
    code: int
    message: str = ""
    error_subcode: int | None = None
    error_data: _Data | str | None = None


class _Failed(msgspec.Struct):
    error: _Error


_sent = msgspec.json.Decoder(_Sent).decode
_failed = msgspec.json.Decoder(_Failed).decode


class WhatsApp:
    """The port's adapter. One for the whole process: the session is shared, tokens come with each call."""

    channel: Channel = "whatsapp"

    def __init__(self, graph: Graph, secrets: Secrets) -> None:
        self._graph = graph
        self._secrets = secrets

    async def open_credentials(self, account: Account) -> None:
        """Raises what keeps the account's credentials from being opened; a send after it finds them open."""
        await self._secrets.credentials(account)

    async def send(self, account: Account, message: Message) -> Outcome:
        """Try once. Whoever calls has recorded the attempt before, and records the outcome after."""
        body = send_body(message)
        path = f"{_id(account.number_id)}/messages"
        try:
            credentials = await self._secrets.credentials(account)
        except HandbillError as error:
            return Unwritten(f"no credentials ({error.code})")
        outcome = outcome_of(await self._graph.call("POST", path, credentials, body=body))
        metrics.PROVIDER_SENDS.labels(self.channel, type(outcome).__name__.lower()).inc()
        return outcome

    async def templates(self, account: Account) -> list[Template]:
        """All of them. Pages are asked for by cursor: an address that an answer names is never followed."""
        found: list[Template] = []
        query = {"limit": "100", "fields": _FIELDS}
        for _ in range(_PAGES):
            page = await self._ask(account, "GET", f"{_id(account.waba_id)}/message_templates", query=query)
            rows = page.get("data")
            found += [template_of(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
            paging = page.get("paging")
            after = paging.get("cursors", {}).get("after") if isinstance(paging, dict) and "next" in paging else None
            if not isinstance(after, str) or not rows:
                return found
            query["after"] = after
        return found

    async def create_template(
        self,
        account: Account,
        *,
        name: str,
        language: str,
        category: str,
        components: Sequence[dict[str, Any]],
        named: bool = False,
    ) -> Template:
        body: dict[str, Any] = {"name": name, "language": language, "category": category}
        body |= {"components": list(components), "parameter_format": "NAMED" if named else "POSITIONAL"}
        made = await self._ask(account, "POST", f"{_id(account.waba_id)}/message_templates", body=body)
        return template_of({**body, **made})

    async def delete_template(self, account: Account, name: str) -> None:
        await self._ask(account, "DELETE", f"{_id(account.waba_id)}/message_templates", query={"name": name})

    async def upload(self, account: Account, data: bytes, *, mime: str, filename: str) -> str:
        form = (
            FormPart("messaging_product", "whatsapp"),
            FormPart("type", mime),
            FormPart("file", data, mime, filename),
        )
        made = await self._ask(account, "POST", f"{_id(account.number_id)}/media", form=form)
        return str(made.get("id", ""))

    async def number(self, account: Account) -> NumberInfo:
        card = await self._ask(account, "GET", _id(account.number_id), query={"fields": _CARD})
        throughput = card.get("throughput")
        level = str(throughput.get("level", "")) if isinstance(throughput, dict) else ""
        return NumberInfo(
            number_id=account.number_id,
            display=str(card.get("display_phone_number", "")),
            verified_name=str(card.get("verified_name", "")),
            quality=str(card.get("quality_rating", "UNKNOWN")),
            per_second=THROUGHPUT.get(level.upper(), THROUGHPUT["STANDARD"]),
            tier=TIERS.get(str(card.get("messaging_limit_tier", "")), TIERS["TIER_250"]),
        )

    async def token(self, account: Account) -> TokenInfo:
        """Whether the token is good: it is asked about itself."""
        credentials = await self._secrets.credentials(account)
        reply = await self._graph.call("GET", "debug_token", credentials, query={"input_token": credentials.token})
        data = _answer(reply).get("data")
        data = data if isinstance(data, dict) else {}
        return TokenInfo(
            valid=data.get("is_valid") is True,
            scopes=tuple(str(scope) for scope in data.get("scopes") or ()),
            ends_at=end_of(data.get("expires_at"), data.get("data_access_expires_at")),
        )

    async def close(self) -> None:
        await self._graph.close()

    async def _ask(self, account: Account, method: str, path: str, **options: Any) -> dict[str, Any]:
        credentials = await self._secrets.credentials(account)
        return _answer(await self._graph.call(method, path, credentials, **options))


def send_body(message: Message) -> dict[str, Any]:
    """The request's body for any content."""
    if len(message.opaque) > OPAQUE_LIMIT:
        raise Invalid(f"The note on a message has at most {OPAQUE_LIMIT} characters; nothing was sent.")
    body: dict[str, Any] = {"messaging_product": "whatsapp", "recipient_type": "individual", "to": message.to}
    content = message.content
    if isinstance(content, Text):
        body |= {"type": "text", "text": {"body": content.body, "preview_url": content.preview_url}}
    elif isinstance(content, Media):
        if not content.media_id and not content.link:
            raise Invalid("Media needs the id of an upload or a link; nothing was sent.")
        source = {"id": content.media_id} if content.media_id else {"link": content.link}
        extra = {"caption": content.caption, "filename": content.filename}
        body |= {"type": content.kind, content.kind: source | {key: word for key, word in extra.items() if word}}
    else:
        template: dict[str, Any] = {"name": content.name, "language": {"code": content.language}}
        if content.components:
            template["components"] = content.components
        body |= {"type": "template", "template": template}
    if message.reply_to:
        body["context"] = {"message_id": message.reply_to}
    body["biz_opaque_callback_data"] = message.opaque
    return body


def outcome_of(reply: Reply | Unwritten | Lost) -> Outcome:
    """What an answer to a send means. Whatever is not the server's own JSON leaves it open what happened."""
    if not isinstance(reply, Reply):
        return reply
    if 200 <= reply.status < 300:
        try:
            sent = _sent(reply.body)
        except UNREADABLE:
            return Lost("an answer that names no message", reply.status)
        if not sent.messages or not sent.messages[0].id:
            return Lost("an answer that names no message", reply.status)
        first = sent.messages[0]
        return Accepted(
            _clean(first.id, _ID_CHARS),
            _address(sent.contacts),
            held=first.message_status == "held_for_quality_assessment",
        )
    return _refused(reply) or Lost("an error without the provider's own words", reply.status)


def _address(contacts: Any) -> str | None:
    first = contacts[0] if isinstance(contacts, list) and contacts else None
    found = first.get("wa_id") if isinstance(first, dict) else None
    return _clean(found, _ID_CHARS) if isinstance(found, str) else None


def _refused(reply: Reply) -> Refused | None:
    try:
        error = _failed(reply.body).error
    except UNREADABLE:
        return None
    details = error.error_data.details if isinstance(error.error_data, _Data) else ""
    subcode = error.error_subcode if error.error_subcode is None else _code(error.error_subcode)
    return Refused(_code(error.code), _clean(details or error.message, _DETAILS_CHARS), reply.status, subcode)


def _code(code: int) -> int:
    """A code that a column of 32 bits takes; 0, which no rule is for, instead of any other."""
    return code if -(2**31) <= code < 2**31 else 0


def _clean(text: str, limit: int) -> str:
    """The text without what PostgreSQL cannot hold, cut to a length."""
    return text[:limit].replace("\0", "").encode("utf-8", "replace").decode()


def _answer(reply: Reply | Unwritten | Lost) -> dict[str, Any]:
    """For every verb but send: the answer, or the error that a caller of ours can be shown."""
    if not isinstance(reply, Reply):
        raise Busy(f"The provider cannot be reached: {reply.reason}.", code="PROVIDER_AWAY", retry_after=30)
    if 200 <= reply.status < 300:
        try:
            return msgspec.json.decode(reply.body, type=dict[str, Any])
        except UNREADABLE:
            raise Busy("The provider's answer cannot be read.", code="PROVIDER_AWAY", retry_after=30) from None
    refused = _refused(reply)
    if refused is None:
        raise Busy(f"The provider answered {reply.status}.", code="PROVIDER_AWAY", retry_after=30)
    raise _error(refused)


def _error(refused: Refused) -> HandbillError:
    verdict = by_code(refused.code, http_status=refused.http_status)
    words = f"The provider refused it with code {refused.code}: {refused.details}"
    if verdict.action is Action.PAUSE_TENANT:
        return Conflict(f"{words} Connect the account again.", code="PROVIDER_TOKEN")
    if verdict.sends_again:
        return Busy(words, code="PROVIDER_BUSY", retry_after=max(verdict.wait_s, 1))
    return Conflict(words, code="PROVIDER_REFUSED")


def template_of(row: dict[str, Any]) -> Template:
    """A template as the list shows it. A state that this release does not know is UNKNOWN, and not sendable."""
    state = str(row.get("status", "UNKNOWN"))
    components = row.get("components")
    return Template(
        id=str(row.get("id", "")),
        name=str(row.get("name", "")),
        language=str(row.get("language", "")),
        category=str(row.get("category", "")),
        state=msgspec.convert(state if state in _STATES else "UNKNOWN", TemplateState),
        components=tuple(part for part in components if isinstance(part, dict)) if isinstance(components, list) else (),
        named=row.get("parameter_format") == "NAMED",
    )


def _id(text: str) -> str:
    """Ids become parts of an address: digits only, whatever a row says."""
    if not _ID.fullmatch(text):
        raise Invalid("An id of the provider is made of digits; nothing was sent.", code="PROVIDER_ID")
    return text
