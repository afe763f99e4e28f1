"""Settings files of the user's that a command has changed, whose ralph has not undone that, or was killed before: no run obeys them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.program.model_answers import DONE, bash
from tests.program.sandbox.test_sandbox import killed_during, needs_landlock

pytestmark = [pytest.mark.sandboxed, needs_landlock]

SERVERS = '{"mcpServers": {}}'
MODEL = '{"model": "opus"}'
# The file below the home, what it held before, what a command leaves there, and the options of the later run.
CHANGES = {
    "made": (".claude/settings.json", None, MODEL, ()),
    "changed": (".claude/settings.json", "{}", MODEL, ()),
    "removed": (".claude/settings.json", '{"permissions": {"deny": ["Bash(rm:*)"]}}', None, ()),
    "made a link": (".claude/settings.json", "{}", "-> gone", ()),
    "through a link": ("dotfiles/config.toml", "", "[sandbox]\nmode = 'off'\n", ()),
    "named by --config": ("conf/r.toml", "", "[sandbox]\nmode = 'off'\n", ("--config", "~/conf/r.toml")),
    "named by --mcp-config": ("conf/m.json", SERVERS, f" {SERVERS}", ("--mcp-config", "~/conf/m.json")),
    "named by --settings": ("conf/s.json", "{}", MODEL, ("--settings", "~/conf/s.json")),
}


def put(path: Path, text: str | None) -> None:
    path.unlink(missing_ok=True)
    if text is not None and text.startswith("-> "):
        path.symlink_to(text[3:])
    elif text is not None:
        path.write_text(text)


@pytest.mark.parametrize("change", CHANGES)
def test_a_settings_file_that_a_killed_runs_command_has_changed_counts_for_no_run(
    ralph, serve, tmp_path, change
) -> None:
    name, before, after, options = CHANGES[change]
    home = Path(ralph.environment["HOME"])
    words = [one.replace("~", str(home)) for one in options]
    path = home / name
    path.parent.mkdir()
    put(path, before)
    if name.startswith("dotfiles"):
        ralph.user_file.symlink_to(path)
    server = serve(bash("touch there; sleep 99"), *[DONE] * 3)
    killed_during(ralph, "go", "--add-dir", str(path.parent), *words)
    put(path, after)  # at a level without namespaces, the command itself could
    [mark] = Path(home, ".local/state/ralph/running").iterdir()
    ralph.cwd = tmp_path / "elsewhere"
    ralph.cwd.mkdir()
    refused = ralph("again", *words)
    assert (refused.code, server.request_count) == (78, 1)
    assert "was changed during a command of a ralph that still runs it, or was killed" in refused.stderr
    assert f"and then remove {mark}" in refused.stderr
    put(path, before)
    assert ralph("again", *words).code == 0, "it is as it was"
    put(path, after)
    mark.unlink()
    accepted = ralph("again", *words)
    assert "was killed" not in accepted.stderr


def test_what_is_changed_while_a_command_runs_counts_for_no_run_and_at_other_times_it_is_the_users(
    ralph, serve, tmp_path
) -> None:
    path = Path(ralph.environment["HOME"], ".claude", "settings.json")
    path.parent.mkdir()
    serve(bash("touch there; sleep 99"), *[DONE] * 3)
    process = ralph.start("go", "--add-dir", str(path.parent))
    wait_until((ralph.cwd / "there").exists)
    here, ralph.cwd = ralph.cwd, tmp_path / "elsewhere"
    ralph.cwd.mkdir()
    path.write_text(MODEL)
    refused = ralph("again")
    assert (refused.code, "still runs it" in refused.stderr) == (78, True)
    path.unlink()
    assert ralph("again").code == 0
    process.terminate()
    process.communicate()
    ralph.cwd = here
    path.write_text(MODEL)
    assert ralph("again").code == 0
