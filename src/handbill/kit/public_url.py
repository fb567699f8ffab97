"""Links that leave the installation: they begin with its public address, which only its owner knows."""

from __future__ import annotations

from handbill.kit.errors import Conflict, Fault

SETTING = "HANDBILL_API__PUBLIC_URL"


class PublicUrl:
    """The public address of the installation, or none."""

    def __init__(self, base: str | None) -> None:
        self.base = None if base is None else base.rstrip("/")

    def link(self, path: str) -> str:
        """The address of a path of ours as others reach it. Raises Conflict, naming the setting, while it is unset."""
        if self.base is None:
            raise Conflict(
                f"The public address of this installation is not set, so that no link can be made. Set {SETTING}.",
                code="PUBLIC_URL_UNSET",
                faults=[Fault(SETTING, "is not set")],
            )
        return self.base + path

    def link_if_set(self, path: str) -> str | None:
        return None if self.base is None else self.base + path

    def link_or_path(self, path: str) -> str:
        """For readers who know where they asked: the path alone while no address is set."""
        return path if self.base is None else self.base + path
