"""Who may use which operation: the one table, written by hand, that every operation is held against.

A row is a pattern over `METHOD /path` and what it needs: a resource (`:read` for GET, `:write` for the rest), a whole
scope, or one of PUBLIC, SIGNED_IN and WRITE_KEY. The first row that fits counts; an operation without a row fails.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

PUBLIC = "public"
SIGNED_IN = "signed in"
WRITE_KEY = "write key"

TABLE: tuple[tuple[str, str], ...] = (
    # a POST that only reads, and reads that are as grave as a change
    ("POST /admin/segments/preview", "segments:read"),
    ("* /admin/exports*", "erasures:write"),
    ("POST /v1/insights/*", "insights:read"),
    # the tenant itself
    ("* /admin/tenant", "tenants"),
    ("* /admin/keys*", "keys"),
    ("* /admin/users*", "users"),
    ("* /admin/audit", "audit"),
    ("* /admin/erasures*", "erasures"),
    # show and count
    ("* /admin/banners*", "banners"),
    ("* /admin/campaigns*", "banners"),
    ("* /admin/placements*", "banners"),
    ("* /admin/deciding", "banners"),
    ("* /admin/stats/*", "stats"),
    ("* /admin/events/*", "events"),
    # know
    ("* /admin/people*", "people"),
    ("* /admin/definitions*", "people"),
    ("* /admin/segments*", "segments"),
    ("GET /v1/insights/*", "insights"),
    # reach
    ("* /admin/contacts*", "contacts"),
    ("* /admin/imports*", "contacts"),
    ("* /admin/suppressions*", "contacts"),
    ("* /admin/connections*", "messaging"),
    ("* /admin/templates*", "messaging"),
    ("* /admin/messaging/*", "messaging"),
    ("POST /admin/inbox/replies", "messages:send"),
    ("* /admin/inbox*", "messaging"),
    ("POST /v1/messages", "messages:send"),
    ("GET /v1/messages*", "messages"),
    ("* /admin/hooks*", "messaging"),
    # account
    ("* /admin/ad-*", "adstats"),
    ("* /admin/sellpages*", "adstats"),
    ("POST /api/ads-manager/sync", "adstats"),
    ("* /api/ads-manager/*", "adstats"),
    ("* /admin/reports/*", "stats"),
    # jobs
    ("* /admin/jobs*", "jobs"),
    ("* /admin/dead-letters*", "jobs"),
    # login
    ("POST /auth/login", PUBLIC),
    ("* /auth/*", SIGNED_IN),
    # anybody
    ("* /flags*", PUBLIC),
    ("* /decide*", PUBLIC),
    ("GET /api/feature_flag/local_evaluation*", PUBLIC),
    ("GET /api/surveys*", PUBLIC),
    ("GET /api/early_access_features*", PUBLIC),
    ("GET /api/web_experiments*", PUBLIC),
    ("GET /api/product_tours*", PUBLIC),
    ("GET /array/*", PUBLIC),
    ("GET /static/*", PUBLIC),
    ("GET /health", PUBLIC),
    ("GET /ready", PUBLIC),
    ("GET /ping", PUBLIC),
    ("GET /demo*", PUBLIC),
    ("GET /docs*", PUBLIC),
    ("GET /handbill*", PUBLIC),
    ("GET /banner/{banner_id}", PUBLIC),
    ("GET /r/{token}", PUBLIC),
    ("* /webhooks/whatsapp/{connection_id}", PUBLIC),
    ("POST /views*", PUBLIC),  # reports of a banner: its id says whose it is
    ("POST /api/banners/events/*", PUBLIC),
    # a publishable key
    ("GET /banners", WRITE_KEY),
    ("POST /v1/decide", WRITE_KEY),
    ("* /batch*", WRITE_KEY),
    ("* /capture*", WRITE_KEY),
    ("* /e", WRITE_KEY),
    ("* /e/", WRITE_KEY),
    ("* /engage*", WRITE_KEY),
    ("* /i/*", WRITE_KEY),
    ("* /track*", WRITE_KEY),
    ("POST /beacon/v1/batch", WRITE_KEY),
    ("POST /v1/*", WRITE_KEY),
)

OWNERS_ONLY = frozenset({"tenants:write", "keys:write", "users:write", "erasures:write"})
"""What an operator may not do, however wide the role is."""

USERS_ONLY = frozenset({"POST /api/ads-manager/sync"})
"""What only a signed-in user may do, not a key."""


def needed(method: str, path: str) -> str:
    """What the operation needs, by the table."""
    for pattern, need in TABLE:
        if fnmatchcase(f"{method} {path}", pattern):
            if need in (PUBLIC, SIGNED_IN, WRITE_KEY) or ":" in need:
                return need
            return f"{need}:{'read' if method == 'GET' else 'write'}"
    raise AssertionError(f"{method} {path} is not in the table of permissions")


def key_allows(scopes: frozenset[str], scope: str) -> bool:
    """The rule for keys, in words of its own: the scope itself, or a wildcard for its verb or for all."""
    return "*" in scopes or scope in scopes or f"*:{scope.rpartition(':')[2]}" in scopes


def role_allows(role: str, scope: str) -> bool:
    if role == "viewer":
        return scope.endswith(":read")
    return role == "owner" or scope not in OWNERS_ONLY
