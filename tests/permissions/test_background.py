"""Tests how rules judge the tools for commands in the background."""

from __future__ import annotations

from ralph.values.tool_choice import OF_BACKGROUND
from tests.permissions.worlds import permissions, verdict
from tests.rows import every_row


@every_row(
    ("denied", "asked", "allowed", "which"),
    [
        ([], [], None, ("", "")),
        (["BashOutput"], [], None, ("BashOutput", "")),
        (["KillShell"], [], None, ("KillBash", "")),
        (["TaskOutput", "TaskStop"], [], None, ("BashOutput KillBash", "")),
        (["Bash"], [], None, ("BashOutput KillBash", "")),
        (["*"], [], None, ("BashOutput KillBash", "")),
        (["Bash(rm:*)", "Read(./.env)"], [], None, ("", "")),
        ([], ["Bash"], None, ("", "")),
        ([], ["KillBash"], None, ("", "KillBash")),
        ([], [], ["Bash(git *)"], ("", "")),
        ([], [], ["Bash"], ("", "")),
        (["KillBash"], [], ["Bash"], ("KillBash", "")),
    ],
)
def test_what_allows_commands_allows_their_tools_and_what_denies_all_of_them_denies_these(
    denied, asked, allowed, which
) -> None:
    judge = permissions(denied, asked, allowed)
    verdicts = {name: verdict(judge, name, bash_id="bash_1") for name in OF_BACKGROUND}
    found = tuple(
        " ".join(name for name, ruling in verdicts.items() if getattr(ruling, kind) is not None)
        for kind in ("denied", "asks")
    )
    assert found == which
