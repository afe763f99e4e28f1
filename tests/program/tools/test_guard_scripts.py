"""Scripts of the work that decide about calls, because a hook starts them: the model does not decide in their place."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.permissions.claude_settings import HookCommand
from ralph.places.own_commands import digest_of
from ralph.run.hooks import only_as_it_was
from ralph.tools.hook_command import HookEnding
from tests.patience import wait_until
from tests.program.conftest import loop_lines
from tests.program.model_answers import DONE, bash, calls, results, write
from tests.program.namespaces import forbidding_namespaces, needs_namespaces
from tests.program.sandbox.test_sandbox import needs_landlock
from tests.program.tools.test_command_hooks import hooks

if TYPE_CHECKING:
    from tests.program.conftest import Ralph

pytestmark = pytest.mark.sandboxed

GUARD = "#!/bin/sh\ngrep -q forbidden && { echo not today >&2; exit 2; }\nexit 0\n"
OPEN = "#!/bin/sh\nexit 0\n"
SCRIPT = ".claude/hooks/guard.sh"
OTHER = f"printf %s {shlex.quote(OPEN)}"
CHANGES = {
    "Write": write(SCRIPT, OPEN),
    "a command": bash(f"{OTHER} > {SCRIPT}"),
    "another file in its place": bash(f"{OTHER} > n; chmod +x n; mv -f n {SCRIPT}"),
    "another directory": bash(
        f"mv .claude old; mkdir -p .claude/hooks; {OTHER} > {SCRIPT}; chmod +x {SCRIPT}"
    ),
}
PYTHON_GUARD = (
    "python3 -c 'import json, sys; sys.exit(2 if \"forbidden\" in str(json.load(sys.stdin)) else 0)'"
)
PYTHON_OPEN = "import os; os._exit(0)"
FOUND_IN_THE_WORK = {
    "a program": ("PATH", "bin/grep", "grep -q forbidden && exit 2; exit 0", "#!/bin/sh\nexit 1\n"),
    "a module": ("PYTHONPATH", "src/json.py", PYTHON_GUARD, PYTHON_OPEN),
    "a module of a statement": ("", "json.py", PYTHON_GUARD, PYTHON_OPEN),
    "a module, for a Python before 3.11": (
        "",
        "json.py",
        f"env -u PYTHONSAFEPATH {PYTHON_GUARD}",
        PYTHON_OPEN,
    ),
    "a module of a statement in a script": ("", "json.py", "~/.claude/hooks/guard.sh", PYTHON_OPEN),
}
"""For each: the variable that names the folder, the file that a command makes, the hook, and the file's text."""
CONFINED = [
    pytest.param("namespaces", marks=needs_namespaces),
    pytest.param("landlock", marks=needs_landlock),
]
LEVELS = [*CONFINED, "off"]


def ran_at(ralph: Ralph, level: str, settings: str) -> None:
    words = ("go", "--settings", settings, *(("--sandbox", "off") if level == "off" else ()))
    ralph.finish(ralph.start(*words, **(forbidding_namespaces() if level == "landlock" else {}))).having(0)


def guarded(ralph) -> str:
    """Makes the script, and the settings with the hook. tests/places/test_own_commands.py has more lines of hooks."""
    script = ralph.cwd / SCRIPT
    script.parent.mkdir(parents=True)
    script.write_text(GUARD)
    script.chmod(0o755)
    return json.dumps(hooks("PreToolUse", f"$CLAUDE_PROJECT_DIR/{SCRIPT}", "Bash"))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("level", LEVELS)
def test_what_the_model_changes_in_a_script_that_guards_has_no_effect(ralph, serve, level, change) -> None:
    settings = guarded(ralph)
    server = serve(CHANGES[change], bash("touch forbidden"), DONE)
    ran_at(ralph, level, settings)
    [(refused, is_error)] = results(server, 2)
    assert is_error
    assert not (ralph.cwd / "forbidden").exists()
    if level == "off" and change != "Write":
        assert f"{SCRIPT}, which decides about calls, has changed since the run began" in refused
    else:
        assert "not today" in refused
        assert (ralph.cwd / SCRIPT).read_text() == GUARD


@pytest.mark.parametrize(
    ("level", "planted"),
    [
        *(("off", planted) for planted in FOUND_IN_THE_WORK),
        *(pytest.param(*level.values, "a program", marks=level.marks) for level in CONFINED),
    ],
)
def test_a_guard_of_the_users_finds_nothing_in_the_work_first(ralph, serve, level, planted) -> None:
    variable, path, guard, text = FOUND_IN_THE_WORK[planted]
    if variable:
        named = (str((ralph.cwd / path).parent), *filter(None, [ralph.environment.get(variable)]))
        ralph.environment[variable] = os.pathsep.join(named)
    own = Path(ralph.environment["HOME"], ".claude/hooks/guard.sh")
    own.parent.mkdir(parents=True)
    own.write_text(f"#!/bin/sh\n{PYTHON_GUARD}\n")
    own.chmod(0o755)
    plants = f"mkdir -p bin src; printf %s {shlex.quote(text)} > {path}; chmod +x {path}"
    server = serve(bash(plants), bash("touch forbidden"), DONE)
    ran_at(ralph, level, json.dumps(hooks("PreToolUse", guard, "Bash")))
    assert (ralph.cwd / path).exists()
    [(_, is_error)] = results(server, 2)
    assert is_error
    assert not (ralph.cwd / "forbidden").exists()


@pytest.mark.parametrize(
    ("event", "variable"),
    [("PreToolUse", "XDG_CACHE_HOME"), ("PreToolUse", "TMPDIR"), ("PostToolUse", "TMPDIR")],
)
@pytest.mark.parametrize("level", CONFINED)
def test_a_hook_that_decides_or_has_more_rights_takes_nothing_from_the_caches_and_temporary_files_of_commands(
    ralph, serve, level, event, variable
) -> None:
    if event == "PostToolUse":  # it decides about nothing, and may write where commands may not
        ralph.user_file.write_text("[hooks]\nwrite = ['~/log']\n")
    hook = f"test -e \"${variable}/planted\" && exit 0; echo 'not taken' >&2; exit 2"
    server = serve(bash(f'touch "${variable}/planted"'), bash("echo more"), DONE)
    ran_at(ralph, level, json.dumps(hooks(event, hook, "Bash(echo:*)")))
    assert "not taken" in results(server, 2)[0][0]


@pytest.mark.parametrize("write", [None, "~/.cache/uv"])
def test_uv_runs_a_guard_without_a_cache_or_with_the_users_own(ralph, serve, write) -> None:
    if write is not None:
        Path(ralph.environment["HOME"], ".cache/uv").mkdir(parents=True)
        ralph.user_file.write_text(f"[hooks]\nwrite = ['{write}']\n")
    hook = f'test "$UV_NO_CACHE" = "{"" if write else 1}"'
    server = serve(bash("echo allowed"), DONE)
    ralph("go", "--settings", json.dumps(hooks("PreToolUse", hook)), code=0)
    assert "allowed" in results(server)[0][0]


@pytest.mark.parametrize("level", CONFINED)
def test_hooks_have_temporary_files_of_their_own_in_common(ralph, serve, level) -> None:
    both = {"hooks": {**hooks("PreToolUse", 'touch "$TMPDIR/began"')["hooks"]}}
    both["hooks"] |= hooks("PostToolUse", 'test -e "$TMPDIR/began" || exit 2')["hooks"]
    server = serve(bash('rm -rf "$TMPDIR"/*; chmod 0 "$TMPDIR"'), bash("echo more"), DONE)
    words = ("go", "--settings", json.dumps(both))
    ralph.finish(ralph.start(*words, **(forbidding_namespaces() if level == "landlock" else {}))).having(0)
    assert results(server, 2) == [("more", False)]


STRICT = ("--sandbox", "strict")


@needs_landlock
@pytest.mark.parametrize(
    ("event", "has_more", "words"),
    [
        ("UserPromptSubmit", False, STRICT),
        ("PreToolUse", False, STRICT),
        ("PreToolUse", True, ()),
        ("PostToolUse", True, STRICT),
        ("Stop", True, STRICT),
        ("Stop", False, ()),
    ],
)
def test_what_a_hook_changes_and_cannot_be_undone_is_told_at_the_end_and_ends_a_strict_run(
    ralph, checkout, serve, words, has_more, event
) -> None:
    if has_more:
        ralph.user_file.write_text("[hooks]\nwrite = ['~/log']\n")
    planted = ralph.cwd / ".git" / "hooks" / "pre-commit"
    planted.parent.mkdir(exist_ok=True)
    os.mkfifo(planted)
    # A hook with more rights may not name the work.
    script = Path(ralph.environment["HOME"], ".claude/hooks/hook.py")
    script.parent.mkdir(parents=True)
    script.write_text(
        "import os, pathlib\npath = '.git/hooks/pre-commit'\nif pathlib.Path(path).is_fifo():\n"
        "    os.unlink(path)\n    open(path, 'w').write('y')\n"
    )
    serve(bash("echo 1 >> work"), bash("echo 2 >> work"), DONE)
    settings = json.dumps(hooks(event, "python3 ~/.claude/hooks/hook.py"))
    ran = ralph.finish(ralph.start("go", "--settings", settings, *words, **forbidding_namespaces()))
    assert "could not be undone: .git/hooks/pre-commit (it was not a file). They can make" in ran.stderr
    assert ran.code == (78 if words else 0)
    ended_at = {"UserPromptSubmit": 0, "PreToolUse": 0, "PostToolUse": 1}.get(event, 2) if words else 2
    work = ralph.cwd / "work"
    assert (len(work.read_text().split()) if work.exists() else 0) == ended_at


@pytest.mark.parametrize("level", CONFINED)
def test_hooks_run_while_a_command_in_the_background_changes_protected_files(ralph, serve, level) -> None:
    endless = "while :; do mkdir -p .claude; echo {} > .claude/settings.json; touch began; sleep 0.01; done"
    waits = "until test -e began; do sleep 0.05; done"
    background = calls(("Bash", {"command": endless, "run_in_background": True}))
    server = serve(background, bash(waits), bash("echo more"), DONE)
    words = ("go", "--settings", json.dumps(hooks("PreToolUse", "exit 0")))
    ralph.finish(ralph.start(*words, **(forbidding_namespaces() if level == "landlock" else {}))).having(0)
    assert "more" in results(server, 3)[0][0]
    assert not (ralph.cwd / ".claude/settings.json").exists()


@pytest.mark.parametrize("level", CONFINED)
@pytest.mark.parametrize("options", [(), ("--net", "off")])
def test_commands_neither_read_nor_write_the_temporary_files_of_hooks(ralph, serve, level, options) -> None:
    state = Path(ralph.environment["HOME"], ".local/state/ralph")
    everywhere = f"{{{state},/tmp,/var/tmp,$TMPDIR,${{TMPDIR%/*}}}}/ralph-tmp-*/kept"
    server = serve(bash("echo first"), bash(f"cat {everywhere}; echo x | tee {everywhere}; echo end"), DONE)
    hook = 'test -e "$TMPDIR/kept" && cat "$TMPDIR/kept" >> told; echo secret > "$TMPDIR/kept"'
    words = ("go", *options, "--settings", json.dumps(hooks("PreToolUse", hook)))
    ralph.finish(ralph.start(*words, **(forbidding_namespaces() if level == "landlock" else {}))).having(0)
    [(printed, _)] = results(server, 2)[-1:]
    assert "end" in printed
    assert "secret" not in printed
    assert (ralph.cwd / "told").read_text() == "secret\n"
    assert not [*state.glob("ralph-tmp-*")]


@pytest.mark.ordinary_user
@needs_landlock
def test_where_the_state_directory_cannot_be_written_commands_do_not_read_the_files_of_hooks(
    ralph, serve, tmp_path
) -> None:
    state = Path(ralph.environment["HOME"], ".local/state/ralph")
    state.mkdir(parents=True)
    state.chmod(0o500)
    ralph.environment["TMPDIR"] = str(tmp_path / "t")
    (tmp_path / "t").mkdir()
    everywhere = f"{tmp_path}/t/{{.,ralph-sessions-*}}/ralph-tmp-*/kept /tmp/ralph-tmp-*/kept"
    server = serve(bash("echo first"), bash(f"cat {everywhere}; echo end"), DONE)
    settings = json.dumps(hooks("PreToolUse", 'echo secret >"$TMPDIR/kept"; echo x >>told'))
    words = ("go", "--session-dir", str(tmp_path / "s"), "--settings", settings)
    ralph.finish(ralph.start(*words, **forbidding_namespaces())).having(0)
    printed = results(server, 2)[-1][0]
    assert "end" in printed
    assert "secret" not in printed
    assert (ralph.cwd / "told").exists()


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_a_guard_gets_no_python_environment_of_the_work(ralph, serve, variable) -> None:
    ralph.environment[variable] = str(ralph.cwd / ".venv")
    server = serve(bash("echo allowed"), DONE)
    hook = (
        f'test -z "${variable}" && case :$MISE_IGNORED_CONFIG_PATHS: in *:{ralph.cwd}:*) ;; *) exit 2;; esac'
    )
    ralph("go", "--settings", json.dumps(hooks("PreToolUse", hook)), code=0)
    assert "allowed" in results(server)[0][0]


@pytest.mark.parametrize(
    ("hook", "runner"),
    [("bun ~/g.ts", "bun"), ("uv run ~/g.py", "uv"), ("uv run --script ~/g.py", ""), ("cat uv", "")],
)
def test_a_notice_names_a_runner_that_takes_code_of_the_project(ralph, serve, hook, runner) -> None:
    serve(DONE)
    ran = ralph("go", "--settings", json.dumps(hooks("PreToolUse", hook)), code=0)
    assert ("takes code and settings of the project" in ran.stderr) is bool(runner)
    assert f"starts {runner}" in ran.stderr or not runner


@pytest.mark.parametrize("is_outside", [True, False])
def test_a_notice_names_a_runner_of_a_hook_that_decides_nothing_only_if_it_runs_outside(
    ralph, serve, is_outside
) -> None:
    serve(DONE)
    ralph.user_file.write_text(f"[hooks]\noutside = {str(is_outside).lower()}\n")
    both = {
        "hooks": {**hooks("PostToolUse", "npx prettier")["hooks"], **hooks("Stop", "git status")["hooks"]}
    }
    ran = ralph("go", "--settings", json.dumps(both), code=0)
    assert ("starts npx, which takes code" in ran.stderr) is is_outside
    assert ("starts git, which takes code" in ran.stderr) is is_outside


@pytest.mark.parametrize("is_exchanged", [True, False])
def test_a_script_that_is_exchanged_while_a_hook_runs_decides_nothing(tmp_path, is_exchanged) -> None:
    script = tmp_path / "guard"
    script.write_text(GUARD)
    began = script.stat().st_ctime_ns

    def is_good_again() -> bool:
        script.write_text(OPEN)
        script.write_text(GUARD)
        return bool(script.stat().st_ctime_ns != began)

    def run(*_: object) -> HookEnding:
        if is_exchanged:  # as by a command in the background
            wait_until(is_good_again)
        return HookEnding(0)

    run_hook = only_as_it_was(run, {str(script): digest_of(str(script))})
    ending = run_hook(HookCommand("PreToolUse", "", str(script), 1), b"", "x")
    assert ("has changed since the run began" in ending.problem) is is_exchanged


def test_what_such_a_script_starts_is_guarded_too(ralph, serve) -> None:
    settings = guarded(ralph)
    (ralph.cwd / "rules.sh").write_text(GUARD)
    (ralph.cwd / SCRIPT).write_text("#!/bin/bash\n. ./rules.sh\n")
    server = serve(bash(f"{OTHER} > rules.sh"), bash("touch forbidden"), DONE)
    assert ralph("go", "--settings", settings).code == 0
    assert "not today" in results(server, 2)[0][0]


def test_a_script_that_is_missing_cannot_be_made_by_the_model(ralph, serve) -> None:
    settings = guarded(ralph)
    (ralph.cwd / SCRIPT).unlink()
    server = serve(write(SCRIPT, OPEN), bash("touch forbidden"), DONE)
    assert ralph("go", "--settings", settings).code == 0
    assert results(server, 1)[0][1]
    assert not (ralph.cwd / "forbidden").exists()


def test_data_of_a_hook_and_scripts_that_guard_nothing_are_the_models(ralph, serve) -> None:
    settings = {"hooks": {**hooks("PreToolUse", "cat log words > /dev/null; cat >> log")["hooks"]}}
    settings["hooks"] |= hooks("PostToolUse", f"./{SCRIPT}")["hooks"]
    guarded(ralph)
    for name in ("log", "words"):
        (ralph.cwd / name).write_text("1\n")
    server = serve(write("words", "2\n"), bash(f"{OTHER} > {SCRIPT}; echo 2 > log"), DONE)
    ralph("go", "--settings", json.dumps(settings), code=0)
    assert [one for nth in (1, 2) for _, one in results(server, nth)] == [False, False]
    assert (ralph.cwd / SCRIPT).read_text() == OPEN


@pytest.mark.parametrize("by", ["an iteration", "the gate"])
@pytest.mark.parametrize("level", LEVELS[::2])
def test_in_a_loop_the_script_counts_as_it_was_when_the_loop_began(ralph, iterations, level, by) -> None:
    own = Path(ralph.environment["HOME"], ".claude", "settings.json")
    own.parent.mkdir(exist_ok=True)
    own.write_text(guarded(ralph))
    change = f"{OTHER} > {SCRIPT}"
    (ralph.cwd / "gate.sh").write_text(change if by == "the gate" else "true")
    iterations([bash(change if by == "an iteration" else "true")], [bash("touch forbidden")])
    off = ("--sandbox", "off") if level == "off" else ()
    ran = ralph("loop", "go", "--gate", "sh gate.sh; true", "--max-iterations", "2", *off, code=0)
    assert len([one for one in loop_lines(ran) if one.startswith("iteration ")]) >= 2
    assert not (ralph.cwd / "forbidden").exists()
    assert ((ralph.cwd / SCRIPT).read_text() == GUARD) is (level != "off")
