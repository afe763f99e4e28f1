"""Checks the permission rules and hooks in settings files that were made for Claude Code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.cli.checks.finding import Finding, fail, ok, warn
from ralph.permissions.claude_settings import GuardError, read_settings
from ralph.run.permission_rules import not_kept
from ralph.settings.claude_files import ClaudeFileError, document_of, read_claude_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_NAME = "permission rules"


def look_at_claude_rules(cwd: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about the settings files for Claude Code: which files contain rules that a run would apply, and which
    of their rules it would not apply.
    """
    try:
        read = [read_settings(document_of(file), file) for file in read_claude_files(cwd, environment)]
    except (ClaudeFileError, GuardError) as error:
        yield fail(_NAME, str(error), "correct that file: no run begins without its rules")
        return
    for found in read:
        if found.rules or found.hooks:
            counts = f"{len(found.rules)} rules" + (f", {len(found.hooks)} hooks" if found.hooks else "")
            yield ok(_NAME, f"{found.file.name}: {counts}")
        if found.sandbox.keys:
            yield ok(_NAME, f"{found.file.name}: commands are restricted by {', '.join(found.sandbox.keys)}")
        for fact, advice in not_kept(found):
            yield warn(_NAME, fact, advice)
