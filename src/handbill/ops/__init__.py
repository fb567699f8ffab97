"""The operator's tools: the supervisor behind `handbill up`, doctor, backup and restore, the state's hash."""
