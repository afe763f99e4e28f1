"""The sandbox of commands, searches and a loop's check, in whole runs. Nothing runs if a required protection is
missing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine.files.trees import remove_tree
from ralph.mock_api import Turn
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.patience import wait_until
from tests.program.conftest import loop_lines
from tests.program.model_answers import DONE, bash, calls, results
from tests.program.namespaces import MEANS, forbidding_namespaces, needs_namespaces

if TYPE_CHECKING:
    from tests.program.conftest import Ralph

LEVEL = plan_box(SandboxSettings(), dict(os.environ), ()).level
needs_landlock = pytest.mark.skipif(LEVEL.name == "none", reason="this kernel has no Landlock")


linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

pytestmark = pytest.mark.sandboxed


def secret(ralph: Ralph) -> Path:
    place = Path(ralph.environment["HOME"], ".ssh", "id_test")
    place.parent.mkdir()
    place.write_text("private\n")
    return place


def settings_of_repository(ralph: Ralph, settings: dict[str, Any]) -> Path:
    path = ralph.cwd / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(json.dumps(settings))
    return path


def killed_during(ralph: Ralph, *words: str) -> None:
    """Kills a run as soon as its command has made the file `there`."""
    process = ralph.start(*words)
    wait_until((ralph.cwd / "there").exists)
    process.kill()
    process.communicate()


# --- A run


@needs_landlock
def test_what_a_rule_denies_to_read_commands_cannot_read_by_other_words(ralph, serve) -> None:
    home = Path(ralph.environment["HOME"])
    for name in ("plans", "bin", "work"):
        (home / name).mkdir()
        (home / name / "x").write_text(f"text of {name}\n")
    (ralph.cwd / "show.sh").write_text("cat ~/plans/x; cat ~/bin/x")
    denied = ("--disallowedTools", "Read(~/plans/**)", "Read(~/**/none)")
    server = serve(bash("sh show.sh"), DONE)
    assert ralph("go", *denied).code == 0
    [(told, _)] = results(server, 1)
    assert "text of bin" in told
    assert "text of plans" not in told


@pytest.mark.skipif(LEVEL.name != "namespaces", reason="no namespaces can be made here")
def test_with_namespaces_what_a_rule_denies_to_read_in_the_work_is_masked_for_commands(ralph, serve) -> None:
    files = (".env", "sub/.env", "secrets/key", "secrets/deep/key", "open", "keys/a.pem", ".git/x.pem")
    for name in files:
        (ralph.cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (ralph.cwd / name).write_text(f"text of {name}\n")
    git = "git -c user.name=x -c user.email=x@example.com"
    made = f"git init -q; {git} add -A; {git} commit -qm x"
    subprocess.run(["sh", "-ec", made], cwd=ralph.cwd, check=True)
    change = "for name in .env secrets/key secrets; do mv $name there; rm -rf $name; echo new > $name; chmod 777 $name; done"
    commit = f"{git} add -A; {git} add -A secrets; {git} commit -qm y; false"
    rules = ("Read(./.env)", "Read(./secrets/**)", "Read(*.pem)", "Read(./missing/**)")
    (ralph.cwd / "show.sh").write_text(f"cat {' '.join(files)}; {change}; {commit}")
    server = serve(bash("sh show.sh"), bash("mv sub other"), DONE)
    assert ralph("go", *(word for rule in rules for word in ("--disallowedTools", rule))).code == 0
    [(told, _)] = results(server, 1)
    assert [name for name in files if f"text of {name}" in told] == ["open", ".git/x.pem"]
    assert "the sandbox denies reading " in told
    assert "mv: cannot move 'sub' to 'other': Device or resource busy" in results(server, 2)[0][0]
    for name in files:
        assert (ralph.cwd / name).read_text() == f"text of {name}\n"
    removed = ["git", "log", "--diff-filter=D", "--name-only", "--format="]
    assert subprocess.check_output(removed, cwd=ralph.cwd) == b"", (
        "git takes no masked file for a removed one"
    )
    assert list(Path(ralph.environment["TMPDIR"]).iterdir()) == []


@pytest.mark.skipif(LEVEL.name != "namespaces", reason="no namespaces can be made here")
def test_with_namespaces_what_a_rule_denies_to_edit_in_the_work_is_read_only_for_commands(
    ralph, serve
) -> None:
    files = ("lock.json", "infra/a/main.tf", "infra/b", "secrets/key", "open")
    for name in files:
        (ralph.cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (ralph.cwd / name).write_text(f"text of {name}\n")
    change = "rm -rf $name; mv $name there; echo new > $name; chmod 777 $name; touch $name/x"
    (ralph.cwd / "change.sh").write_text(f"for name in {' '.join(files)} infra; do {change}; done")
    (ralph.cwd / "move.sh").write_text("mv infra other")
    rules = ("Edit(lock.json)", "Edit(./infra/**)", "Edit(./secrets/key)", "Read(./secrets/**)")
    server = serve(bash("sh change.sh"), bash("cat lock.json infra/b; sh move.sh"), DONE)
    assert ralph("go", *(word for rule in rules for word in ("--disallowedTools", rule))).code == 0
    [(told, _)] = results(server, 1)
    assert f"[the sandbox denies changing {ralph.cwd}/" in told
    told = results(server, 2)[0][0]
    assert "text of lock.json" in told
    assert "mv: cannot move 'infra' to 'other': Device or resource busy" in told
    for name in files[:4]:
        assert (ralph.cwd / name).read_text() == f"text of {name}\n"
    assert (ralph.cwd / "open").read_text() == "new\n"


@needs_landlock
def test_what_commands_can_read_although_a_rule_denies_it_is_a_notice_of_the_run_and_of_doctor(
    ralph, serve
) -> None:
    (ralph.cwd / "one.pem").write_text("text of one\n")
    settings_of_repository(ralph, {"permissions": {"deny": ["Read(*.pem)"]}})
    (ralph.cwd / "show.sh").write_text("cat one.*")
    told = "permission rules deny to read 1 place that commands can read: without namespaces, nothing in"
    server = serve(bash("sh show.sh"), DONE)
    ran = ralph.finish(ralph.start("go", **forbidding_namespaces()))
    assert results(server)[0][0] == "text of one"
    assert f"[notice] {told}" in ran.stderr
    looked = ralph.finish(ralph.start("doctor", **forbidding_namespaces()))
    assert f"  warn  permission rules: {told}" in looked.stdout
    if LEVEL.name == "namespaces":
        server = serve(bash("sh show.sh"), DONE)
        ran = ralph("go")
        assert "text of one" not in results(server)[0][0]
        assert "deny to read" not in ran.stderr + ralph("doctor").stdout


@needs_landlock
def test_a_command_writes_in_its_places_alone_and_reads_no_secret_exits_0(ralph, serve, tmp_path) -> None:
    place = secret(ralph)
    tries = [
        "echo in > here; echo there > $TMPDIR/x; cat here $TMPDIR/x",
        f"echo out > {tmp_path}/outside",
        f"cat {place}",
        f"kill -CONT {os.getpid()}",
        "cat missing; echo x: Permission denied >&2; false",
    ]
    server = serve(*map(bash, tries), DONE)
    ran = ralph("go", "--output-format", "json", code=0)
    told = [results(server, nth)[0] for nth in range(1, 6)]
    assert told[0] == ("in\nthere", False)
    assert [is_error for _, is_error in told[1:]] == [True] * 4
    assert f"[the sandbox denies writing {tmp_path}/outside; allowed for writing: the working" in told[1][0]
    assert f"[the sandbox denies reading {place} ({place.parent} holds SSH keys. " in told[2][0]
    assert "private" not in told[2][0]
    if LEVEL.name == "landlock":  # with namespaces, there is no such process to be seen
        assert "[the sandbox denies signals to processes that the command did not start;" in told[3][0]
    assert "sandbox" not in told[4][0], "an ordinary failure"
    assert not (tmp_path / "outside").exists()
    denied = [one["tool_input"]["command"] for one in json.loads(ran.stdout)["permission_denials"]]
    assert denied == (tries[1:4] if LEVEL.name == "landlock" else tries[1:3])
    assert list(Path(ralph.environment["TMPDIR"]).iterdir()) == []


@needs_landlock
@pytest.mark.parametrize("place", [".", "$TMPDIR"])
def test_directories_that_are_deeper_than_pythons_stack_cost_nothing_and_none_is_left_exits_0(
    ralph, serve, place
) -> None:
    made = f"cd {place}; p=$(printf 'd/%.0s' $(seq 350)); for _ in 1 2 3; do mkdir -p $p && cd $p; done; touch .mcp.json"
    server = serve(bash(made), bash("echo next"), DONE)
    temporary = Path(ralph.environment["TMPDIR"])
    try:
        ran = ralph("go")
        left = [[path.name for path in one.iterdir()] for one in (ralph.cwd, temporary)]
    finally:  # pytest cannot remove them
        remove_tree(ralph.cwd)
        remove_tree(temporary)
    assert (ran.code, results(server, 2)[0]) == (0, ("next", False)), ran.stderr
    assert left == [["d"] if place == "." else [], []]


def test_the_level_is_in_the_first_line_the_first_object_and_the_result_exits_0(ralph, serve) -> None:
    serve(DONE)
    ran = ralph("go", "--output-format", "stream-json", code=0)
    assert ran.stderr.splitlines()[0].endswith(f"(sandbox: {LEVEL.name})")
    for entry in (ran.objects[0], ran.result):
        assert entry["sandbox"] == LEVEL.name
        assert entry["sandbox_protections"] == {name: not why for name, why in LEVEL.reaches.items()}


@needs_landlock
def test_the_model_is_told_in_one_sentence_if_it_has_commands_exits_0(ralph, serve, tmp_path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    server = serve(DONE, DONE, DONE)
    assert ralph("go").code == 0
    assert ralph("go", "--add-dir", str(beside), "--net", "off").code == 0
    assert ralph("go", "--tools", "Read").code == 0
    prompts = [str(request.json()["system"]) for request in server.requests]
    assert (
        "Commands run in a sandbox: they may write only in the working directory and $TMPDIR, " in prompts[0]
    )
    assert "the working directory, 1 more places and $TMPDIR" in prompts[1]
    assert "no network" in prompts[1]
    assert "Commands run in a sandbox" not in prompts[2]


@needs_landlock
def test_what_a_command_did_to_protected_files_when_ralph_was_killed_is_told_by_the_next_exits_0(
    ralph, serve
) -> None:
    server = serve(bash("echo {} > .mcp.json; touch there; sleep 99"), *[bash("true"), DONE] * 2)
    killed_during(ralph, "go")
    for nth, is_told in ((2, True), (4, False)):
        ran = ralph("again")
        # People are told before the first request, whether or not the run has a command.
        before, call, _ = ran.stderr.partition("Bash")
        assert call
        assert ("[notice] [a run here broke off" in before) is is_told
        assert ran.stderr.count("[notice] [a run here broke off") == is_told
        assert ran.code == 0
        note = "[a run here broke off during a command. Since that command began, these were changed, and nothing"
        assert (f"{note} was undone: .mcp.json." in results(server, nth)[0][0]) is is_told
    assert (ralph.cwd / ".mcp.json").exists()
    assert not [*Path(ralph.environment["HOME"], ".local/state/ralph/running").iterdir()]


@needs_landlock
def test_a_changed_sandbox_is_told_without_a_prompt_too_and_once_exits_0(ralph, serve) -> None:
    server = serve(bash("touch there; sleep 99"), Turn("One."), Turn("Two."), Turn("Three."))
    killed_during(ralph, "go")
    assert ralph("-c", "--sandbox", "off").code == 0
    assert ralph("-c", "next", "--sandbox", "off").code == 0
    assert ralph("-c", "boxed again").code == 0
    told = [request.json()["messages"][-1]["content"] for request in server.requests[1:]]
    assert told[0][-1]["text"] == "(Changed since then: commands run without a sandbox.)"
    assert told[0][0]["type"] == "tool_result"
    assert told[1][-1]["text"] == "next"
    assert told[2][-1]["text"].startswith("boxed again\n\n(Changed since then: Commands run in a sandbox: ")


@needs_landlock
def test_commands_have_what_the_settings_give_and_no_more_exits_0(ralph, serve, tmp_path) -> None:
    place = secret(ralph)
    for name in ("given", "denied"):
        (tmp_path / name).mkdir()
    (tmp_path / "denied" / "x").write_text("hidden")
    ralph.environment |= {"SSH_AUTH_SOCK": "/a", "DOCKER_HOST": "/b", "DBUS_SESSION_BUS_ADDRESS": "/c"}
    agents = "echo $SSH_AUTH_SOCK $DOCKER_HOST $DBUS_SESSION_BUS_ADDRESS."
    server = serve(bash(agents), DONE)
    assert ralph("go").code == 0
    assert results(server, 1) == [(".", False)]
    ralph.user_file.write_text(
        f"[sandbox]\nsockets = ['/a']\nmax_file_mb = 1\nwrite = ['{tmp_path}/given']\n"
        f"read = ['~/.ssh/id_test']\nread_deny = ['{tmp_path}/denied']\n"
    )
    commands = {
        "agents": agents,
        "given": f"echo x > {tmp_path}/given/y; cat {place}",
        "denied": f"cat {tmp_path}/denied/x",
        "size": "head -c 3000000 /dev/zero > big; wc -c < big",
        "cache": "mkdir -p $PIP_CACHE_DIR && echo x > $PIP_CACHE_DIR/wheel && echo $PIP_CACHE_DIR",
    }
    read = ("Read", {"file_path": f"{tmp_path}/denied/x"})
    server = serve(calls(*(("Bash", {"command": one}) for one in commands.values()), read), DONE)
    assert ralph("go").code == 0
    told = dict(zip((*commands, "read"), results(server, 1), strict=True))
    assert told["agents"] == ("/a /b /c.", False)
    assert told["given"] == ("private", False)
    assert (told["denied"][1], told["read"][1]) == (True, True)
    assert "hidden" not in str(server.requests[-1].json())
    assert told["size"][0].splitlines()[-1] == str(1024 * 1024)
    assert told["cache"][0].startswith(f"{ralph.environment['HOME']}/.cache/ralph/packages/")
    assert Path(told["cache"][0], "wheel").read_text() == "x\n", "it stays"


@needs_landlock
@pytest.mark.parametrize("place", [".cache/ralph/packages/{checkout}", "out"])
def test_a_link_that_a_command_has_left_behind_gives_nothing_exits_0(ralph, serve, tmp_path, place) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ralph.environment["XDG_CACHE_HOME"] = str(ralph.cwd / ".cache")
    ralph.user_file.write_text(f"sandbox.write = ['{ralph.cwd}/out']\n")
    link = ralph.cwd / place.format(checkout=sha256(os.fsencode(ralph.cwd.resolve())).hexdigest()[:16])
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    server = serve(bash(f"ls $PIP_CACHE_DIR/..; touch {elsewhere}/x"), bash("mkdir -p $PIP_CACHE_DIR"), DONE)
    assert ralph("go").code == 0
    assert [failed for _, failed in (*results(server, 1), *results(server, 2))] == [True, False]
    assert not (elsewhere / "x").exists()


@pytest.mark.skipif(LEVEL.name != "namespaces", reason="no namespaces can be made here")
@pytest.mark.parametrize(("condition", "by"), [("--gate", "file"), ("--until", "option")])
def test_what_a_rule_denies_to_read_is_masked_for_a_loops_gate_and_check(ralph, serve, condition, by) -> None:
    (ralph.cwd / "secret.txt").write_text("TOP SECRET\n")
    (ralph.cwd / "test.sh").write_text("exit 1\n")
    option = ["--disallowed-tools", "Read(./secret.txt)"] if by == "option" else []
    if by == "file":
        settings_of_repository(ralph, {"permissions": {"deny": ["Read(./secret.txt)"]}})
    written = bash("printf 'echo seen; cat s*.txt; exit 1' > test.sh")
    server = serve(written, DONE, DONE)
    ralph("loop", "go", "--max-iterations", "2", condition, "sh test.sh", *option)
    prompt = str(server.requests[-1].json())
    assert "seen" in prompt
    assert "Permission denied" in prompt
    assert "TOP SECRET" not in prompt


@needs_landlock
def test_a_place_that_cannot_be_closed_names_the_repositorys_file_exits_78(ralph, serve) -> None:
    server = serve(DONE)
    denied = {"filesystem": {"denyRead": [f"{ralph.cwd}/sub"]}}
    settings = settings_of_repository(ralph, {"sandbox": denied})
    ran = ralph("go")
    assert (ran.code, server.request_count) == (78, 0)
    assert f"{settings}: sandbox.read_deny: {ralph.cwd}/sub cannot be closed" in ran.last_line


@needs_landlock
@pytest.mark.parametrize("by", ["option", "repository"])
def test_the_network_that_is_off_is_off_and_a_notice_says_how_far_exits_0(ralph, serve, by) -> None:
    server = serve(bash("echo hello > /dev/tcp/127.0.0.1/${ANTHROPIC_BASE_URL##*:}"), DONE)
    ralph.environment["PORT"] = server.base_url.rpartition(":")[2]
    server = serve(bash("exec 3<>/dev/tcp/127.0.0.1/$PORT && echo reached"), DONE)
    options = ("--net", "off") if by == "option" else ()
    if by == "repository":
        settings_of_repository(ralph, {"sandbox": {"enabled": True, "network": {"allowedDomains": []}}})
    ran = ralph("go", *options, "--output-format", "stream-json", code=0)
    assert (": commands are restricted by sandbox.network.allowedDomains" in ran.stderr) is (not options)
    assert "reached" not in results(server)[0][0]
    has_loopback = MEANS.has_own_network
    assert ran.objects[0]["sandbox_protections"]["network"] is has_loopback
    assert ("network of commands: without namespaces" in ran.stderr) is not has_loopback


@needs_landlock
def test_what_a_command_does_to_protected_files_is_undone_and_told_exits_0(ralph, checkout, serve) -> None:
    before = (ralph.cwd / ".git" / "config").read_bytes()
    plants = (
        "git config core.fsmonitor x; echo x > .git/hooks/pre-commit; echo x > ralph.toml; echo kept > file"
    )
    server = serve(bash(plants), DONE)
    ran = ralph("go", "--output-format", "json", code=0)
    changed = "ralph.toml" if MEANS.bwrap else ".git/config, .git/hooks/pre-commit, ralph.toml"
    assert f"[undone: changes to {changed}." in results(server)[0][0]
    assert (ralph.cwd / ".git" / "config").read_bytes() == before
    assert not (ralph.cwd / ".git" / "hooks" / "pre-commit").exists()
    assert not (ralph.cwd / "ralph.toml").exists()
    assert (ralph.cwd / "file").read_text() == "kept\n"
    assert len(json.loads(ran.stdout)["permission_denials"]) == 1


@needs_landlock
def test_what_cannot_be_undone_is_told_to_people_at_once_and_at_the_end_and_a_closed_root_is_opened(
    ralph, checkout, serve
) -> None:
    hook = ralph.cwd / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    os.mkfifo(hook)
    change = bash(f"rm {hook}; echo y > {hook}; echo x > .mcp.json; chmod 0 $PWD")
    serve(change, DONE)
    ran = ralph.finish(ralph.start("go", **forbidding_namespaces()))
    why = "could not be undone: .git/hooks/pre-commit (it was not a file)"
    assert [why in line for line in ran.stderr.splitlines() if line.startswith("[notice] [")] == [True, True]
    assert not (ralph.cwd / ".mcp.json").exists()
    os.mkfifo(hook)
    serve(change, DONE)
    ran = ralph.finish(ralph.start("go", "--quiet", **forbidding_namespaces()))
    assert f"that {why}. They can make git, ralph and other agents" in ran.stderr


@needs_landlock
def test_with_strict_a_change_that_cannot_be_undone_ends_the_run_exits_78(ralph, checkout, serve) -> None:
    hook = ralph.cwd / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    os.mkfifo(hook)
    server = serve(bash(f"rm {hook}; echo y > {hook}; echo done > work"), bash("echo more > work"), DONE)
    ran = ralph.finish(ralph.start("go", "--sandbox", "strict", **forbidding_namespaces())).having(78)
    why = "could not be undone: .git/hooks/pre-commit (it was not a file)"
    assert f"--sandbox strict: commands changed protected files, and that {why}. They can make" in ran.stderr
    assert len(server.requests) == 1
    assert (ralph.cwd / "work").read_text() == "done\n"


@needs_landlock
def test_protected_files_are_restored_after_a_command_that_a_signal_stops_exits_143(
    ralph, checkout, serve
) -> None:
    before = (ralph.cwd / ".git" / "config").read_bytes()
    server = serve(bash("git config core.fsmonitor x; echo x > ralph.toml; touch there; sleep 99"), DONE)
    process = ralph.start("go", "--output-format", "stream-json")
    wait_until((ralph.cwd / "there").exists)
    ran = ralph.stopped_by(process, signal.SIGTERM, code=143)
    assert (ralph.cwd / ".git" / "config").read_bytes() == before
    assert not (ralph.cwd / "ralph.toml").exists()
    changed = "ralph.toml" if MEANS.bwrap else ".git/config, ralph.toml"
    assert f"[notice] [undone: changes to {changed}. Commands may not change these" in ran.stderr
    assert len(ran.result["permission_denials"]) == 1
    assert ralph("-c").code == 0
    [told] = [block for block in server.requests[1].json()["messages"][-1]["content"] if "content" in block]
    assert "its effects are unknown" in str(told["content"])
    assert f"[undone: changes to {changed}." in str(told["content"])


# --- Namespaces


@needs_namespaces
def test_commands_have_a_tmp_and_processes_of_their_own_and_the_file_tools_the_same_tmp_exits_0(
    ralph, serve
) -> None:
    own = "cd /proc; echo [0-9]*; cat /tmp/ralph-w; echo made > /tmp/x; mkdir /tmp/d; echo made > /tmp/d/y"
    write = ("Write", {"file_path": "/tmp/ralph-w", "content": "written\n"})
    read = ("Read", {"file_path": "//tmp/x"})
    edit = ("Edit", {"file_path": "/tmp/ralph-w", "old_string": "written", "new_string": "edited"})
    glob = ("Glob", {"pattern": "/tmp/**/y"})
    grep = ("Grep", {"pattern": "made", "path": "/tmp"})
    server = serve(calls(write), bash(own), calls(edit, read, glob, grep), bash("cat /tmp/ralph-w"), DONE)
    assert ralph("go").code == 0
    shown, _ = results(server, 2)[0]
    processes, rest = shown.split("\n", 1)
    assert (len(processes.split()), rest) == (1, "written")  # the shell
    (_, read_text, globbed, grepped) = (text for text, _ in results(server, 3))
    assert "made" in read_text
    assert globbed.splitlines() == ["/tmp/d/y"]
    assert sorted(grepped.splitlines()) == ["/tmp/d/y", "/tmp/x"]
    assert results(server, 4) == [("edited", False)]
    assert not Path("/tmp/ralph-w").exists()


@needs_namespaces
@pytest.mark.parametrize("how", ["timeout", "interrupt", "kill"])
def test_what_starts_itself_again_ends_with_its_command(ralph, serve, how) -> None:
    again = "r() { setsid sh -c 'echo >> starts; sleep 0.01' & wait; r; }; r & sleep 600"
    command = ("Bash", {"command": again, **({"timeout": 1000} if how == "timeout" else {})})
    serve(calls(command), DONE)
    process = ralph.start("go")
    starts = ralph.cwd / "starts"
    wait_until(lambda: starts.exists() and starts.stat().st_size > 2)
    inside = {*map(namespace_of, processes_in(ralph.cwd))} - {None, namespace_of(os.getpid())}
    assert inside
    if how == "timeout":
        assert ralph.finish(process).code == 0
    else:
        ralph.stopped_by(process, signal.SIGTERM if how == "interrupt" else signal.SIGKILL)
    wait_until(lambda: not any(namespace_of(pid) in inside for pid in all_pids()))


def all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def processes_in(directory: Path) -> list[int]:
    found = []
    for pid in all_pids():
        with suppress(OSError):
            if Path(f"/proc/{pid}/cwd").readlink() == directory:
                found.append(pid)
    return found


def namespace_of(pid: int) -> str | None:
    try:
        has_ended = ") Z " in Path(f"/proc/{pid}/stat").read_text()  # and waits for its parent
        return None if has_ended else str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it has ended
        return None


@needs_namespaces
def test_without_network_a_server_and_its_client_meet_exits_0(ralph, serve) -> None:
    meet = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(s.getsockname()); s.accept()[0].send(b'met'); print(c.recv(9).decode())"
    )
    server = serve(bash(f'python3 -c "{meet}"; tail -n +3 /proc/net/dev | cut -d: -f1'), DONE)
    ralph("go", "--net", "off", "--sandbox", "strict", code=0)
    assert results(server)[0][0].split() == ["met", "lo"]


@needs_namespaces
def test_with_a_proxy_other_hosts_are_refused_and_each_refusal_is_told_exits_0(ralph, serve) -> None:
    ask = (
        "for host in other.example:443 127.0.0.1:443 listed.example:22; do "
        "exec 3<>/dev/tcp/127.0.0.1/${HTTPS_PROXY##*:}; "
        'printf "CONNECT $host HTTP/1.1\\r\\n\\r\\n" >&3; head -1 <&3; done'
    )
    server = serve(bash(ask), DONE)
    hosts = ("--allow-host=listed.example", "--allow-host=*.other.test:8443", "--allow-host=10.0.0.0/8")
    ran = ralph("go", *hosts, "--output-format", "json", code=0)
    text, _ = results(server)[0]
    assert text.count("HTTP/1.1 403") == 3
    refused = (
        "other.example:443: it is not on",
        "127.0.0.1:443: it is an address",
        "listed.example:22: port 22",
    )
    for one in refused:
        assert f"[the sandbox refused a connection to {one}" in text
        assert f"[notice] the sandbox refused a connection to {one}" in ran.stderr
    assert len(json.loads(ran.stdout)["permission_denials"]) == 1


@needs_landlock
def test_a_container_that_forbids_namespaces_gets_the_next_level_and_what_is_missing_is_refused_exits_0(
    ralph, checkout, serve
) -> None:
    container = forbidding_namespaces()
    plants = "git config core.fsmonitor x; echo x > .git/hooks/pre-commit; echo $TMPDIR"
    server = serve(bash(plants), DONE)
    ran = ralph.finish(ralph.start("go", **container)).having(0)
    assert ran.stderr.splitlines()[0].endswith("(sandbox: landlock)")
    text, _ = results(server)[0]
    assert "[undone: changes to .git/config, .git/hooks/pre-commit." in text
    assert "/ralph-tmp-" in text
    strict = ralph.finish(ralph.start("go", "--sandbox", "strict", "--net", "off", **container)).having(78)
    assert "--sandbox strict: this machine lacks network (" in strict.last_line


@needs_landlock
def test_a_killed_runs_temporary_directories_are_removed_by_the_next_exits_0(ralph, serve) -> None:
    serve(bash("seq 100000"), bash("touch $TMPDIR/x there; sleep 99"), DONE)
    killed_during(ralph, "go")
    place = Path(ralph.environment["TMPDIR"])
    assert len(list(place.iterdir())) >= 2  # a third one if the user has configuration with credentials
    serve(bash("seq 100000"), DONE)
    assert ralph("again").code == 0
    assert list(place.iterdir()) == []


# --- Limits on a command's tree


HOG = f"{sys.executable} -c 'import time; print(1, flush=True); x = bytearray(90_000_000); time.sleep(600)'"


@linux_only
@pytest.mark.parametrize("words", [[], ["--sandbox", "off"]])
def test_a_command_that_takes_too_much_memory_is_stopped_with_its_limit_exits_0(ralph, serve, words) -> None:
    ralph.user_file.write_text("sandbox.max_memory_mb = 50\n")
    server = serve(bash(f"{HOG} & sleep 600"), bash("sleep 1.2; echo still here"), DONE)
    assert ralph("go", *words).code == 0
    told = (
        "[stopped: the command's processes used more than 50 MB, files in /dev/shm included "
        "(sandbox.max_memory_mb); all it had started was stopped]"
    )
    [(text, is_error)] = results(server, 1)
    # Where the kernel limits the memory, the command is stopped before it prints anything.
    assert text.removeprefix("1\n").removeprefix("(no output)\n") == told
    assert is_error
    assert results(server, 2) == [("still here", False)]


@linux_only
def test_a_loops_check_has_the_limits_of_commands_exits_3(ralph, iterations) -> None:
    ralph.user_file.write_text("sandbox.max_processes = 4\nsandbox.max_memory_mb = 100\n")
    iterations([bash("echo 1 > one"), Turn("Done.")])
    check = "for i in 1 2 3 4 5 6; do sleep 600 & done; wait"
    ran = ralph("loop", "go", "--until", check, "--max-iterations", "1", code=3)
    assert "was stopped: it had more than 4 processes and threads (sandbox.max_processes)" in ran.stderr


# --- What is asked for is kept, or nothing runs


@pytest.mark.parametrize(
    ("settings", "words", "says"),
    [
        ("", ["--sandbox", "off", "--net", "off"], "sandbox.net cannot be kept with sandbox.mode = off"),
        ("sandbox.read_deny = ['/x']", ["--sandbox", "off"], "sandbox.read_deny cannot be kept with"),
        ("", ["--net", "full", "--allow-host", "a.example"], "sandbox.net = full (--net full) reaches"),
    ],
)
def test_what_cannot_be_kept_ends_the_run_before_a_request_exits_78(
    ralph, ralph_here, serve, settings, words, says
) -> None:
    ralph.user_file.write_text(settings)
    server = serve()
    ran, looped = ralph_here("go", *words), ralph_here("loop", "go", *words)
    assert (ran.code, looped.code, server.request_count) == (78, 78, 0)
    assert says in ran.last_line
    assert says in loop_lines(looped)[-1]


def test_a_host_that_the_proxy_would_not_understand_is_refused_before_a_request(
    ralph, ralph_here, serve
) -> None:
    server = serve()
    assert ralph_here("go", "--allow-host=https://a.example").code == 2
    ralph.user_file.write_text("sandbox.allow_hosts = ['a.example/x']\n")
    assert ralph_here("go").code == 78
    assert server.request_count == 0


@needs_landlock
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user's directory")
def test_root_in_another_users_directory_is_refused_with_the_way_out_exits_78(ralph, serve) -> None:
    """Its commands would have none of root's capabilities. What starts no command, and what has no sandbox, may begin."""
    os.chown(ralph.cwd, 1234, 1235)
    server = serve()
    for words in (["go"], ["loop", "go", "--max-iterations", "1"]):
        ran = ralph(*words)
        assert (ran.code, server.request_count) == (78, 0), words
        assert "belongs to user 1234" in ran.stderr
        assert "docker run --user 1234:1235" in ran.stderr
    serve(DONE)
    assert ralph("go", "--tools", "Read,Grep").code == 0
    serve(bash("echo x > there"), DONE)
    assert ralph("go", "--sandbox", "off").code == 0
    assert (ralph.cwd / "there").exists()
    (ralph.cwd).chmod(0o777)
    serve(bash("echo x > again"), DONE)
    assert ralph("go").code == 0
    assert (ralph.cwd / "again").exists()


# --- A loop


@needs_landlock
def test_a_loops_check_runs_in_the_sandbox_as_the_repository_restricts_it_and_its_git_does_not_exits_3(
    ralph, iterations, tmp_path
) -> None:
    """Otherwise an iteration could leave to the check whatever its own commands may not do."""
    server = iterations([bash("echo 1 > one"), Turn("Done.")])
    settings_of_repository(ralph, {"sandbox": {"network": {"allowedDomains": []}}})
    reach = f"(exec 3<>/dev/tcp/127.0.0.1/{server.base_url.rpartition(':')[2]}) && touch reached"
    check = f"echo $TMPDIR > told; echo x > ralph.toml; {reach}; echo out > {tmp_path}/outside"
    ralph("loop", "go", "--until", check, "--max-iterations", "1", code=3)
    made = (ralph.cwd / "ralph.toml", ralph.cwd / "reached", tmp_path / "outside")
    assert not [one for one in made if one.exists()]
    assert ((ralph.cwd / "told").read_text() == "/tmp\n") is bool(MEANS.bwrap)
    assert list(Path(ralph.environment["TMPDIR"]).iterdir()) == []


@needs_landlock
def test_a_loops_listing_of_files_outside_of_git_runs_in_the_sandbox_exits_0(ralph, iterations) -> None:
    """Here the rules of .gitignore are in a secret file, which ripgrep cannot read in the sandbox."""
    rules = secret(ralph)
    rules.write_text("one\n")
    (ralph.cwd / ".gitignore").symlink_to(rules)
    iterations([bash("echo 1 > one"), Turn("Done.")])
    ran = ralph("loop", "go", "--max-iterations", "1", code=0)
    assert any("1 file changed: one" in line for line in loop_lines(ran)), ran.stderr
    assert list(Path(ralph.environment["TMPDIR"]).iterdir()) == []


@needs_landlock
def test_a_loop_passes_its_sandbox_on_and_keeps_it_when_it_continues_exits_3(
    ralph, iterations, tmp_path
) -> None:
    iterations(
        [bash(f"echo out >> {tmp_path}/outside"), Turn("Done.")],
        [bash(f"echo more >> {tmp_path}/outside"), Turn("Done.")],
    )
    check = f"echo check >> {tmp_path}/checked; false"
    words = ("--until", check, "--max-iterations", "1", "--sandbox", "off")
    assert ralph("loop", "go", *words).code == 3
    assert ralph("loop", "--continue", "--max-iterations", "2").code == 3
    assert (tmp_path / "outside").read_text() == "out\nmore\n"
    assert set((tmp_path / "checked").read_text().split()) == {"check"}


# --- ralph doctor


@needs_landlock
@pytest.mark.parametrize("how", ["cd", "add-dir"])
def test_what_a_command_puts_in_the_place_of_ralphs_own_directories_opens_nothing_exits_0(
    ralph, serve, how
) -> None:
    """TMPDIR is where commands may write, so ralph's own directories must not lie there."""
    place = ralph.cwd / "tmp" if how == "cd" else ralph.cwd.parent / "tmp"
    place.mkdir(exist_ok=True)
    ralph.environment["TMPDIR"] = str(place)
    home = Path(ralph.environment["HOME"])
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_rsa").write_text("SECRET\n")
    replace = f"cd {place}; for d in ralph-*; do [ -e $d ] || continue; mv $d old-$d; ln -s / $d; done; true"
    write = ("Write", {"file_path": f"/tmp{home}/.bashrc", "content": "echo pwned\n"})
    read = ("Read", {"file_path": f"{home}/.ssh/id_rsa"})
    server = serve(bash("seq 100000"), bash(replace), calls(write, read), DONE)
    words = ["--add-dir", str(place)] if how == "add-dir" else []
    assert ralph("go", *words).code == 0
    assert [entry.name for entry in place.iterdir() if entry.name.startswith("ralph-")] == []
    assert not (home / ".bashrc").exists()
    assert "SECRET" not in str(results(server, 3))
