"""The command that resumes a session is one line, from which a shell makes the intended words."""

from __future__ import annotations

import os
import subprocess

from ralph.sessions.store import resume_command, shell_word
from tests.rows import every_row


@every_row(
    "word",
    ["plain", "two words", "it's", "$HOME", "a\nb", "\x1b[2J", "caf\udce9", "ä 世界", "back\\slash", "é\t'"],
)
def test_a_shell_reads_the_word_that_was_meant(word) -> None:
    shown = shell_word(word)
    assert shown.isprintable()
    ran = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True)
    assert ran.stdout == os.fsencode(word)


def test_only_what_must_be_said_is_in_the_command() -> None:
    assert resume_command("3f2a9c1e") == "ralph --resume 3f2a9c1e"
    whole = resume_command(
        "3f", cwd="/a b", session_dir="/s", again={"--base-url": "http://[::1]:1"}, prompt="and now"
    )
    assert whole == ("ralph --resume 3f --cd '/a b' --session-dir /s --base-url 'http://[::1]:1' \"and now\"")
