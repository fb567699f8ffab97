"""Alerts without Prometheus, from the settings: who is watched, and who is sent a message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from handbill.alerts.certificate import CertificateCheck
from handbill.alerts.channel import Sender
from handbill.alerts.email import EmailSender, SmtpServer
from handbill.alerts.pages import PageReader, Target, can_read
from handbill.alerts.watcher import Watcher, WatchPolicy
from handbill.alerts.webhook import WebhookSender
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Fault, Invalid
from handbill.settings import Settings
from handbill.wiring.providers import check_base_url

API_JOB, WORKER_JOB = "handbill-api", "handbill-worker"


def build_senders(settings: Settings) -> list[Sender]:
    """Every configured sender. Raises Invalid, naming the setting, for one that cannot work."""
    given = settings.alerts
    senders: list[Sender] = []
    if given.webhook_url is not None:
        insecure = check_base_url("HANDBILL_ALERTS__WEBHOOK_URL", given.webhook_url, insecure=given.webhook_insecure)
        senders.append(WebhookSender(given.webhook_url, insecure=insecure))
    if given.email_to:
        if given.smtp_host is None:
            raise _missing("HANDBILL_ALERTS__SMTP_HOST", "is needed with HANDBILL_ALERTS__EMAIL_TO")
        if given.email_from is None:
            raise _missing("HANDBILL_ALERTS__EMAIL_FROM", "is needed with HANDBILL_ALERTS__EMAIL_TO")
        server = SmtpServer(given.smtp_host, given.smtp_port, given.smtp_security, given.smtp_user, given.smtp_password)
        senders.append(EmailSender(server, given.email_from, given.email_to))
    return senders


def build_watcher(settings: Settings, targets: Sequence[Target], state_file: str) -> Watcher | None:
    """A watcher over these pages; None if nobody is to be sent a message."""
    senders = build_senders(settings)
    if not senders:
        return None
    if not targets:
        variables = "HANDBILL_API__METRICS_PORT and HANDBILL_WORKER__METRICS_PORT"
        raise _missing(
            "HANDBILL_ALERTS__SCRAPE", f"names no metrics page, and {variables} are 0: nothing can be watched"
        )
    given, clock = settings.alerts, SystemClock()
    path = Path(settings.home) / "run" / state_file
    policy = WatchPolicy(given.name, given.interval_s, given.max_per_hour, path)
    watcher = Watcher(PageReader(targets), senders, policy, clock)
    if (public_url := given.public_url or _if_https(settings.api.public_url)) is not None:
        watcher.watch_certificate(CertificateCheck(*_host_and_port(public_url), clock))
    return watcher


def _if_https(url: str | None) -> str | None:
    """A public address without TLS has no certificate to watch."""
    return url if url is not None and url.startswith("https://") else None


def local_targets(settings: Settings) -> list[Target]:
    """The metrics pages of the processes that `up` starts; a port of 0 has none."""
    api, worker = settings.api, settings.worker
    ports = [api.metrics_port, *(api.metrics_port + 10 * number for number in range(2, api.processes + 1))]
    targets = [_target(API_JOB, _page(api.metrics_host, port)) for port in ports if api.metrics_port]
    if worker.metrics_port:
        targets.append(_target(WORKER_JOB, _page(worker.host, worker.metrics_port)))
    return targets


def scrape_targets(settings: Settings) -> list[Target]:
    """The pages that the settings name. Raises Invalid for an entry that is not job=address."""
    targets = []
    for entry in settings.alerts.scrape:
        job, _, url = entry.partition("=")
        if job not in (API_JOB, WORKER_JOB) or not can_read(url):
            example = f"{API_JOB}=http://10.0.0.5:9101/metrics"
            raise _missing("HANDBILL_ALERTS__SCRAPE", f"must be entries like {example}, without credentials")
        targets.append(_target(job, url))
    return targets or local_targets(settings)


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        address = urlsplit(url)
        if address.hostname:
            return address.hostname, address.port or 443
    except ValueError:  # a port that is no number
        pass
    raise _missing("HANDBILL_ALERTS__PUBLIC_URL", "must be https:// with a host and, if any, a port")


def _page(host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - replaced, not listened on
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


def _target(job: str, url: str) -> Target:
    return Target(job, urlsplit(url).netloc.rpartition("@")[2], url)


def _missing(variable: str, reason: str) -> Invalid:
    return Invalid(
        f"{variable} {reason}. Nothing was started.", code="SETTINGS_INVALID", faults=[Fault(variable, reason)]
    )
