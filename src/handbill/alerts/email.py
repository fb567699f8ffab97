"""Alerts by e-mail, through the administrator's SMTP server."""

from __future__ import annotations

from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Literal

import aiosmtplib
import msgspec

from handbill.alerts.messages import Message
from handbill.kit.errors import Busy

TIMEOUT_S = 20.0
_MAX_SUBJECT = 200


class SmtpServer(msgspec.Struct, frozen=True):
    """`starttls` and `tls` verify the server's certificate; `none` sends in the clear."""

    host: str
    port: int
    security: Literal["starttls", "tls", "none"]
    user: str | None = None
    password: str | None = None


class EmailSender:
    """Sends one e-mail to all recipients."""

    name = "email"

    def __init__(self, server: SmtpServer, sender: str, recipients: tuple[str, ...]) -> None:
        self._server = server
        self._sender = sender
        self._recipients = recipients

    async def send(self, message: Message) -> None:
        """Raises Busy unless the server has accepted the e-mail for at least one recipient."""
        server = self._server
        try:
            await aiosmtplib.send(
                self._compose(message),
                hostname=server.host,
                port=server.port,
                use_tls=server.security == "tls",
                start_tls=server.security == "starttls",
                username=server.user,
                password=server.password,
                timeout=TIMEOUT_S,
            )
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            code = f" {error.code}" if isinstance(error, aiosmtplib.SMTPResponseException) else ""
            raise Busy(
                f"The SMTP server did not accept the e-mail ({type(error).__name__}{code}).", code="OUTGOING_FAILED"
            ) from None

    async def close(self) -> None:
        """Nothing stays open between two e-mails."""

    def _compose(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = message.subject[:_MAX_SUBJECT]
        mail["From"] = self._sender
        mail["To"] = ", ".join(self._recipients)
        mail["Date"] = formatdate(usegmt=True)
        mail["Message-ID"] = make_msgid(domain=self._sender.rpartition("@")[2] or "localhost")
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.text or message.subject)
        return mail
