"""Settings of alerts that are sent without Prometheus."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from handbill.settings.types import SECRET, HttpsUrl, HttpUrl, Port


class Alerts(msgspec.Struct, frozen=True):
    webhook_url: Annotated[
        HttpUrl | None,
        Meta(description="Where alerts are posted as JSON that Slack understands; unset means nowhere.", extra=SECRET),
    ] = None
    webhook_insecure: Annotated[
        bool, Meta(description="Whether that address may be plain HTTP or private, in your own network.")
    ] = False
    email_to: Annotated[
        tuple[str, ...], Meta(description="E-mail addresses that get alerts, separated by commas; unset means none.")
    ] = ()
    email_from: Annotated[str | None, Meta(description="The sender's address of these e-mails.")] = None
    smtp_host: Annotated[str | None, Meta(description="The SMTP server that takes them.")] = None
    smtp_port: Annotated[Port, Meta(description="Its port: 587 is usual for starttls, 465 for tls, 25 for none.")] = 587
    smtp_security: Annotated[
        Literal["starttls", "tls", "none"],
        Meta(description="How the connection is encrypted; none sends the password and the e-mail in the clear."),
    ] = "starttls"
    smtp_user: Annotated[str | None, Meta(description="The user at that server; unset means no login.")] = None
    smtp_password: Annotated[str | None, Meta(description="The user's password.", extra=SECRET)] = None
    name: Annotated[
        str, Meta(min_length=1, max_length=100, description="The name of this installation in every message.")
    ] = "handbill"
    interval_s: Annotated[
        float, Meta(ge=1, le=10, description="Seconds between two looks; above 10 an alert could take over a minute.")
    ] = 10.0
    max_per_hour: Annotated[
        int, Meta(ge=5, le=1_000, description="Messages of one sender in an hour; what is over it comes in a summary.")
    ] = 30
    scrape: Annotated[
        tuple[str, ...],
        Meta(
            description="For `handbill watch`: metrics pages as job=address, separated by commas; the jobs are "
            "handbill-api and handbill-worker. Unset means the pages of an api and a worker on this machine."
        ),
    ] = ()
    public_url: Annotated[
        HttpsUrl | None,
        Meta(
            description="The public https address whose certificate's end is watched; unset means "
            "HANDBILL_API__PUBLIC_URL, if that is https."
        ),
    ] = None
