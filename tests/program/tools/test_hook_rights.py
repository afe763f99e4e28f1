"""The rights that hooks have and commands do not, in whole runs: by `[hooks]` in the user's own settings file alone."""

from __future__ import annotations

import json
import os
import shlex
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from ralph.machine.own_programs import search_outside
from ralph.permissions.claude_settings import HookCommand
from ralph.run.hooks import doubts, why_not_outside
from ralph.sandbox.box_plan import BoxPlan
from ralph.sandbox.detection import no_means
from tests.program.model_answers import DONE, bash, calls, results
from tests.program.tools.test_command_hooks import hooks, start
from tests.rows import every_row

pytestmark = pytest.mark.sandboxed

DENIES = "the sandbox denies writing"
REMEDY = "give hooks more by [hooks] write in your config.toml, or run them outside (hooks.outside)"


def home(ralph) -> Path:
    return Path(ralph.environment["HOME"])


def test_a_hook_that_the_sandbox_breaks_says_so_with_the_way_out(ralph, serve) -> None:
    server = serve(bash("touch ran"), DONE)
    settings = hooks("PreToolUse", "cat >> ~/calls.log")
    settings["hooks"] |= hooks("Stop", "echo done >> ~/done.log")["hooks"]
    ran = start(ralph, settings).having(0)
    [(denied, is_error)] = results(server, 1)
    assert is_error
    assert denied.startswith("PreToolUse:Bash hook error: cat: it ended with exit 1: ")
    for log, said in (("calls.log", denied), ("done.log", ran.stderr)):
        assert f"{DENIES} {home(ralph)}/{log}; " in said
        assert REMEDY in said
    assert "[notice] the Stop hook failed: echo: it ended with exit 1: " in ran.stderr


def test_a_hook_that_hides_what_the_sandbox_denied_is_named_once(ralph, serve) -> None:
    serve(bash("true"), bash("echo 2"), DONE)
    ran = start(ralph, hooks("PreToolUse", "cat >> ~/calls.log; exit 0")).having(0)
    assert ran.stderr.count("the PreToolUse hook (cat) says no failure, but the sandbox denies writing") == 1


def test_hooks_write_where_the_users_file_says_and_commands_do_not(ralph, serve) -> None:
    log, folder = home(ralph) / "done.log", home(ralph) / "logs"
    folder.mkdir()
    ralph.user_file.write_text(f'[hooks]\nwrite = ["~/done.log", "{folder}"]\n')
    server = serve(bash(f"echo x >> {log}; echo x > {folder}/y"), DONE)
    ran = start(
        ralph, hooks("Stop", 'echo done >> ~/done.log; echo "$ANTHROPIC_API_KEY" > ~/logs/key')
    ).having(0)
    assert "hook failed" not in ran.stderr
    assert (log.read_text(), (folder / "key").read_text(), (folder / "y").exists()) == ("done\n", "\n", False)
    assert DENIES in results(server, 1)[0][0]


def test_what_is_missing_is_made_as_a_directory_where_its_name_has_no_ending(ralph, serve) -> None:
    """azet-guard 0.2.0 and agent-file-claim 0.1.0 make a hidden directory in the home, which a file of that name breaks."""
    ralph.user_file.write_text('[hooks]\nwrite = ["~/.guard", "~/logs/", "~/.guard.log"]\n')
    serve(DONE)
    ran = start(
        ralph,
        hooks("Stop", "mkdir -p ~/.guard ~/logs && touch ~/.guard/x ~/logs/x && echo x >> ~/.guard.log"),
    ).having(0)
    assert "hook failed" not in ran.stderr
    assert all(
        (home(ralph) / name).read_text() == text
        for name, text in ((".guard/x", ""), ("logs/x", ""), (".guard.log", "x\n"))
    )


def test_the_hooks_of_a_loops_iterations_write_there_too(ralph, serve) -> None:
    mine = home(ralph) / ".claude" / "settings.json"
    mine.parent.mkdir()
    mine.write_text(json.dumps(hooks("Stop", "echo done >> ~/done.log")))
    ralph.user_file.write_text('[hooks]\nwrite = ["~/done.log"]\n')
    serve(bash("echo x > new"), DONE)
    ralph("loop", "go", "--max-iterations", "1", code=0)
    assert (home(ralph) / "done.log").read_text() == "done\n"


def test_hooks_connect_to_the_sockets_of_the_users_file_alone(ralph, serve, tmp_path) -> None:
    path = str(home(ralph) / "bell.sock")
    with socket.socket(socket.AF_UNIX) as bell:
        bell.bind(path)
        bell.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
        ring = hooks(
            "Stop", f"python3 -c {shlex.quote(code)} || {{ echo no answer from bell.sock >&2; exit 1; }}"
        )
        serve(DONE, DONE, DONE)
        alone = start(ralph, ring)
        assert (
            "no answer from bell.sock; the sandbox gives hooks no sockets of other programs" in alone.stderr
        )
        ralph.user_file.write_text(f'[hooks]\nsockets = ["{path}"]\n')
        given = start(ralph, ring)
    unheard = start(ralph, ring)
    assert (alone.code, given.code, unheard.code) == (0, 0, 0)
    assert "hook failed" not in given.stderr
    assert "no answer from bell.sock" in unheard.stderr
    assert "gives hooks no sockets" not in unheard.stderr, "they have this one"


def test_hooks_outside_have_no_sandbox_and_no_credentials(ralph, serve) -> None:
    ralph.user_file.write_text("[hooks]\noutside = true\n")
    ralph.environment["PATH"] = f"{ralph.cwd}/bin:{ralph.environment['PATH']}"
    (ralph.cwd / "bin").mkdir()
    server = serve(bash("touch ~/mine"), DONE)
    start(ralph, hooks("Stop", 'echo "$ANTHROPIC_API_KEY" > ~/done; printf "%s" "$PATH" > ~/path')).having(0)
    assert (home(ralph) / "done").read_text() == "\n"
    assert str(ralph.cwd) not in (home(ralph) / "path").read_text()
    assert not (home(ralph) / "mine").exists()
    assert DENIES in results(server, 1)[0][0]


OUTSIDE = """
"$CLAUDE_PROJECT_DIR"/check.sh
${CLAUDE_PROJECT_DIR}/check.sh
./check.sh --now
bash check.sh
timeout 5 python3 ./check.sh
true && sh -c './check.sh'
~/link
cd $CLAUDE_PROJECT_DIR; source check.sh
only-there
env -C tools sh in
python3 tools
sh script
sh $PROJ/check.sh
PATH=$CLAUDE_PROJECT_DIR/bin:$PATH; only-there
env PATH=.venv/bin:$PATH true
cat >> $CLAUDE_PROJECT_DIR/logs/calls.log
cat > calls.log
cat >> $PROJ/calls.log
cd tools && cat >> calls.log
sh -e later.sh || true
if [ -x $CLAUDE_PROJECT_DIR/later ]; then $CLAUDE_PROJECT_DIR/later; fi
cd $CLAUDE_PROJECT_DIR/tools && python3 later.py || true
.venv/bin/python ~/hook.js || true
flock /dev/null sh later.sh || true
sh -o errexit later.sh || true
node --require ./later.js ~/hook.js || true
bash -O extglob script
uv run --script script
uv run -q script
pipx run script
""".strip().splitlines()
# What a hook outside may do with the work, beside a file `package.json` there.
DATA = """
touch ~/ran; node ~/hook.js $CLAUDE_PROJECT_DIR || true
date >> ${TARGET:-/dev/null}; date >> $LOG && touch ~/ran
cd ~ && cat >> new.log && touch ran
cd ~ && sh mine.sh
find . -path ./later -prune; perl -e 'print 1/2'; touch ~/ran
test -x .venv/bin/python || [ -x .venv/bin/python ] || [[ -x .venv/bin/python ]] || touch ~/ran
test -e $CLAUDE_PROJECT_DIR/later || sh -c 'touch ~/ran'
echo "2>1" > /dev/null 2>&1; date >> ~/ran
""".strip().splitlines()


KEYS = ["outside = true", 'write = ["~/ran"]', 'sockets = ["~/bell.sock"]']


@every_row(("command", "is_refused"), [*((one, True) for one in OUTSIDE), *((one, False) for one in DATA)])
def test_a_hook_with_more_rights_runs_and_writes_nothing_that_commands_may_change(
    tmp_path_factory, command, is_refused
) -> None:
    place = tmp_path_factory.mktemp("place")
    work, mine = place / "work", place / "home"
    for path in (work / "tools", work / "bin", mine):
        path.mkdir(parents=True)
    for name in "check.sh tools/in tools/__main__.py tools/calls.log script package.json".split():
        (work / name).touch(0o755)
    for path in (mine / "hook.js", mine / "mine.sh"):
        path.touch()
    for link in (work / "bin/only-there", mine / "link"):
        link.symlink_to(work / "check.sh")
    path = f"{work}/bin:{os.environ['PATH']}" if is_refused else os.environ["PATH"]
    environment = {"PATH": path, "HOME": str(mine), "PROJ": str(work), "LOG": f"{mine}/log"}
    why = why_not_outside(command, work, environment, search_outside(environment, (work,)))
    assert (why is not None) is is_refused, why


@pytest.mark.parametrize("key", KEYS)
def test_a_hook_with_more_rights_whose_program_commands_may_change_is_refused_before_anything_runs(
    ralph, serve, key
) -> None:
    script = ralph.cwd / "check.sh"
    script.write_text("#!/bin/sh\ntouch ~/ran\n")
    script.chmod(0o755)
    server = serve(DONE)
    ralph.user_file.write_text(f"[hooks]\n{key}\n")
    ran = start(ralph, hooks("Stop", OUTSIDE[0]))
    assert (ran.code, server.request_count) == (78, 0)
    assert "does not run with what [hooks] in your config.toml gives it: " in ran.stderr
    assert not (home(ralph) / "ran").exists()
    ralph.user_file.write_text("")
    assert start(ralph, hooks("Stop", OUTSIDE[0])).code == 0, "with the rights of commands it may"


def test_a_hook_with_more_rights_runs_no_program_of_the_works_environment(ralph, serve) -> None:
    place, log = ralph.cwd / ".venv" / "bin", home(ralph) / "logs"
    place.mkdir(parents=True)
    log.mkdir()
    ralph.user_file.write_text('[hooks]\nwrite = ["~/logs"]\n')
    ralph.environment |= {"PATH": f"{place}:{ralph.environment['PATH']}", "BASH_ENV": f"{ralph.cwd}/rc"}
    ralph.environment["LESSOPEN"] = f"|{ralph.cwd}/.venv/bin/cat"
    made = "printf '#!/bin/sh\\ntouch ~/logs/theirs' > .venv/bin/cat; chmod +x .venv/bin/cat; echo 'touch ~/logs/too' > rc"
    serve(bash(made), bash("true"), DONE)
    ran = start(
        ralph,
        hooks("PreToolUse", 'cat > ~/logs/mine; bash -c true; test -z "$LESSOPEN" || touch ~/logs/named'),
    ).having(0)
    assert "hook failed" not in ran.stderr
    assert [path.name for path in log.iterdir()] == ["mine"]


def test_a_hook_outside_takes_no_module_from_the_work(ralph, serve) -> None:
    """The name of the module is one that Python's library imports."""
    serve(bash('echo \'open("taken", "w")\' > colorsys.py'), DONE)
    ralph.user_file.write_text("[hooks]\noutside = true\n")
    code = "__import__('color' + 'sys'); open(__import__('os').environ['HOME'] + '/ran', 'w')"
    start(ralph, hooks("Stop", f"python3 -c {shlex.quote(code)}")).having(0)
    assert (home(ralph) / "ran").exists()
    assert not (ralph.cwd / "taken").exists()


@pytest.mark.parametrize("key", [KEYS[0], KEYS[1]])
def test_a_hook_with_more_rights_does_not_run_what_a_command_has_made_since(ralph, serve, key) -> None:
    ralph.user_file.write_text(f"[hooks]\n{key}\n")
    planted = calls(("Write", {"file_path": "check.sh", "content": "echo x > ~/ran\n"}))
    server = serve(planted, bash("true"), DONE)
    settings = hooks("PreToolUse", "cat check.sh > ~/ran || true", "Bash")
    settings["hooks"] |= hooks("Stop", "cat check.sh > ~/ran || true")["hooks"]
    ran = start(ralph, settings).having(0)
    assert "check.sh is found through" in results(server, 2)[0][0]
    assert "[notice] the Stop hook failed: cat check.sh: it does not run with what [hooks]" in ran.stderr
    made = home(ralph) / "ran"
    assert not (made.exists() and made.read_bytes()), "it is at most made for hooks, and empty"


@pytest.mark.parametrize("key", ["write = ['/x']", "sockets = ['/x']", "outside = true"])
def test_only_the_users_own_file_gives_hooks_more(ralph, ralph_here, serve, key) -> None:
    server = serve(DONE)
    text = f"[hooks]\n{key}\n"
    (ralph.cwd / "ralph.toml").write_text(text)
    here = ralph_here("go")
    (ralph.cwd / "ralph.toml").rename(ralph.cwd.parent / "named.toml")
    named = ralph_here("go", "--config", "../named.toml")
    assert (here.code, named.code, server.request_count) == (78, 78, 0)
    assert "'hooks." in here.stderr
    assert "--config" not in here.stderr
    assert "is allowed only in your own settings file: put it in" in named.stderr


def test_a_place_for_hooks_that_cannot_be_made_is_refused(ralph, serve) -> None:
    server = serve(DONE)
    ralph.user_file.write_text('[hooks]\nwrite = ["~/missing/done.log"]\n')
    ran = start(ralph, hooks("Stop", "true"))
    assert (ran.code, server.request_count) == (78, 0)
    assert f"hooks.write: there is no directory for {home(ralph)}/missing/done.log" in ran.stderr


def test_a_hook_that_names_a_file_in_the_machines_tmp_is_told() -> None:
    private = BoxPlan(replace(no_means("test"), bwrap="/usr/bin/bwrap"))
    commands = ("date >> /tmp/a.log", "date >> ~/tmp/b.log", "echo $X/tmp/c")
    asked = [HookCommand("Stop", "", command, 60) for command in commands]

    def told(plan: BoxPlan, *roots: str) -> list[str]:
        return [fact for fact, _ in doubts(asked, plan, roots, has_more=False)]

    said = "the Stop hook (date) names /tmp/a.log, and hooks have a /tmp that goes with the run"
    assert told(private) == [said]
    assert told(replace(private, write=("/tmp/a.log",))) == []
    assert told(private, "/tmp") == []
    assert told(replace(private, means=no_means("test"))) == [], "without namespaces, /tmp is the machine's"


def test_doctor_says_what_hooks_may_do_and_miss_and_runs_none(ralph, ralph_here) -> None:
    mine = home(ralph) / ".claude" / "settings.json"
    mine.parent.mkdir()
    (ralph.cwd / "check.sh").write_text("")
    sandboxed = "1 run in the sandbox of commands"
    refused = "does not run with what [hooks] in your config.toml gives it"
    missing = f"the Stop hook (touch ~/ran) names {home(ralph)}/bin/missing"
    for command, settings, told in (
        ("touch ~/ran; ~/bin/missing --now", "", (sandboxed, missing)),
        ("touch ~/ran", 'write = ["~/done.log"]', (f"{sandboxed}, with {home(ralph)}/done.log",)),
        ("touch ~/ran", "outside = true", ("1 run without a sandbox",)),
        ("sh ./check.sh", "outside = true", (f"the Stop hook (sh ./check.sh) {refused}",)),
    ):
        mine.write_text(json.dumps(hooks("Stop", command)))
        ralph.user_file.write_text(f"[hooks]\n{settings}\n")
        said = ralph_here("doctor").stdout
        assert [one for one in told if one not in said] == []
    assert not (home(ralph) / "ran").exists()
    assert not (home(ralph) / "done.log").exists()
