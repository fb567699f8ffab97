"""`python -m handbill.cli`: the same as the console script, for children of the supervisor."""

from handbill.cli import main

main()
