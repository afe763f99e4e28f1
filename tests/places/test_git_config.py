"""Settings that make git run a program or look elsewhere are found in the text of a configuration as git finds them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from ralph.places.git_config import UNREADABLE, programs_named
from tests.git.test_planted_programs import SETTINGS
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

HARMLESS = {
    "push.gpgSign",
    "commit.gpgSign",
    "gpg.format",
    "log.showSignature",
    "push.negotiate",
    "push.recurseSubmodules",
} | {
    *(
        "submodule.recurse",
        "status.submoduleSummary",
        "commit.verbose",
        "gc.auto",
        "maintenance.auto",
        "filter.evil.required",
    ),
    *("trace2.normalTarget", "trace2.eventTarget", "hook.evil.event"),
}


@every_row("setting", SETTINGS)
def test_each_setting_that_names_a_program_is_known(setting) -> None:
    name, value = setting
    section, _, key = name.rpartition(".")
    first, _, second = section.partition(".")
    header = f'[{first} "{second}"]' if second else f"[{first}]"
    found = programs_named(f"{header}\n\t{key} = {value}\n".encode())
    assert [one for one, _ in found] == ([] if name in HARMLESS else [f"{section}.{key.lower()}"])


# A text, and the names that are found.
TEXTS = [
    ("[core]\n\tfsmonitor = true\n\tbare = false\n", []),
    ("[core] fsmonitor = x", ["core.fsmonitor"]),
    ("[http]\ncookieFile = ~/.bashrc\nsaveCookies = true", ["http.cookiefile", "http.savecookies"]),
    ('[http "https://h"]\nsaveCookies', ["http.https://h.savecookies"]),
    ("[core]fsmonitor=x", ["core.fsmonitor"]),
    ("[CORE]\nFsMonitor = x", ["core.fsmonitor"]),
    ('[core]\nfsmonitor = "tr"ue', []),
    ("[core]\nfsmonitor = \\\nx", ["core.fsmonitor"]),
    ("[core]\n# fsmonitor = x\n; pager = x\nbare = true # pager = x\n", []),
    ("\ufeff[core]\r\nfsmonitor = x\r\n", ["core.fsmonitor"]),
    ('[filter "a.b\\"c"]\nclean = x', ['filter.a.b"c.clean']),
    ("[filter.lower]\nsmudge = x", ["filter.lower.smudge"]),
    ('[filter ""]\nclean = x', ["filter..clean"]),
    ('[filter "lfs"]\nclean = git-lfs clean -- %f\nprocess = git-lfs filter-process\n', []),
    ('[filter "lfs"]\nclean = git-lfs clean -- %f | x\n', ["filter.lfs.clean"]),
    ("[alias]\nst = status\nx = !x\n", ["alias.x"]),
    *(
        (f"[alias]\nx = {alias}\n", ["alias.x"])
        for alias in (
            *("grep -O./tool a", "difftool -x ./tool", "bisect run ./tool", "submodule foreach ./tool"),
            *("rebase -x ./tool", "rebase -ix ./tool", "rebase --e=./tool", "rebase '-x' ./tool"),
            *("fetch --upload-pack=./tool", "pull --upl ./tool", "push --receive-pack=./tool"),
            *(
                "log --output=x",
                "show --outp x",
                "log '--out'put=x",
                r"diff -\\-output=x",
                "ls-files -o",
                "log -O./x",
            ),
            *("log -p -WOx", "diff --ext-diff", "show --textconv", "stash show '--ext-d'"),
            *("push --exec ./tool", "--exec-path=. status", "-c core.pager=./tool log"),
        )
    ),
    *(
        (f"[alias]\nx = {alias}\n", [])
        for alias in (
            *(
                "difftool",
                "log --graph --pretty=format:'%h (%an)'",
                "checkout -b",
                "commit --amend --no-edit",
                "commit -am 'work in progress'",
                "log --oneline --no-ext-diff --text -Sfoo",
                "merge -Xours -- x",
            ),
            *("push -u origin HEAD", "pull --rebase --autostash", "rebase -i --autosquash", "clean -dfx"),
        )
    ),
    ("[diff]\ntool = meld\n[merge]\nguitool = kdiff3\n", []),
    ("[diff]\ntool = ../../../tool\nguiTool = a/b\n", ["diff.tool", "diff.guitool"]),
    ("[merge]\ntool = ../../../tool\nguiTool = a/b\n", ["merge.tool", "merge.guitool"]),
    ("[include]\npath = x", ["include.path"]),
    ('[includeIf "gitdir:/"]\npath = x', ["includeif.gitdir:/.path"]),
    ("[core]\nworktree = ../x\n", ["core.worktree"]),
    (
        '[remote "origin"]\nurl = ../x\nfetch = +refs/heads/*:refs/remotes/origin/*\n[branch "m"]\nremote = origin\n',
        [],
    ),
    ("nonsense\n", [UNREADABLE]),
    ("[core\n", [UNREADABLE]),
    ('[core]\npager = "x\n', ["core.pager", UNREADABLE]),
    ("[user]\nname = x \\q\n[core]\npager = x", ["core.pager"]),
    ('[core "fsmonitor\0"]\nx = y', ["core.fsmonitor"]),
    ('[core "fsmonitor\0.x"]\ny = true\0', []),
    ("[core]\nfsmonitor = \0x\nworktree = x\0/../y", ["core.worktree"]),
    ("", []),
]


@every_row(("text", "names"), TEXTS)
def test_a_text_is_read_as_git_reads_it(tmp_path_factory, text, names) -> None:
    assert [name for name, _ in programs_named(text.encode())] == names
    file: Path = tmp_path_factory.mktemp("config") / "config"
    file.write_text(text, newline="")
    ran = subprocess.run(
        ["git", "config", "--file", file, "--name-only", "--list", "--no-includes"],
        capture_output=True,
        check=False,
    )
    if ran.returncode == 0:
        assert {name for name in names if name != UNREADABLE} <= {*ran.stdout.decode().split("\n")}
