"""Ties a program to the life of the process that starts it, then becomes that program.

Run as a plain script, `python -I -S leash.py OPTIONS -- program arguments`, so that it imports next to nothing:

- it takes the engine's lock file and lets the program inherit it. The kernel holds such a lock exactly as long as
  somebody lives on the data, so it can be neither stale nor forgotten; a pid file can be both;
- started by root, it becomes the plain user first (changing the user clears the next promise, hence the order);
- it asks the kernel to signal the program when the starting thread dies, so a `kill -9` of the supervisor leaves no
  orphan behind;
- it replaces itself with the program: same pid, nothing left in between.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
import time

LOCKED = 75  # the exit code that says: somebody else still lives on this data
ORPHANED = 76  # the starter died before the leash was on
_PR_SET_PDEATHSIG = 1


def hold(path: str, patience: float) -> bool:
    """Lock `path` for this process and what it becomes; wait a while for a predecessor that is just leaving."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            os.set_inheritable(lock, True)
            return True


def become(user: str) -> None:
    uid, gid = (int(part) for part in user.split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def bind_to_parent(signal: int) -> None:
    """Linux only; elsewhere the engine simply outlives a killed supervisor and the lock tells the next one."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0)


def main(arguments: list[str]) -> int:
    """Returns only when the program was not started."""
    signal, parent, lock, patience, user, dash, *command = arguments
    if dash != "--" or not command:
        print("leash: usage: SIGNAL PARENT LOCK PATIENCE UID:GID|- -- COMMAND...", file=sys.stderr)
        return 2
    if not hold(lock, float(patience)):
        print(f"leash: {lock} is held by another process", file=sys.stderr)
        return LOCKED
    if user != "-":
        become(user)
    bind_to_parent(int(signal))
    if os.getppid() != int(parent):
        return ORPHANED
    return os.execv(command[0], command)  # noqa: S606 - becoming the program is the point


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
