"""Logs of children and engines: always drained, bounded while the process runs, the last lines kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from handbill.infra.embedded import log_files, process
from handbill.infra.embedded.log_files import LogFile, older_file, truncate_large
from handbill.infra.embedded.process import Launch
from handbill.ops.child import Child
from handbill.ops.engine_logs import EngineLogs
from handbill.ops.teller import Teller
from tests.kit.waiting import eventually, soon

LINES = 20_000
"""Of 50 bytes each: a megabyte, far more than a pipe holds."""
WRITER = f"import sys\nfor number in range({LINES}): sys.stderr.write(f'line {{number:044d}}\\n')"


async def run_writer(log: Path) -> tuple[int, Child]:
    """A child that fills its stderr many times over; its exit code."""
    child = Child("api", subprocess.Popen([sys.executable, "-c", WRITER], stderr=subprocess.PIPE), grace=1.0)
    child._reader = asyncio.create_task(child._read(log, Teller(as_json=False)))
    try:
        await soon(child._reader, what="all that the child writes is read")
        return await child.wait(), child
    finally:
        await child.stop()


def sizes(log: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in log.parent.iterdir()}


@pytest.mark.parametrize("kind", ["is a directory", "has no directory"])
async def test_a_child_goes_on_when_its_log_cannot_be_opened(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "logs" / "api.log"
    if kind == "is a directory":
        log.mkdir(parents=True)
    code, child = await run_writer(log)
    assert code == 0
    assert child.last_words == f"line {LINES - 1:044d}"


async def test_a_childs_log_is_bounded_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogFile.__init__, "__kwdefaults__", {"limit": 100_000})
    log = tmp_path / "api.log"
    code, _ = await run_writer(log)
    assert code == 0
    assert set(sizes(log)) == {"api.log", "api.log.1"}
    assert max(sizes(log).values()) <= 100_000
    lines = (older_file(log).read_bytes() + log.read_bytes()).decode().splitlines()
    assert lines == [f"line {number:044d}" for number in range(LINES - len(lines), LINES)], (
        "the last lines, all of them"
    )
    assert len(lines) >= 100_000 // 50


def test_a_log_is_written_again_once_that_is_possible(tmp_path: Path) -> None:
    errors: list[OSError] = []
    log = LogFile(tmp_path / "logs" / "api.log", errors.append)
    log.write(b"lost\n")
    log.path.parent.mkdir()
    log.write(b"kept\n")
    log.close()
    assert log.path.read_bytes() == b"kept\n"
    assert len(errors) == 1


def test_the_log_of_a_former_run_counts(tmp_path: Path) -> None:
    path = tmp_path / "api.log"
    path.write_bytes(b"x" * 90)
    log = LogFile(path, lambda error: pytest.fail(str(error)), limit=100)
    log.write(b"y" * 20)
    log.close()
    assert sizes(path) == {"api.log": 20, "api.log.1": 90}


async def test_an_engines_log_is_truncated_while_the_engine_writes(tmp_path: Path) -> None:
    """The engine writes on behind the cut: at the file's new start, not behind a hole."""
    script = (
        f"{WRITER}\nprint(flush=True)\nsys.stdin = open(sys.argv[1])\nsys.stdin.read()\nsys.stderr.write('the end\\n')"
    )
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    plan = Launch(
        name="engine",
        command=(sys.executable, "-c", script, str(fifo)),
        lock=tmp_path / "lock",
        log=tmp_path / "logs" / "engine.log",
        stop_signal=process.STOP,
        orphan_signal=process.KILL,
        environ=process.plain_environ(),
    )
    engine = process.launch(plan, "x://")
    try:
        await eventually(lambda: f"{LINES - 1:044d}" in engine.log_tail())
        assert truncate_large(plan.log, 100_000)
        assert not truncate_large(plan.log, 100_000)
        older = older_file(plan.log)
        assert older.stat().st_size == 100_000
        assert f"{LINES - 1:044d}" in older.read_text()
        assert plan.log.stat().st_size < 1_000
        await asyncio.to_thread(fifo.write_text, "")
        assert await soon(engine.wait()) == 0
        assert plan.log.read_text().endswith("the end\n")
        assert plan.log.stat().st_size < 1_000
        assert engine.log_tail().endswith("the end")
    finally:
        await engine.stop(grace=1.0)


def test_a_log_that_cannot_be_copied_is_truncated_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "redis.log"
    log.write_bytes(b"x" * 200)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_files, "_copy_end", full)
    assert truncate_large(log, 100)
    assert sizes(log) == {"redis.log": 0}


async def test_one_engines_log_that_cannot_be_truncated_does_not_keep_the_next_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def truncate(log: Path) -> bool:
        if log.stem == "postgres":
            raise PermissionError(13, "Permission denied")
        done.append(log.stem)
        return True

    monkeypatch.setattr(log_files, "truncate_large", truncate)
    logs = [tmp_path / f"{name}.log" for name in ("redis", "postgres", "clickhouse")]
    await EngineLogs(logs, Teller(as_json=False)).truncate()
    assert done == ["redis", "clickhouse"]
