"""Writes the generated pages: `python -m tests.architecture.pages`, or `--check` to see whether they are up to date.

docs/settings.md comes from the settings' own structs. docs/reference.md lists what a caller or an operator can meet:
routes, error codes, drop reasons, jobs and metrics, each from the one typed list that the code itself uses.
deploy/alerts/handbill.yml has the alert conditions as Prometheus rules.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import tempfile
from collections.abc import Iterable
from types import ModuleType

from tests.architecture.tree import ROOT


def all_pages() -> dict[str, str]:
    """Every generated page: its path from the root, and its text."""
    from handbill.alerts.promql import rules_page
    from handbill.settings.pages import markdown

    return {
        "docs/settings.md": markdown(),
        "docs/reference.md": reference(),
        "deploy/alerts/handbill.yml": rules_page(),
    }


def reference() -> str:
    sections = [("Routes", routes()), ("Error codes", codes()), ("Drop reasons", reasons()), ("Jobs", jobs())]
    sections.append(("Metrics", metrics()))
    head = "# Reference\n\nGenerated from the code by `make docs`; do not edit by hand.\n"
    return "\n".join([head, *(f"## {title}\n\n{body}\n" for title, body in sections if body)])


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def room(name: str) -> ModuleType | None:
    """A module of the house, or None while that room does not exist. A fault inside an existing one is not hidden."""
    parent = name.rpartition(".")[0]
    if parent and importlib.util.find_spec(parent) is None:
        return None
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def codes() -> str:
    from handbill.kit.codes import CODES

    return table(("code", "meaning"), ((f"`{code}`", line) for code, line in sorted(CODES.items())))


def metrics() -> str:
    from handbill.kit.telemetry.metrics import REGISTRY

    families = sorted(REGISTRY.collect(), key=lambda family: family.name)
    labels = {id(c): tuple(getattr(c, "_labelnames", ())) for c in REGISTRY._collector_to_names}
    by_name: dict[str, tuple[str, ...]] = {}
    for collector, names in REGISTRY._collector_to_names.items():
        for name in names:
            by_name[name] = labels[id(collector)]
    rows = (
        (
            f"`{family.name}{'_total' if family.type == 'counter' else ''}`",
            family.type,
            ", ".join(by_name.get(family.name, ())),
            family.documentation,
        )
        for family in families
    )
    return table(("metric", "type", "labels", "meaning"), rows)


Row = tuple[str, ...]
_SCOPE = re.compile(r"Scope: `([^`]+)`\.")
NOBODY = {
    "HANDBILL_POSTGRES__URL": "postgresql://nobody@127.0.0.1:1/none",
    "HANDBILL_REDIS__URL": "redis://127.0.0.1:1/0",
}


def routes() -> str:
    return table(("route", "scope", "what it does"), rows) if (rows := route_rows()) else ""


def route_rows() -> list[Row]:
    """From the OpenAPI document that the API itself serves, and the hot routes in front of it."""
    app = room("handbill.api.app")
    if app is None:
        return []
    from handbill.api import openapi
    from handbill.settings import load
    from handbill.wiring.house import build

    with tempfile.TemporaryDirectory() as home:
        settings = load({"HANDBILL_HOME": home, **NOBODY})
        house = build(settings)  # built, never started: it talks to nobody
        document = openapi.document(app.litestar(house, settings, house))
        hot = app._fast_routes(house)
    rows = [
        (f"`{method.upper()} {path}`", *_scope_and_words(str(operation.get("description") or "")))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if isinstance(operation, dict)
    ]
    known = {row[0] for row in rows}
    for route in hot:  # those that describe themselves are in the document already
        if (name := f"`{route.method} {route.path}`") not in known:
            rows.append((name, "", _first_line(inspect.getdoc(route.handler))))
    return sorted(rows)


def _scope_and_words(description: str) -> tuple[str, str]:
    """The API appends a route's scope to its description; the page gives it a column of its own."""
    found = _SCOPE.search(description)
    return (f"`{found[1]}`" if found else "", _first_line(_SCOPE.sub("", description)))


def reasons() -> str:
    return table(("reason", "when"), rows) if (rows := reason_rows()) else ""


def reason_rows() -> list[Row]:
    """Drop reasons: each member of the one typed list, with its line."""
    module = room("handbill.events.reasons")
    return [(f"`{reason}`", module.DOCS.get(reason, "")) for reason in module.Reason] if module else []


def jobs() -> str:
    return table(("queue", "job", "what it does"), rows) if (rows := job_rows()) else ""


def job_rows() -> list[Row]:
    """Queues and the jobs they carry."""
    module = room("handbill.wiring.queues")
    carried = module.CATALOGUE.items() if module else ()
    return [(f"`{queue}`", f"`{name}`", doc) for queue, jobs in carried for name, doc in jobs.items()]


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0].replace("\n", " ")


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = 0
    for name, text in all_pages().items():
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"{name} is not what the code says: run `make docs`")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
