"""Paths that file tools must not write or read, tested with the whole program."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from ralph.mock_api import ToolUse, Turn
from tests.program.model_answers import results

PACKAGE = Path(__file__).parents[3] / "ralph"
CANARY = "canary-4f1d9c"
SECRETS = {
    ".ssh/id_ed25519": "SSH keys",
    ".aws/credentials": "AWS credentials",
    ".config/gcloud/credentials.db": "Google Cloud credentials",
    ".kube/config": "Kubernetes credentials",
    ".docker/config.json": "credentials of container registries",
    ".config/gh/hosts.yml": "git credentials",
    ".git-credentials": "git credentials",
    ".config/git/credentials": "git credentials",
    ".netrc": "passwords of hosts",
    ".pgpass": "passwords of databases",
    ".npmrc": "credentials of package registries",
    ".pypirc": "credentials of package registries",
    ".password-store/mail.gpg": "keyrings and passwords",
    ".local/share/keyrings/login.keyring": "keyrings and passwords",
    "Library/Keychains/login.keychain-db": "keyrings and passwords",
    ".mozilla/firefox/x.default/logins.json": "a browser's passwords and sessions",
    ".config/google-chrome/Default/Login Data": "a browser's passwords and sessions",
    ".config/ralph/config.toml": "ralph's own configuration",
    ".local/state/ralph/sessions/other-0123/s.jsonl": "ralph's own state",
}


def use(tool: str, path: object, **arguments: Any) -> ToolUse:
    if tool == "Write":
        arguments = {"content": "planted\n"} | arguments
    elif tool == "Edit":
        arguments = {"old_string": "old", "new_string": "planted"} | arguments
    return ToolUse(tool, {"file_path": str(path), **arguments})


def make(path: Path, text: str = "old\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def installed_in(project: Path) -> tuple[Path, Path]:
    """Makes a virtual environment in the project, with this ralph in it. Returns its Python and its directory of
    packages.
    """
    environment = project / ".venv"
    venv.create(environment, symlinks=True)
    [packages] = environment.glob("lib/python*/site-packages")
    shutil.copytree(PACKAGE, packages / "ralph")  # with its bytecode, as the times of files stay
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(others))
    return environment / "bin" / "python", packages


def test_what_git_ralph_and_agents_go_by_is_neither_written_nor_edited_exits_0(ralph, serve) -> None:
    work = ralph.cwd
    subprocess.run(["git", "init", "-q", work], check=True, env=ralph.environment)
    python, packages = installed_in(work)
    ralph.environment |= {"RALPH_STATE_DIR": str(work / "state"), "XDG_CONFIG_HOME": str(work / "config")}
    del ralph.environment["PYTHONPATH"]
    make(work / "sub/real.txt")
    (work / "innocent.txt").symlink_to(".git/config")
    (work / "tools").symlink_to(".git/hooks")
    settings = "ralph.toml .claude/settings.json .claude/settings.local.json .mcp.json state/loop.key".split()
    for name in settings:
        make(work / name, "{}" if name.endswith(".json") else "")
    make(work / "config/ralph/config.toml", "")
    there = [
        *".git/config .git/HEAD innocent.txt sub/../.git/description config/ralph/config.toml".split(),
        *(*settings, packages / "ralph/values/usage.py", work / ".venv/pyvenv.cfg", python),
    ]
    new = [
        *".git/hooks/pre-commit tools/post-checkout .GIT/config sub/.git/config new/.git .g\u200cit/x".split(),
        *"sub/ralph.toml RALPH.TOML sub/.claude/settings.x.json .Claude/Settings.json sub/.mcp.json".split(),
        *("state/sessions/x.jsonl", packages / "sitecustomize.py", packages / "evil.pth"),
        work / ".venv/bin/rg",
    ]
    free = [".gitignore", ".github/x.yml", ".claude/commands/x.md", "docs/ralph.toml.md", "x.git/config"]
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    uses = [
        *(use("Write", path) for path in (*there, *new)),
        *(use("Edit", path, old_string="a", replace_all=True) for path in there),
        *(use("Write", path) for path in free),
    ]
    server = serve(Turn(uses), Turn("Done."))
    command = [str(python), "-m", "ralph", "run", "go", "--no-session-persistence"]
    ran = subprocess.run(
        command, cwd=work, env=ralph.environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    said = results(server)
    refused, written = said[: -len(free)], said[-len(free) :]
    for path, (text, is_error) in zip([*there, *new, *there], refused, strict=True):
        assert is_error, (path, text)
        assert text.startswith(str(path)), text
    assert [path for path, (_, is_error) in zip(free, written, strict=True) if is_error] == []
    after = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    changed = {str(path.relative_to(work)) for path in before | after if before.get(path) != after.get(path)}
    assert changed - {name for name in changed if "__pycache__" in name} == set(free)
    texts = dict(zip(map(str, [*there, *new]), (text for text, _ in refused), strict=False))
    assert texts[".git/config"] == (
        f".git/config (really {work}/.git/config) is not written: {work}/.git is git's own: its content can make "
        "git run programs. Use git itself, with Bash (git commit, git config, git remote, ...)"
    )
    assert "is ralph's own configuration. Whoever starts ralph can change it" in texts["ralph.toml"]
    assert "is the ralph that runs" in texts[str(packages / "ralph/values/usage.py")]
    assert "holds the Python that ralph runs on" in texts[str(packages / "evil.pth")]
    assert "holds ralph's own state" in texts["state/loop.key"]


@pytest.mark.parametrize("kind", ["bare", "bare beside", "worktree beside"])
def test_the_git_directory_of_the_checkout_is_known_wherever_it_lies_exits_0(ralph, serve, kind) -> None:
    work = ralph.cwd

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        subprocess.run(
            ["git", *who, *arguments], cwd=work, env=ralph.environment, check=True, capture_output=True
        )

    free = "notes/plan.md"
    if kind == "bare":
        git("init", "-q", "--bare", ".")
        refused = ["config", "hooks/post-update", "HEAD", "commondir", "worktrees/x/gitdir"]
    elif kind == "bare beside":
        git("init", "-q", "--bare", "store")
        (work / ".git").write_text("gitdir: ./store\n")
        refused = ["store/config", "store/hooks/pre-commit", ".git", "store/anything"]
    else:
        git("init", "-q", "main")
        git("-C", "main", "commit", "-q", "--allow-empty", "-m", "first")
        git("-C", "main", "worktree", "add", "-q", str(work / "tree"))
        (work / "main/.git").rename(work / "gitdir")
        (work / "tree/.git").write_text(f"gitdir: {work}/gitdir/worktrees/tree\n")
        refused = ["../gitdir/config", "../gitdir/hooks/pre-commit", "../gitdir/worktrees/tree/HEAD", ".git"]
    options = ("-C", "tree", "--add-dir", ".") if kind == "worktree beside" else ()
    server = serve(Turn(content=[use("Write", path) for path in (*refused, free)]), Turn("Done."))
    assert ralph("go", *options).code == 0
    said = results(server)
    assert [is_error for _, is_error in said] == [*(True for _ in refused), False], said
    assert all("git's own" in text for text, _ in said[:-1])


@pytest.mark.parametrize("above", [False, True])
def test_where_the_working_directory_holds_the_home_its_dotfiles_are_not_written_exits_0(
    ralph, serve, above
) -> None:
    home = Path(ralph.environment["HOME"])
    make(home / ".bashrc")
    make(home / "project/.env.example")
    make(home / ".ssh/authorized_keys")
    (home / "project/rc").symlink_to("../.bashrc")
    names = ".bashrc .profile .ssh/authorized_keys .config/autostart/x.desktop project/../.zshrc project/rc"
    refused = [home / name for name in (*names.split(), "Library/Keychains/x")]
    free = [home / "project/.env", home / "notes.txt", home / ".config/own/a.txt"]
    (home / ".config/own").mkdir(parents=True)
    edits = [use("Edit", home / name) for name in (".bashrc", "project/.env.example")]
    server = serve(Turn([*(use("Write", path) for path in (*refused, *free)), *edits]), Turn("Done."))
    directory = home.parent if above else home
    words = ("-C", str(directory), "--add-dir", str(home / ".config/own"), "--no-session-persistence")
    assert ralph("go", *words).code == 0
    said = results(server)
    are_refused = [*[True] * len(refused), *[False] * len(free), True, False]
    assert [is_error for _, is_error in said] == are_refused, said
    assert f"{home}/.bashrc is a dotfile of the home directory" in said[0][0]
    assert (home / ".bashrc").read_text() == "old\n"
    assert (home / ".ssh/authorized_keys").read_text() == "old\n"


def test_credentials_and_ralphs_own_are_neither_read_nor_edited_nor_found_exits_0(ralph, serve) -> None:
    home, work = Path(ralph.environment["HOME"]), ralph.cwd
    for name in SECRETS:
        make(home / name, f"old {CANARY}\n")
    make(home / ".config/ralph/config.toml", f"[model]\nname = 'opus'  # Bearer {CANARY}\n")
    make(home / "notes/plain.txt", "old marker\n")
    ralph.environment["RALPH_SANDBOX_READ"] = str(home)  # what is secret in it stays closed
    make(home / "moved-kube", f"old {CANARY}\n")
    ralph.environment["KUBECONFIG"] = f"{home}/.kube/config:{home}/moved-kube"
    secrets = [home / name for name in (*SECRETS, "moved-kube")]
    (work / "ssh").symlink_to(home / ".ssh")
    (work / "chrome data").symlink_to(home / ".config/google-chrome/Default/Login Data")
    (work / "hard.txt").hardlink_to(home / ".ssh/id_ed25519")
    ways = [work / "ssh/id_ed25519", work / "chrome data", work / "hard.txt"]
    missing = home / ".ssh/id_ed25518"
    folders = (home / ".ssh", work / "ssh", home / ".aws")
    refusals = [
        *(use(tool, path) for tool in ("Read", "Edit") for path in (*secrets, *ways)),
        use("Read", missing),
        *(ToolUse("Grep", {"pattern": "old", "path": str(path)}) for path in (*secrets, *ways, *folders)),
        ToolUse("Glob", {"pattern": "*", "path": str(home / ".ssh")}),
        ToolUse("Glob", {"pattern": str(home / ".ssh/*")}),
        ToolUse("Glob", {"pattern": "*", "path": "ssh"}),
    ]
    every = {"pattern": "old|Bearer", "path": str(home)}
    searches = [
        *(ToolUse("Grep", {**every, "output_mode": mode}) for mode in ("content", "count")),
        ToolUse("Grep", {**every, "glob": "*"}),
        ToolUse("Grep", {**every, "path": str(home.parent), "glob": "*.*"}),
        ToolUse("Glob", {"pattern": "**/*", "path": "~"}),
        ToolUse("Glob", {"pattern": str(home / "*/*")}),
    ]
    server = serve(Turn(content=[*refusals, *searches]), Turn("Done."))
    ran = ralph("go", "--output-format", "stream-json", code=0)
    said = results(server)
    for call, (text, is_error) in zip(refusals, said, strict=False):
        assert is_error, (call, text)
        assert "is not read: " in text, (call, text)
    for name, (text, _) in zip(SECRETS, said, strict=False):
        assert SECRETS[name] in text, text
    whole = said[0][0]
    assert whole == (
        f"{home}/.ssh/id_ed25519 is not read: {home}/.ssh holds SSH keys. Whoever starts ralph can put what the task "
        "needs of it into the working directory"
    )
    assert "id_ed25519." not in said[2 * len([*secrets, *ways])][0]  # no similar names of what is there
    for text, is_error in said[len(refusals) :]:
        assert not is_error, text
        found, _, note = text.partition("[left out, as they must not be read: ")
        assert [line for line in found.splitlines() if "plain.txt" not in line] == [], text
        assert "plain.txt" in found
        assert ".ssh" in note, text
        assert " more]" in note, text
    sent = b"".join(request.body for request in server.requests).decode()
    assert CANARY not in sent + ran.stdout + ran.stderr
    journals = [path for path in home.rglob("*.jsonl") if path.name != "s.jsonl"]
    assert journals
    assert all(CANARY not in path.read_text() for path in journals)
    assert all(CANARY in path.read_text() for path in secrets)


def test_a_runs_own_long_outputs_are_read_wherever_they_lie_exits_0(ralph, serve) -> None:
    place = Path(ralph.environment["HOME"], ".local/state/ralph/tmp")
    place.mkdir(parents=True)
    make(place / "other.txt")
    ralph.environment["TMPDIR"] = str(place)

    def play(request: Any, index: int) -> Turn:
        if index == 0:
            return Turn(content=[ToolUse("Bash", {"command": "seq 100000"})])
        if index == 1:
            [spilled] = re.findall(rf"{place}/[^ ]*\.txt", request.body.decode())
            return Turn(content=[use("Read", spilled, limit=2), use("Read", place / "other.txt")])
        return Turn("Done.")

    server = serve(script=play)
    assert ralph("go").code == 0
    (spilled, is_refused), (other, is_error) = results(server)
    assert "1\n" in spilled
    assert (is_refused, is_error) == (False, True)
    assert "ralph's own state" in other


def test_the_settings_file_that_the_command_line_names_is_not_shown_exits_0(ralph, serve, tmp_path) -> None:
    headers = f"headers = {{ Authorization = 'Bearer {CANARY}-long-enough' }}"
    for path in (ralph.cwd / "mine.toml", tmp_path / "kept/mine.toml"):
        make(path, f"[[targets]]\nname = 'a'\nmodel = 'm'\n{headers}\n")
    for path in (ralph.cwd / "mine.toml", tmp_path / "kept/mine.toml"):
        found = {"pattern": "Bearer", "path": str(path.parent), "output_mode": "content"}
        looks = [use("Read", path), use("Write", path), ToolUse("Grep", found)]
        server = serve(Turn(looks), Turn("Done."))
        path.write_text(path.read_text().replace("'m'\n", f"'m'\nbase_url = '{server.base_url}'\n"))
        ralph("go", "--config", str(path), code=0)
        said = results(server)
        assert "is ralph's own configuration" in said[0][0]
        assert said[1][1]
        assert CANARY not in b"".join(request.body for request in server.requests).decode()
        assert CANARY in path.read_text()
        ralph.environment.pop("ANTHROPIC_BASE_URL")
