"""Our own small lints: `python -m tests.architecture.lints` prints what is wrong and where, in a few seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.architecture import document_rules, source_rules, task_rules, text_rules
from tests.architecture.tree import Finding, Rule, Tree

RULES: tuple[Rule, ...] = (
    source_rules.unreadable_files,
    source_rules.swallowed_errors,
    source_rules.environment_readers,
    source_rules.unsafe_http,
    task_rules.unsupervised_tasks,
    source_rules.sleeping_tests,
    source_rules.unexplained_noqa,
    source_rules.unfinished,
    source_rules.long_files,
    text_rules.machine_paths,
    text_rules.registry_hosts,
    text_rules.dead_links,
    text_rules.tenantless_sql,
    text_rules.sql_in_code,
    document_rules.undocumented_codes,
    document_rules.undocumented_metrics,
    document_rules.undocumented_settings,
    document_rules.unmapped_rooms,
    document_rules.slices_without_contracts,
    document_rules.wordless_lists,
    document_rules.stale_pages,
)


def check(tree: Tree, rules: tuple[Rule, ...] = RULES) -> Iterator[Finding]:
    for rule in rules:
        yield from rule(tree)


def main() -> int:
    findings = sorted(set(check(Tree())))
    for finding in findings:
        print(finding)
    print(f"{len(RULES)} rules, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
