"""The plan of an import: edited, checked, and tried on the head of the file. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, structs

from handbill.contacts import mapping, phone_plans, phones
from handbill.contacts.model import Column, Plan, PlanPatch, PreviewRow
from handbill.kit.errors import Fault, Invalid


def previewed(
    plan: Plan, head: list[list[str] | str], read: list[Any], known: set[str], first: int
) -> Iterator[PreviewRow]:
    seen: set[str] = set()
    for row, (cells, fields) in enumerate(zip(head, read, strict=True), first):
        if isinstance(cells, str):
            yield PreviewRow(row, "reject", {}, cells)
        elif fields is None:
            yield PreviewRow(row, "blank", {})
        elif fields.reject is not None:
            code, field, value = fields.reject
            suggestion = phones.suggest(value, plan.region) if code == phones.OTHER_COUNTRY else None
            yield PreviewRow(row, "reject", _shown(fields), code, field, suggestion=suggestion)
        else:
            key = str(getattr(fields, plan.key))
            outcome = "duplicate" if key in seen else "match" if key in known else "create"
            seen.add(key)
            notes = [f"{field}: {code}" for code, field, _ in fields.notes] + fields.repairs
            yield PreviewRow(row, outcome, _shown(fields), notes=notes)  # type: ignore[arg-type] # one of three words


def _shown(fields: Any) -> dict[str, Any]:
    hidden = ("reject", "notes", "repairs", "whatsapp", "first_name", "last_name")
    return {name: value for name, value in structs.asdict(fields).items() if value and name not in hidden}


def patched(plan: Plan, patch: PlanPatch) -> Plan:
    changed: dict[str, Any] = {}
    if patch.columns is not UNSET:
        columns = list(plan.columns)
        for edit in patch.columns:
            if edit.index >= len(columns):
                raise Invalid(
                    "There is no such column; nothing was changed.",
                    code="IMPORT_MAPPING",
                    faults=[Fault("columns", f"the file has {len(columns)} columns, counted from 0")],
                )
            columns[edit.index] = Column(columns[edit.index].name, edit.target, edit.kind, edit.date_order)
        changed["columns"] = columns
    for name in ("key", "policy", "region", "tags", "consent"):
        if (value := getattr(patch, name)) is not UNSET:
            changed[name] = value
    new = structs.replace(plan, **changed)
    check_region(new.region)
    mapping.check(new.columns, new.key)
    return new


def check_ready(plan: Plan) -> None:
    mapping.check(plan.columns, plan.key)
    if plan.consent is None and any(column.target == "consent" for column in plan.columns):
        raise Invalid(
            "A column speaks of consent, and the plan does not say for which channels; nothing was started.",
            code="IMPORT_MAPPING",
            faults=[Fault("consent", "give channels and source, or map the column to an attribute")],
        )


def check_region(region: str | None) -> None:
    if region is not None and not phone_plans.is_region(region):
        raise Invalid("There is no such region.", faults=[Fault("region", "an ISO code such as BR")])
