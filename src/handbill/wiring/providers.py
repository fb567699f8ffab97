"""Who carries messages: the provider of each channel, from the settings."""

from __future__ import annotations

from handbill.kit.clock import Clock
from handbill.messaging.providers.graph import Graph
from handbill.messaging.providers.port import Secrets
from handbill.messaging.providers.vault import Load, Vault
from handbill.messaging.providers.whatsapp import WhatsApp
from handbill.settings import Settings
from handbill.tenants.seals import Sealer
from handbill.wiring import secrets


def whatsapp(settings: Settings, kept: Secrets) -> WhatsApp:
    given = settings.messaging
    graph = Graph(
        given.graph_url,
        given.graph_version,
        connections=given.graph_connections,
        connect_s=given.graph_connect_ms / 1000,
        answer_s=given.graph_answer_ms / 1000,
        insecure=given.graph_insecure,
    )
    return WhatsApp(graph, kept)


def vault(settings: Settings, load: Load, clock: Clock) -> Vault:
    """Sealed with a key of its own: what opens a tenant's JWT secret does not open a provider's token."""
    return Vault(Sealer(secrets.derived(settings, "providers")), load, clock)
