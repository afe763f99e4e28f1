"""ssh runs nothing for ralph's pushes and fetches that commands could have named in its configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.fleet.checkouts import GitCalls, GitTerms, WorkerGit
from ralph.git.answer import CheckoutError
from ralph.git.checkout import GitCheckout
from ralph.git.push import make_git_directory
from ralph.git.runner import CheckoutGit
from ralph.loop.checkout import check_checkout
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.outcome import Outcome
from tests.git.repositories import Repository, cloned
from tests.places.test_one_table import LEVELS, tools_in
from tests.processes.one_supervisor import SUPERVISOR
from tests.processes.scripts import first_on_path
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

# A program of the shell in the home. Commands may write `dotfiles`; with each comes the
# value of GIT_SSH_COMMAND.
OPEN = {
    "a link": ("mkdir .ssh; echo >dotfiles/c; ln -s ../dotfiles/c .ssh/config", ""),
    "a link to the directory": ("mkdir dotfiles/ssh; echo >dotfiles/ssh/config; ln -s dotfiles/ssh .ssh", ""),
    "a second name": ("mkdir .ssh; echo >dotfiles/c; ln dotfiles/c .ssh/config", ""),
    "a link on the way": ("mkdir .ssh; echo >c; ln -s ../c dotfiles/c; ln -s ../dotfiles/c .ssh/config", ""),
    "an included file": ("mkdir .ssh; printf 'Host x\\n  include=\"~/dotfiles/c\"\\n' >.ssh/config", ""),
    "an included pattern": ("mkdir .ssh dotfiles/d; echo Include ../dotfiles/d/*.conf >.ssh/config", ""),
    "a file that an included one includes": (
        "mkdir -p .ssh/d; echo INCLUDE d/* >.ssh/config; echo Include $HOME/dotfiles/c >.ssh/d/a",
        "",
    ),
    "a quoted word": ("mkdir .ssh; echo \"Include '~/dotfiles/c'\" >.ssh/config", ""),
    "quotes in a word": ("mkdir .ssh; echo 'Include ~/\"dotfiles\"/c' >.ssh/config", ""),
    "a backslash": ("mkdir .ssh dotfiles/a\\ b; echo 'Include ~/dotfiles/a\\ b/c' >.ssh/config", ""),
    "a backslash that only the pattern takes": (
        "mkdir .ssh; printf '%s\\n' 'Include ~/dot\\\\files/c' >.ssh/config",
        "",
    ),
    "quotes in a keyword": ("mkdir .ssh; echo 'Inc\"lude\" ~/dotfiles/c' >.ssh/config", ""),
    "a NUL behind the name": ("mkdir .ssh; printf 'Include ~/dotfiles/c\\0x\\n' >.ssh/config", ""),
    "a quoted keyword": ("mkdir .ssh; echo '\"Include\" ~/dotfiles/c' >.ssh/config", ""),
    "a quoted keyword of a program": ("mkdir .ssh; echo '\"ProxyCommand\" ~/dotfiles/p' >.ssh/config", ""),
    "behind much else": (
        "mkdir .ssh; { yes '# x' | head -c 70000; echo; echo Include ~/dotfiles/c; } >.ssh/config",
        "",
    ),
    "an old name of a library": ("mkdir .ssh; echo SmartcardDevice $HOME/dotfiles/l >.ssh/config", ""),
    "a file by a variable": ("mkdir .ssh; echo 'Include ${HOME}/dotfiles/c' >.ssh/config", ""),
    "a file by the home": ("mkdir .ssh; echo 'Include %d/./dotfiles/c' >.ssh/config", ""),
    "a file by the user": (
        "mkdir .ssh; ln -s ../dotfiles .ssh/$(id -un); echo 'Include %u/c' >.ssh/config",
        "",
    ),
    "a file by the host": ("mkdir .ssh dotfiles/d; echo 'Include ~/dotfiles/d/%h' >.ssh/config", ""),
    "a program by the home": ("mkdir .ssh; echo 'Match exec %d/dotfiles/p' >.ssh/config", ""),
    "a program": ("mkdir .ssh; echo '  proxycommand sh -c \"exec ~/dotfiles/p %h\"' >.ssh/config", ""),
    "a condition": ("mkdir .ssh; echo Match exec=$HOME/dotfiles/p >.ssh/config", ""),
    "a library": ("mkdir .ssh; echo PKCS11Provider=$HOME/dotfiles/l >.ssh/config", ""),
    "another configuration": ("echo Include $HOME/dotfiles/c >mine", "ssh -F {home}/mine"),
    "a setting": (
        'echo Include ~/dotfiles/c >mine; git config --global core.sshCommand "ssh -F $HOME/mine"',
        "",
    ),
}
CLOSED = {
    "nothing": ("true", ""),
    "a link elsewhere": ("mkdir .ssh other; echo >other/c; ln -s ../other/c .ssh/config", ""),
    "a file of each host elsewhere": ("mkdir .ssh; echo 'Include ~/.ssh/%h' >.ssh/config", ""),
    "an included file elsewhere": ("mkdir .ssh other; echo Include ~/other/* >.ssh/config", ""),
    "a key of the work": ("mkdir .ssh; echo IdentityFile ~/dotfiles/key >.ssh/config", ""),
    "a remark": ("mkdir .ssh; echo '# ProxyCommand ~/dotfiles/p' >.ssh/config", ""),
    "no configuration": (OPEN["a link"][0], "ssh -F none"),
    "another configuration": (f"{OPEN['a link'][0]}; echo >mine", "ssh -F {home}/mine"),
}


def made(place: Path, script: str, command: str) -> tuple[Repository, Path]:
    """A repository whose remote is reached by ssh, and the directory where the ssh leaves a mark when it runs."""
    home = place / "home"
    repository = cloned(place / "work", home)
    (home / "dotfiles").mkdir()
    marks = place / "marks"
    marks.mkdir()
    first_on_path(repository.environment, place / "bin/ssh", f": >{marks}/ssh; exit 1")
    if command:
        repository.environment["GIT_SSH_COMMAND"] = command.format(home=home)
    repository.git("-c", f"alias.x=!cd {home}; {script}", "x")
    repository.git("remote", "set-url", "origin", "ssh://git@host.invalid/x.git")
    return repository, marks


def attempts(repository: Repository, writable: tuple[str, ...]) -> None:
    checkout = GitCheckout(
        repository.top, repository.top, plan_file="P", seams=replace(repository.seams(), writable=writable)
    )
    check_checkout(checkout, commits=False, pushes=True)


def test_no_file_counts_that_a_command_of_another_run_has_changed_and_nobody_has_undone(
    tmp_path: Path,
) -> None:
    script = (
        "mkdir .ssh; echo ProxyCommand x >.ssh/config; git config --file $HOME/new filter.g.clean cat; "
        "git config --global filter.f.clean cat; git config --global include.path $HOME/new"
    )
    repository, marks = made(tmp_path, script, "")
    repository.filters = ("f", "g")
    home = tmp_path / "home"
    mark = home / ".local/state/ralph/running/x"
    mark.parent.mkdir(parents=True)
    mark.write_text(json.dumps({f"{home}/{name}": "" for name in (".ssh/config", ".gitconfig")}))
    assert CheckoutGit(repository.top, repository.seams()).settings.dropped_filters == {"f", "g"}
    with pytest.raises(CheckoutError, match=f"{home}/.ssh/config was changed during a command"):
        attempts(repository, ())
    assert not [*marks.iterdir()]
    mark.unlink()
    assert not CheckoutGit(repository.top, repository.seams()).settings.dropped_filters


@every_row(("script", "command"), [*OPEN.values()])
def test_no_ssh_starts_by_a_configuration_that_commands_may_write(
    tmp_path_factory, script: str, command: str
) -> None:
    place = tmp_path_factory.mktemp("place")
    repository, marks = made(place, script, command)
    writable = (f"{place}/home/dotfiles",)
    with pytest.raises(CheckoutError, match="ssh -F none") as raised:
        attempts(repository, writable)
    assert raised.value.outcome is Outcome.CONFIG
    assert not [*marks.iterdir()]
    calls = GitCalls(repository.environment, SUPERVISOR, terms=GitTerms(writable))
    if "core.sshCommand" not in script:  # a worker does not begin with that
        repository.git("config", "--global", "url.git@host.invalid:.insteadOf", "https://host.invalid/")
        mirror = place / "m/m.git"
        make_git_directory(mirror, "\tbare = true\n")
        for url in ("git@host.invalid:x.git", "https://host.invalid/x.git"):
            with pytest.raises(CheckoutError, match="ssh -F none"):
                WorkerGit(calls, url, mirror).remote_refs("x")
    assert not [*marks.iterdir()]


@every_row(("script", "command"), [*CLOSED.values()])
def test_ssh_starts_by_any_other_configuration(tmp_path_factory, script: str, command: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository, marks = made(place, script, command)
    with pytest.raises(CheckoutError, match="does not take branch main"):
        attempts(repository, (f"{place}/home/dotfiles",))
    assert [*marks.iterdir()], "ssh was started"


def test_the_directory_of_ssh_is_closed_where_the_home_is_the_work(tmp_path: Path) -> None:
    repository, marks = made(tmp_path, "mkdir .ssh; echo Include d/* >.ssh/config", "")
    home = str(tmp_path / "home")
    with pytest.raises(CheckoutError, match="does not take branch main"):
        attempts(repository, (home,))
    assert [*marks.iterdir()], "ssh was started"
    for writable in ((f"{home}/.ssh",), (f"{home}/.ssh/d", home)):
        with pytest.raises(CheckoutError, match="ssh -F none"):
            attempts(repository, writable)


# The way, and the file below `dotfiles` that a command writes.
WRITTEN = {
    "a link": "c",
    "a second name": "c",
    "a link to the directory": "ssh/config",
    "a link on the way": "c",
    "an included file": "c",
    "an included pattern": "d/new.conf",
    "a file that an included one includes": "c",
    "a file by a variable": "c",
    "a file by the user": "c",
    "a file by the host": "d/new",
    "another configuration": "c",
}


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("ssh", "ssh://git@host.invalid/x.git"),
        ("git-remote-zz", "zz::x"),
        ("git-remote-zz", "zz://x"),
        ("git-remote-zz", "../remote.git"),  # with remote.origin.vcs
    ],
)
@pytest.mark.parametrize(
    "way",
    [
        "ln -s $PWD/dotfiles/{name} ../bin/{name}",
        "ln dotfiles/{name} ../bin/{name}",
        "printf '#!%s/dotfiles/{name}' $PWD > ../bin/{name}; chmod +x ../bin/{name}",
    ],
)
def test_no_ssh_and_no_helper_starts_that_commands_may_write(
    tmp_path: Path, name: str, url: str, way: str
) -> None:
    script = f"mv ../bin/ssh dotfiles/{name}; {way.format(name=name)}"
    repository, marks = made(tmp_path, script, "")
    repository.git("remote", "set-url", "origin", url)
    repository.git("config", "--global", "remote.origin.vcs", "zz")
    with pytest.raises(CheckoutError, match=rf"what .*/bin/{name} leads to"):
        attempts(repository, (str(tmp_path / "home/dotfiles"),))
    assert not [*marks.iterdir()]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WRITTEN)
def test_no_command_changes_the_configuration_of_ssh(tmp_path: Path, level: str, way: str) -> None:
    script, command = OPEN[way]
    repository, _ = made(tmp_path, script, command)
    dotfiles = tmp_path / "home/dotfiles"
    file = dotfiles / WRITTEN[way]
    is_kept = way == "a second name"  # a new file would not have it
    removing = "true" if is_kept else "rm -f"
    read = tmp_path / "home/.ssh/config" if is_kept else file
    before = file.read_text() if file.exists() else ""
    wanted = SandboxSettings(write=(str(dotfiles),))
    for tools in tools_in(repository.top, repository.environment, level, wanted):
        for words in (f"{removing} {file}; echo ProxyCommand x >{file}", f"echo fine >{dotfiles}/other"):
            tools.call("Bash", {"command": words})
    assert (read.read_text() if read.exists() else "") == before
    assert (dotfiles / "other").read_text() == "fine\n"
