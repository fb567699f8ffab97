"""What the shell expects of a chore; the wiring says which there are."""

from handbill.wiring.chores import Chore, Plan, chosen

__all__ = ["Chore", "Plan", "chosen"]
