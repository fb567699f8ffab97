"""`handbill fake-graph`: a WhatsApp and Graph server to try things on, with real limits and chosen misfortunes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from handbill.cli.frame import JsonFlag, run, show
from handbill.kit.errors import Invalid


def mount(app: typer.Typer) -> None:
    app.command("fake-graph")(fake_graph)


def fake_graph(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 means a free one.")] = 9400,
    seed: Annotated[int, typer.Option(help="Decides all misfortune.")] = 1,
    numbers: Annotated[int, typer.Option(min=1, max=10_000, help="How many phone numbers there are.")] = 1,
    webhook: Annotated[str, typer.Option(help="Where webhooks go; none are sent without it.")] = "",
    app_secret: Annotated[str, typer.Option(help="Signs the webhooks.")] = "",
    config: Annotated[Path | None, typer.Option(help="A JSON file with everything else: limits, faults...")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a stand-in for Meta's servers until told to stop; nothing of it leaves this machine."""
    from handbill.fake_graph.app import serve
    from handbill.fake_graph.model import FIRST_NUMBER, Config, Number

    try:
        made = msgspec.json.decode(config.read_bytes(), type=Config) if config is not None else Config()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"The file {config} cannot be used: {error}. Nothing was started.") from None
    if config is None:
        listed = tuple(Number(str(FIRST_NUMBER + place), display=f"1555{place:07d}") for place in range(numbers))
        made = Config(seed=seed, numbers=listed, webhook_url=webhook, app_secret=app_secret)

    def ready(url: str) -> None:
        facts = {"url": url, "numbers": [number.id for number in made.numbers], "waba": made.numbers[0].waba}
        show(facts, as_json, lambda: f"The fake Graph server answers at {url}; its log is at {url}/_log.")

    run(serve(made, host, port, ready))
