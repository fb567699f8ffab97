"""`handbill doctor`, `backup`, `restore`, `reset` and `state-hash`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from handbill.cli.frame import JsonFlag, run, show, table

if TYPE_CHECKING:
    from handbill.ops.backup.manifest import Manifest


def mount(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command()(backup)
    app.command()(restore)
    app.command()(reset)
    app.command("state-hash")(state_hash)


def doctor(as_json: JsonFlag = False) -> None:
    """Look at everything an installation stands on; say what is wrong and what to do. Exit code 1 if anything fails."""
    from handbill import settings
    from handbill.kit.telemetry import logs
    from handbill.ops.doctor import examine

    logs.configure("error")
    findings = run(examine(settings.current()))
    colours = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}
    rows = [(colours[one.status], one.subject, one.detail, one.advice) for one in findings]
    show(findings, as_json, lambda: table(("", "subject", "found", "what to do"), rows))
    if any(one.status == "fail" for one in findings):
        raise typer.Exit(1)


def backup(
    target: Annotated[Path, typer.Argument(help="A new directory, or a new file ending in .tar.")],
    as_json: JsonFlag = False,
) -> None:
    """Write a backup, also while everything runs. It holds secrets: keep it as safe as the installation."""
    from handbill import settings
    from handbill.kit.telemetry import logs
    from handbill.ops.backup import backup as take
    from handbill.ops.engines import borrowed

    logs.configure("error")
    current = settings.current()

    async def work() -> Manifest:
        async with borrowed(current) as known:
            return await take(known, target)

    made = run(work())
    facts = {"target": str(target), "state": made.state.total, "files": len(made.files), "created_at": made.created_at}
    show(facts, as_json, lambda: f"{target} is whole: {len(made.files)} files, state {made.state.total}.")


def restore(
    source: Annotated[Path, typer.Argument(help="A backup's directory or .tar file.")],
    force: Annotated[bool, typer.Option("--force", help="Replace what the target holds.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Bring a backup back into an empty installation. Stop `up`, api and worker first."""
    from handbill import settings
    from handbill.kit.telemetry import logs
    from handbill.ops.backup import restore as bring_back
    from handbill.ops.backup.restore import checked, unpacked
    from handbill.ops.engines import own

    logs.configure("error")
    current = settings.current()

    async def work() -> Manifest:
        with unpacked(source) as folder:
            found = checked(folder)
            async with own(current) as known:
                await bring_back(known, folder, found, force=force)
            return found

    found = run(work())
    facts = {"source": str(source), "state": found.state.total, "created_at": found.created_at}
    show(facts, as_json, lambda: f"Restored the backup of {found.created_at}; state {found.state.total}.")


def reset(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove all data of the embedded engines, and ask first. There is no way back; stop `up` before."""
    from handbill import settings
    from handbill.ops.reset import opened, remove

    with opened(settings.current()) as plan:
        if not yes:
            typer.echo(plan.description(), err=True)
            answer = typer.prompt(f"Type {plan.home.name} to remove it", default="", show_default=False, err=True)
            if answer.strip() != plan.home.name:
                typer.echo("Nothing was removed.", err=True)
                raise typer.Exit(1)
        remove(plan)
    show(plan.facts(), as_json, lambda: f"Removed {', '.join(plan.names())} from {plan.home}.")


def state_hash(as_json: JsonFlag = False) -> None:
    """One number for the whole state, and one per table: equal histories give equal numbers."""
    from handbill import settings
    from handbill.kit.telemetry import logs
    from handbill.ops.engines import borrowed
    from handbill.ops.state import StateHash, current

    logs.configure("error")
    given = settings.current()

    async def work() -> StateHash:
        async with borrowed(given) as known:
            return await current(known)

    found = run(work())
    show(found, as_json, lambda: table(("table", "hash"), [*found.tables.items(), ("total", found.total)]))
