"""`handbill watch` and `handbill alerts`: messages about what goes wrong, without Prometheus."""

from __future__ import annotations

import asyncio
import signal

import typer

from handbill.cli.frame import JsonFlag, ServerJsonFlag, run, show, table

alerts = typer.Typer(no_args_is_help=True, help="Alerts by webhook and e-mail: send a test message.")


def mount(app: typer.Typer) -> None:
    app.command()(watch)
    app.add_typer(alerts, name="alerts")


def watch(as_json: ServerJsonFlag = False) -> None:
    """Watch api and worker processes that run by themselves and report incidents, until it is stopped."""
    from handbill import settings
    from handbill.alerts.watcher import run_watcher
    from handbill.kit.telemetry import logs
    from handbill.wiring.alerts import build_watcher, scrape_targets

    current = settings.current()
    logs.configure(current.log.level)

    async def work() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        watcher = build_watcher(current, scrape_targets(current), "alerts-watch.json")
        if watcher is None:
            raise _no_sender()
        await run_watcher(watcher, stop)

    run(work())


@alerts.command("test")
def send_test(as_json: JsonFlag = False) -> None:
    """Send a test message by every configured sender and print how each ended. Exit code 1 if one failed."""
    from handbill import settings
    from handbill.alerts.messages import Message
    from handbill.kit.errors import HandbillError
    from handbill.wiring.alerts import build_senders

    current = settings.current()
    senders = build_senders(current)
    if not senders:
        raise _no_sender()
    message = Message(current.alerts.name, note="Test message of `handbill alerts test`: alerts arrive here.")

    async def work() -> dict[str, str]:
        results: dict[str, str] = {}
        for sender in senders:
            try:
                await sender.send(message)
                results[sender.name] = "sent"
            except HandbillError as error:
                results[sender.name] = error.detail
            finally:
                await sender.close()
        return results

    results = run(work())
    show(results, as_json, lambda: table(("sender", "result"), results.items()))
    if any(result != "sent" for result in results.values()):
        raise typer.Exit(1)


def _no_sender() -> Exception:
    from handbill.kit.errors import Invalid

    return Invalid(
        "No sender of alerts is configured. Set HANDBILL_ALERTS__WEBHOOK_URL, or HANDBILL_ALERTS__EMAIL_TO and "
        "HANDBILL_ALERTS__SMTP_HOST.",
        code="SETTINGS_INVALID",
    )
