"""The only reader of the environment: nested frozen structs, one per room, with a line of documentation each."""

from handbill.settings.environment import current, for_child, ready_socket
from handbill.settings.model import Settings
from handbill.settings.reader import load, replace

__all__ = ["Settings", "current", "for_child", "load", "ready_socket", "replace"]
