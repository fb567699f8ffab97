"""The worker of one queue: lanes that run jobs, each fetching its next job in the step that ends the last one."""

from __future__ import annotations

from handbill.jobs.model import CpuDied
from handbill.jobs.worker.context import AnyHandler, CpuHandler, CpuTask, Handler, JobContext, OnFailed, cpu_bound
from handbill.jobs.worker.pool import CpuPool
from handbill.jobs.worker.worker import JobWorker

__all__ = [
    "AnyHandler",
    "CpuDied",
    "CpuHandler",
    "CpuPool",
    "CpuTask",
    "Handler",
    "JobContext",
    "JobWorker",
    "OnFailed",
    "cpu_bound",
]
