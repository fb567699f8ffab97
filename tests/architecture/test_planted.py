"""A violation of each kind is planted, and seen caught: a gate that never closes proves nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import document_rules, pages, source_rules, task_rules, text_rules
from tests.architecture.lints import RULES
from tests.architecture.tree import ROOT, Rule, Tree

CODES = 'CODES: dict[str, str] = {"KNOWN": "A code with its line."}\n'
METRICS = "from prometheus_client import Counter\nX = Counter('x', 'Xs that were seen')\n"
UNSUPERVISED = [
    ("asyncio.create_task(loop())", "BackgroundTask('a', run)"),
    ("import asyncio as aio\naio.create_task(loop())", "import asyncio as aio\naio.Event()"),
    ("from asyncio import create_task as start", "from asyncio import Event"),
    ("from asyncio.tasks import ensure_future", "from asyncio.tasks import Task\nx: Task"),
    ("asyncio.get_running_loop().create_task(loop())", "asyncio.get_running_loop().time()"),
    ("async with asyncio.TaskGroup() as group: ...", "async with asyncio.timeout(1): ..."),
    ("group.create_task(loop())", "group.add(loop)"),
    ("start = asyncio.ensure_future", "task: asyncio.Task[None]"),
    ("import asyncio as aio\naio.Task(loop())", "import asyncio as aio\ntask: aio.Task[None]"),
    ("from asyncio import Task as T\nT(loop())", "from asyncio import Task as T\nx: T"),
    ("getattr(asyncio, 'create_task')(loop())", "getattr(asyncio, 'Event')()"),
    ("asyncio.run_coroutine_threadsafe(loop(), running)", "asyncio.run(main())"),
    ("from threading import Thread", "from threading import Lock"),
    ("import threading\nclass A(threading.Thread): ...", "import threading\nthreading.Lock()"),
    ("threading.Timer(1, again).start()", "threading.Event()"),
    ("_thread.start_new_thread(loop, ())", "threading.get_ident()"),
    ("from concurrent.futures import ThreadPoolExecutor", "from concurrent.futures import Future"),
    ("running.run_in_executor(None, loop)", "await asyncio.to_thread(once)"),
    ("def again():\n    running.call_later(1, again)", "running.call_soon(once)"),
    ("running.call_at(1, again)", "running.time()"),
]
"""Every way to start something that goes on by itself, and something like it that starts nothing."""

PLANTS: list[tuple[Rule, str, str, str]] = [
    # rule, file, a text that must be caught, a text that must pass
    (source_rules.unreadable_files, "src/handbill/a.py", "def f(:\n", "def f(): ...\n"),
    (
        source_rules.swallowed_errors,
        "src/handbill/a.py",
        "try:\n    f()\nexcept:\n    g()\n",
        "try:\n    f()\nexcept OSError:\n    pass\n",
    ),
    (
        source_rules.swallowed_errors,
        "tests/a.py",
        "try:\n    f()\nexcept Exception:\n    pass\n",
        "try:\n    f()\nexcept Exception:\n    raise\n",
    ),
    (
        source_rules.swallowed_errors,
        "src/handbill/a.py",
        "with contextlib.suppress(Exception):\n    f()\n",
        "with contextlib.suppress(OSError):\n    f()\n",
    ),
    (
        source_rules.environment_readers,
        "src/handbill/jobs/a.py",
        "import os\nx = os.environ['A']\n",
        "x = settings.a\n",
    ),
    (source_rules.environment_readers, "src/handbill/jobs/a.py", "from os import getenv\n", "from os import path\n"),
    (source_rules.unsafe_http, "src/handbill/a.py", "import aiohttp\n", "from aiohttp import web\n"),
    (source_rules.unsafe_http, "src/handbill/a.py", "from aiohttp import ClientSession\n", "import aiohttp.web\n"),
    (source_rules.unsafe_http, "src/handbill/a.py", "from urllib import request\n", "from urllib import parse\n"),
    (
        source_rules.sleeping_tests,
        "tests/unit/test_a.py",
        "import time\ntime.sleep(1)\n",
        "time.sleep(1)  # sleeps: the handler must block\n",
    ),
    (source_rules.sleeping_tests, "tests/a.py", "await asyncio.sleep(0.5)\n", "await asyncio.sleep(0)\n"),
    *((task_rules.unsupervised_tasks, "src/handbill/a.py", f"{bad}\n", f"{good}\n") for bad, good in UNSUPERVISED),
    (task_rules.unsupervised_tasks, "src/handbill/kit/batcher.py", "x = 1\n", "asyncio.create_task(one())\n"),
    (source_rules.unexplained_noqa, "src/handbill/a.py", "import os  # no" + "qa\n", "x = 1\n"),
    (
        source_rules.unexplained_noqa,
        "src/handbill/a.py",
        "import os  # no" + "qa: F401\n",
        "import os  # noqa: F401 - re-exported for the tests\n",
    ),
    (source_rules.unfinished, "src/handbill/a.py", "# TO" + "DO: later\n", "# done\n"),
    (source_rules.long_files, "src/handbill/a.py", "x = 1\n" * 401, "x = 1\n" * 400),
    (text_rules.machine_paths, "docs/a.md", "see /ho" + "me/ann/notes\n", "see the notes at home/ann\n"),
    (text_rules.registry_hosts, "requirements/a.txt", "# from https://py" + "pi.org/simple\n", "aiohttp==3.0\n"),
    (text_rules.dead_links, "docs/a.md", "[there](nowhere.md)\n", "[here](a.md)\n"),
    (
        text_rules.tenantless_sql,
        "src/handbill/jobs/sql/a.sql",
        "-- name: all\nselect * from t\n",
        "-- name: all\n-- no-tenant: the relay serves all\nselect * from t\n",
    ),
    (
        text_rules.tenantless_sql,
        "src/handbill/jobs/sql/a.sql",
        "-- name: all\n-- of tenant_id\nselect 1\n",
        "-- name: all\nselect 1 where tenant_id = $1\n",
    ),
    (
        text_rules.tenantless_sql,
        "src/handbill/jobs/queries/a.sql",
        "-- name: all\nselect count() from events\n",
        "-- name: all\nselect count() from events where tenant_id = {tenant:UInt32}\n",
    ),
    (text_rules.sql_in_code, "src/handbill/jobs/a.py", 'S = "select id from t"\n', 'S = "choose one of them"\n'),
    (
        document_rules.undocumented_codes,
        "src/handbill/a.py",
        'raise Busy("x", code="UNHEARD_OF")\n',
        'raise Busy("x", code="KNOWN")\n',
    ),
    (
        document_rules.undocumented_codes,
        "src/handbill/a.py",
        'class E(Busy):\n    code = "UNHEARD_OF"\n',
        'class E(Busy):\n    code = "KNOWN"\n',
    ),
    (document_rules.undocumented_metrics, "src/handbill/a.py", METRICS, "x = 1\n"),
    (
        document_rules.undocumented_metrics,
        document_rules.METRICS,
        'X = Counter("handbill_x", "")\n',
        'X = Counter("handbill_x", "Xs that were seen")\n',
    ),
    (
        document_rules.undocumented_settings,
        "src/handbill/settings/model.py",
        "class A:\n    b: int = 1\n",
        'class A:\n    b: Annotated[int, Meta(description="A b.")] = 1\n',
    ),
    (document_rules.unmapped_rooms, "src/handbill/attic/__init__.py", "", ""),
    (document_rules.slices_without_contracts, "src/handbill/attic/__init__.py", "", ""),
]


@pytest.mark.parametrize(("rule", "file", "bad", "good"), PLANTS, ids=lambda value: getattr(value, "__name__", None))
def test_each_rule_catches_its_plant(rule: Rule, file: str, bad: str, good: str, tmp_path: Path) -> None:
    def found(text: str) -> list[str]:
        shutil.rmtree(tmp_path, ignore_errors=True)
        for name, content in ((document_rules.CODES, CODES), (file, text)):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return [finding.path for finding in rule(Tree(tmp_path))]

    assert found(bad), f"{rule.__name__} overlooked the plant"
    if good != bad:
        assert found(good) == []


def test_each_rule_has_a_plant() -> None:
    elsewhere = {document_rules.stale_pages, document_rules.wordless_lists}  # planted below
    assert set(RULES) - elsewhere == {rule for rule, *_ in PLANTS}


def test_a_stale_page_is_caught(tmp_path: Path) -> None:
    for name, text in pages.all_pages().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert list(document_rules.stale_pages(Tree(tmp_path))) == []
    (tmp_path / "docs/settings.md").write_text("# Settings as they were last year\n")
    assert [finding.path for finding in document_rules.stale_pages(Tree(tmp_path))] == ["docs/settings.md"]


def test_a_route_reason_or_job_without_words_is_caught() -> None:
    rows = [("`GET /a`", "a", "Lists every a."), ("`GET /b`", "b", "")]
    assert list(document_rules.wordless(rows)) == ["`GET /b`"]


# Each plant: a file of a copied house, its text, and the words by which the checker must name the violation.
IMPORTS = [
    ("kit/planted.py", "import handbill.infra.sqlfiles\n", "handbill.kit.planted -> handbill.infra.sqlfiles"),
    ("kit/framework.py", "import litestar\n", "handbill.kit.framework -> litestar"),
    ("tenants/driver.py", "import asyncpg\n", "handbill.tenants.driver -> asyncpg"),
    ("tenants/unplaced.py", "", "handbill.tenants.unplaced"),
    ("tenants/model.py", "import handbill.tenants.store\n", "handbill.tenants.model -> handbill.tenants.store"),
    ("cli/peeking.py", "import handbill.tenants.store\n", "handbill.cli.peeking -> handbill.tenants.store"),
    ("cli/peeking_too.py", "import handbill.jobs.store\n", "handbill.cli.peeking_too -> handbill.jobs.store"),
    ("attic/__init__.py", "", "handbill.attic"),
]


def test_import_contracts_catch_their_plants(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src/handbill", tmp_path / "handbill", ignore=shutil.ignore_patterns("__pycache__"))
    for file, text, _ in IMPORTS:
        path = tmp_path / "handbill" / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    checker = Path(sys.executable).with_name("lint-imports")
    command = [str(checker), "--no-cache", "--no-logo", "--config", str(ROOT / ".importlinter")]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "COLUMNS": "500"}, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    overlooked = [words for _, _, words in IMPORTS if words not in done.stdout]
    assert not overlooked, done.stdout


def test_the_linter_and_the_type_checker_are_on(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("import json\n\n\ndef f(x):\n    return x\n")
    tools = Path(sys.executable).parent
    settings = str(ROOT / "pyproject.toml")
    ruff = subprocess.run(
        [str(tools / "ruff"), "check", "--no-cache", "--config", settings, str(planted)], capture_output=True, text=True
    )
    assert "F401" in ruff.stdout
    mypy = subprocess.run(
        [str(tools / "mypy"), "--config-file", settings, "--cache-dir", str(tmp_path / "cache"), str(planted)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "no-untyped-def" in mypy.stdout, mypy.stdout + mypy.stderr
