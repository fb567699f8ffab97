"""Who carries messages: the provider of each channel, from the settings."""

from __future__ import annotations

from handbill.infra.safe_http import HttpPolicy, is_loopback_url
from handbill.kit.clock import Clock
from handbill.kit.errors import Fault, Invalid
from handbill.messaging.providers.graph import Graph
from handbill.messaging.providers.port import Secrets
from handbill.messaging.providers.vault import Load, Vault
from handbill.messaging.providers.whatsapp import WhatsApp
from handbill.messaging.service import SINGLES_IN_FLIGHT
from handbill.settings import Settings
from handbill.tenants.seals import Sealer
from handbill.wiring import secrets


def check_base_url(variable: str, url: str, *, insecure: bool) -> bool:
    """Whether calls to the operator's address may be plain HTTP or go to a private host.

    They may where the settings say so, and where the address is one of this machine: nothing leaves it. Raises Invalid,
    naming the setting, for any other address that is not https with a public host.
    """
    insecure = insecure or is_loopback_url(url)
    try:
        HttpPolicy(https_only=not insecure, public_only=not insecure, ports=None).check(url)
    except Invalid as error:
        switch = f"{variable.removesuffix('_URL')}_INSECURE"
        raise Invalid(
            f"{variable} cannot be used. {error.detail} Use an https address of a public host, or set {switch} to true "
            "for a server in your own network.",
            code="SETTINGS_INVALID",
            faults=[Fault(variable, "must be an https address of a public host, or an address of this machine")],
        ) from None
    return insecure


def whatsapp(settings: Settings, kept: Secrets) -> WhatsApp:
    given = settings.messaging
    insecure = check_base_url("HANDBILL_MESSAGING__GRAPH_URL", given.graph_url, insecure=given.graph_insecure)
    graph = Graph(
        given.graph_url,
        given.graph_version,
        connections=given.graph_connections + SINGLES_IN_FLIGHT,
        connect_s=given.graph_connect_ms / 1000,
        answer_s=given.graph_answer_ms / 1000,
        insecure=insecure,
    )
    return WhatsApp(graph, kept)


def vault(settings: Settings, load: Load, clock: Clock) -> Vault:
    """Sealed with a key of its own: what opens a tenant's JWT secret does not open a provider's token."""
    return Vault(Sealer(secrets.derived(settings, "providers")), load, clock)
