"""Rules about what runs in the background: a loop is a BackgroundTask of kit/tasks.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.tree import Finding, Tree

# Each other starter of a task, thread or timer has its reason here: it is short and its end reaches whoever waits for
# it, or it cannot end before whoever it works for.
TASK_STARTERS: dict[str, str] = {
    "src/handbill/kit/tasks.py": "background tasks themselves",
    "src/handbill/kit/batcher.py": "one shared batch; its error goes to its callers",
    "src/handbill/kit/cancellation.py": "one piece of work; the caller waits for its end",
    "src/handbill/kit/disconnects.py": "one request, awaited at once",
    "src/handbill/kit/disk.py": "one measurement in a thread; a background task waits for it",
    "src/handbill/kit/heartbeat.py": "the thread that touches the heartbeat file; without it the file grows old",
    "src/handbill/api/body_deadlines.py": "one timer while somebody waits; set again whatever a sweep raises",
    "src/handbill/api/server.py": "start and stop of the process wait for them",
    "src/handbill/banners/decide.py": "compiles one catalogue; callers share its result",
    "src/handbill/caps/store.py": "one shared read; its error goes to all callers",
    "src/handbill/client/sender.py": "the client library, which customers run",
    "src/handbill/client/sync.py": "the client library, which customers run",
    "src/handbill/contacts/uploads.py": "writes in threads; the request waits for each of them",
    "src/handbill/events/capture.py": "reads one body in a thread; the request waits for it",
    "src/handbill/events/lanes.py": "two waits that the lane's task awaits at once",
    "src/handbill/fake_graph/courier.py": "the stand-in for Meta's servers, a program of its own",
    "src/handbill/fake_graph/templates.py": "the stand-in for Meta's servers, a program of its own",
    "src/handbill/infra/embedded/face/__main__.py": "closes the engine at the end of its process",
    "src/handbill/infra/embedded/face/lanes.py": "threads of queries; each query's request waits for its own",
    "src/handbill/infra/embedded/face/running.py": "one query in a thread; its request waits for it",
    "src/handbill/infra/embedded/face/server.py": "kills one query that its client left",
    "src/handbill/infra/journal/appender.py": "one shared write; its error goes to all callers",
    "src/handbill/infra/postgres/hot.py": "look-ups whose callers wait, and a probe that no error ends",
    "src/handbill/infra/redis/dedicated.py": "ends with the subscription; it gives the reader's signs of life",
    "src/handbill/infra/redis/line.py": "a timer while replies are awaited; the next command sets it again",
    "src/handbill/jobs/lock.py": "ends with the block that holds the lock; marks the lock as lost",
    "src/handbill/jobs/pressure.py": "one measurement; callers share its result",
    "src/handbill/jobs/worker/doorbell.py": "one ring of the dispatcher, which looks without it too",
    "src/handbill/jobs/worker/pool.py": "processes whose callers wait; a thread in each that ends it with its parent",
    "src/handbill/jobs/worker/renewal.py": "a thread with a health of its own, which starts its loop again",
    "src/handbill/jobs/worker/running.py": "the time limit of one job",
    "src/handbill/jobs/worker/worker.py": "one job in a slot; its end is looked at",
    "src/handbill/messaging/dispatch.py": "one send; the batch waits for it",
    "src/handbill/messaging/singles/sending.py": "one send; the turn waits for it",
    "src/handbill/ops/child.py": "reads a child's output until the child ends",
    "src/handbill/ops/unit.py": "waits for the end of a process; no error of a restart ends it",
    "src/handbill/ops/up.py": "awaited at once",
    "src/handbill/segments/known.py": "fills one value; failures are counted and logged",
    "src/handbill/tenants/directory.py": "one lookup; callers share its result",
    "src/handbill/tenants/jwks.py": "one fetch; callers share its result",
    "src/handbill/worker/shell.py": "two waits, awaited at once",
}

_STARTERS = frozenset(
    {
        "create_task", "create_eager_task_factory", "ensure_future", "run_coroutine_threadsafe", "TaskGroup",
        "run_in_executor", "call_later", "call_at", "Thread", "Timer", "start_new_thread", "ThreadPoolExecutor",
        "ProcessPoolExecutor",
    }
)  # fmt: skip
"""Under whatever name their module or object goes: `loop`, `aio` and `tg` are no way around."""


def unsupervised_tasks(tree: Tree) -> Iterator[Finding]:
    """A loop runs as a background task: whatever else is started may end without anybody noticing."""
    for path in tree.under("src", suffix=".py"):
        module = tree.module(path)
        names = _asyncio_names(module)
        lines = sorted({node.lineno for node in ast.walk(module) if _starts(node, names)})  # type: ignore[attr-defined]
        if tree.name(path) not in TASK_STARTERS:
            for line in lines:
                yield tree.finding(path, line, "use BackgroundTask of kit/tasks.py, or list the file with a reason")
        elif not lines:
            yield tree.finding(path, 1, "starts nothing: take it off the list TASK_STARTERS")


def _starts(node: ast.AST, asyncio_names: set[str]) -> bool:
    """Whether a node starts something, or makes a starter's name its own."""
    match node:
        case ast.Attribute(attr=name):
            return name in _STARTERS
        case ast.ImportFrom(names=names):
            return any(alias.name in _STARTERS for alias in names)
        case ast.Call(func=function):
            return _looks_up_starter(node) or _makes_task(function, asyncio_names)
    return False


def _looks_up_starter(call: ast.Call) -> bool:
    named = any(isinstance(each, ast.Constant) and each.value in _STARTERS for each in call.args)
    return named and isinstance(call.func, ast.Name) and call.func.id == "getattr"


def _makes_task(function: ast.expr, asyncio_names: set[str]) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr == "Task" and isinstance(function.value, ast.Name) and function.value.id in asyncio_names
    return isinstance(function, ast.Name) and function.id in asyncio_names


def _asyncio_names(module: ast.Module) -> set[str]:
    """What asyncio, and its class Task, are called in this module: naming that class is fine, calling it starts one."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "asyncio"}
        elif isinstance(node, ast.ImportFrom) and node.module in {"asyncio", "asyncio.tasks"}:
            names |= {alias.asname or alias.name for alias in node.names if alias.name in {"Task", "tasks"}}
    return names
