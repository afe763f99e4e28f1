"""Whether commands can decide what a command line of the user's runs: one table for hooks and servers, to which a directory of the
work may be given, and for notifications and keys, to which it may not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from shlex import join
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from ralph.machine.own_programs import ProgramSearch, search_outside
from ralph.places.own_commands import guarding_files, module_variables, why_changeable
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

# $W is the work, where hooks and servers are started, and $H the home, where the others are. The words, whether a hook or a server
# may have them, and whether a notification or a key may.
LINES = {
    "a program elsewhere": ("$H/bin/tell --now", True, True),
    "a program on PATH": ("cat | grep x", True, True),
    "a script of the work": ("sh $W/s", False, False),
    "a script that is not there yet": ("sh $W/later", False, False),
    "one behind cd": ("cd $W/d && ./in", False, False),
    "one in a directory of a variable": ("sh $PROJ/s", False, False),
    "one in a directory that the line names": ("D=$PROJ; sh ${D}/s", False, False),
    "a variable without its end": ('sh "${PROJ%/}/s"', False, False),
    "a variable that must be set": ('sh "${PROJ:?}/s"', False, False),
    "a variable with a value in its place": ('cd "${PROJ:-/none}" && ./s', False, False),
    "what is in a variable's place": ("sh ${NONE:-$PROJ}/s", False, False),
    "the directory of the start": ('cd $W; sh "$(pwd)/s"', False, False),
    "the top of the work": ('cd $W; sh "`git rev-parse --show-toplevel 2>/dev/null`/s"', False, False),
    "a name with a space": ('cd $W; sh "a b/s"', False, False),
    "one behind a name with a space": ("cd $W/a\\ b && sh s", False, False),
    "a name with a sign": ("cd $W; sh a=b", False, False),
    "one behind env -C": ("env -C $W sh s", False, False),
    "a bare name for a shell": ("cd $W; sh s", False, False),
    "a module of the work": ("cd $W; python3 -m package.module", False, False),
    "a module in a statement": (
        "python3 -c \"import sys; sys.path.insert(0, '$W/d'); import mod\"",
        False,
        False,
    ),
    "a module of Perl": ("perl -I$W/d -MMod -e 1", False, False),
    "a class of Java": ("java -cp $W/d In", False, False),
    "a program of a PATH": ("PATH=$W/d:$PATH; tell", False, False),
    "more of a PATH": ("PATH+=:$W/d; tell", False, False),
    "a program of a PATH elsewhere that leads there": ("PATH=$H/other:$PATH there", False, False),
    "a PATH of the home": ("PATH=~/bin:$PATH tell", True, True),
    "a PATH elsewhere": ("PATH=$H/bin:$PATH tell", True, True),
    "what a variable loads": ("PYTHONPATH=$W/d python3 $H/bin/tell", False, False),
    "a name that is no such variable": ("ENV=prod $H/bin/tell", True, True),
    "a makefile of the work": ("make -sC $W all", False, False),
    "a script whose interpreter is in the work": ("$H/bin/named", False, False),
    "a wrapper that starts a script of the work": ("wrapper --now", False, False),
    "a wrapper with the work as data": ("$H/bin/logger", True, True),
    "a link in PATH": ("env linked", False, False),
    "a program of PATH with a second name in the work": ("cat | hard", False, False),
    "a script of PATH whose interpreter is in the work": ("named", False, False),
    "one behind another program": ("cat | named", False, False),
    "a script that starts one": ("$H/bin/outer", False, False),
    "one of PATH": ("cat | outer", False, False),
    "one that env finds by a link in PATH": ("cat | by-env", False, False),
    "one whose env has another PATH": ("by-path", False, False),
    "one with a script in its first line": ("by-script", False, False),
    "one whose words of env are quoted": ("by-quotes", False, False),
    "one whose first line has a NUL": ("cat | with-nul", True, True),
    "one that env finds elsewhere": ("cat | by-tell", True, True),
    "a wrapper that starts a link in PATH": ("cat | starts-link", False, False),
    "the work as data of a program": ("$H/bin/tell $W/d", True, False),
    "the work as data of a script": ("node $H/bin/tell $W/d", True, False),
    "the work as data behind an option": ("python3 -u $H/bin/tell --in $W/d", True, False),
    "the work as data behind cd": ("cd $W/d && node $H/bin/tell", True, False),
    "a directory behind an option with a value": ("node --require $H/bin/tell $W/d", False, False),
    "a file that is not there yet": ("cat > $H/log", True, True),
    "its own input": ("cat /dev/stdin", True, True),
    "one in a directory known only then": ('cd "$(jq -r .directory)" && ./in', False, False),
    "a script there": ('d=$(jq -r .directory) && bash "$d/in"', False, False),
    "a program there": ('D=$(jq -r .directory); "$D/bin/tool"', False, False),
    "a program behind a substitution": ("$(jq -r .directory)/tell", False, False),
    "one that is entered for each line": (
        'jq -r .directory | xargs -I{} sh -c "cd {} && ./in"',
        False,
        False,
    ),
    "one that is read": ('jq -r .directory | { read e; cd "$e"; ./in; }', False, False),
    "a text known only then": ('tell "$(jq -r .outcome)" /$x', True, True),
    "one behind options of cd": ('D=$(jq -r .directory); cd -P -- "$D"; make', False, False),
    "one where it was before": ("cd - && make", False, False),
    "a program there behind timeout": ('D=$(jq -r .directory); timeout -k 5 10s "$D/n"', False, False),
    "a program there behind sudo": ('D=$(jq -r .directory); sudo -u me stdbuf -oL "$D/n"', False, False),
    "a script there behind run": ('D=$(jq -r .directory); uv run -q "$D/x.py"', False, False),
    "a script there behind run of Deno": ('D=$(jq -r .directory); deno run "$D/x.ts"', False, False),
    "a script there in a pipe": ('D=$(jq -r .directory); cat "$D/x" | sh', False, False),
    "a script there as input": ('D=$(jq -r .directory); sh < "$D/x"', False, False),
    "a script there from a process": ('D=$(jq -r .directory); bash <(cat "$D/x")', False, False),
    "a script there for eval": ('D=$(jq -r .directory); eval "$(cat "$D/x")"', False, False),
    "a line for eval": ("D=$(jq -r .directory); eval 'cd \"$D\" && make'", False, False),
    "a program there in a case": ('D=$(jq -r .directory); case x in x) "$D/n";; esac', False, False),
    "one behind env -C there": ('D=$(jq -r .directory); env -C "$D" ./n', False, False),
    "git there behind xargs": ("jq -r .directory | xargs -I D git -C D log", False, False),
    "make there behind xargs": ("jq -r .directory | xargs make -C", False, False),
    "a script behind xargs": ("find / -name n.sh | xargs sh", False, False),
    "a script behind find": ("find / -name n.sh -exec sh {} +", False, False),
    "a text behind timeout": (
        'D=$(jq -r .directory); timeout 10 tell "$D" && nice -n 5 tell "$D"',
        True,
        True,
    ),
    "a text behind sudo": ('D=$(jq -r .directory); sudo -n -u me tell "$D"', True, True),
    "a text of xargs": ("jq -r .outcome | xargs -I {} tell {} x", True, True),
    "a text of words that start programs": (
        'D=$(jq -r .directory); tell timeout "$D" || tell nice go "$D"; tell eval "cd $D"',
        True,
        True,
    ),
    "a text for a module": ('D=$(jq -r .directory); python3 -m json.tool < "$D/x" || true', True, True),
    "a text without spaces": ('X=$(jq -r .x | xargs); tell "$X"', True, True),
    "a text for a script": ('D=$(jq -r .directory); tell < "$D/x" | sh $H/bin/tell "$D"', True, True),
    "patterns of a case": ("case $X in d/*|*) tell;; esac", True, True),
    "one of a loop": ("case $X in *) cd $W/d; for f in i*; do sh $f; done;; esac", False, False),
    "a script in a directory of the home": ('sh "$OWN/bin/tell"', True, True),
    "one whose directory is read": ('read OWN; sh "$OWN/bin/tell"', False, False),
    "one whose directory a loop sets": (
        'for OWN in $(jq -r .all); do sh "$OWN/bin/tell"; done',
        False,
        False,
    ),
    "one whose directory is set twice": ("A=$OWN; sh $A/bin/tell; A=$(jq -r .directory)", False, False),
    "one whose directory gets longer": ('OWN+=/../work/; sh "$OWN/later"', False, False),
    "a program with a script in a variable": ('A="env sh $(jq -r .x)"; $A', False, False),
    "a program and a script in a variable": ("A='nice sh /none'; $A", False, False),
    "a text of a variable": ('tell "$TEXT" $TEXT', True, True),
    "a filter that is known only then": ('D=$(jq -r .directory); awk -f "$D/x"', False, False),
    "a program of git that is known only then": ('D=$(jq -r .d); GIT_SSH="$D/x" git fetch', False, False),
    "a script for Python from its input": ("cat $H/bin/tell | python3", False, False),
    "a missing script of a runner": ("uv run $W/later.py", False, False),
    "a line that is no shell's": ("tell 'x", False, False),
    "a module with a text": ('python3 -c "print(1)" "$(jq -r .outcome)"', True, True),
    "a line of a shell with a text": ('sh -c \'tell "$1"\' x "$(jq -r .outcome)"', True, True),
    "a message": ('curl -s -d "$(jq -r .outcome)" ntfy.sh/x || tell "$X"', True, True),
    "a key in a file": ("jq -r .key $H/x.json | head -1", True, True),
    **{
        f"known only then: {line}": (f"D=$(jq -r .directory); {line}", False, False)
        for line in (
            'export $(cat "$D/.env" | xargs); tell',
            'read "$D"; tell',
            'export GIT_DIR="$D/.git"; git status',
            'GIT_WORK_TREE="$D" git status',
            'export GIT_SSH="$D/x"; git fetch',
            'HOME="$D" tell',
            'vim -es -S "$D/x.vim"',
            'sqlite3 -init "$D/x"',
            'sqlite3 ~/x.db ".read $D/x"',
            'ed -s ~/f < "$D/x"',
            "jq -r .result | sqlite3 ~/x.db",
            'gdb -batch -x "$D/x"',
            'tmux -f "$D/x" new -d',
            'ssh -F "$D/x" host',
            'run-parts "$D"',
            'timeout 9 systemd-run --user "$D/x"',
            'at -f "$D/x" now',
            'docker run -v "$D:/w" image sh /w/x',
            'awk "BEGIN{print \\"$D\\"}"',
            'echo T | sed "s|T|$D|"',
        )
    },
    **{
        f"everyday: {line}": (f"X=$(jq -r .outcome); {line}", True, True)
        for line in (
            'ssh host "tell $X"',
            'ssh -o ConnectTimeout=5 host tell "$X"',
            'osascript -e "display notification \\"$X\\""',
            'tmux display-message "$X"',
            'export X; tell "$X"',
            'GIT_AUTHOR_NAME="$X" tell',
            "read -r x; tell",
            "sqlite3 ~/x.db 'select 1' | tell",
            "awk '{print $1}' \"$X\"",
            "awk -v x=\"$X\" '{print x}'",
            "echo \"$X\" | sed -E 's/a/b/' | tell",
            "printf '%s' \"$X\" | awk -F: '{print $2}'",
            "jq -r .x | sed -n 1p",
            'git log -1 --format="$X"',
        )
    },
    "a module of Node.js that is looked for": ("node -r mod $H/bin/tell", False, False),
    "one behind another option": ("node --no-warnings --import=mod $H/bin/tell", False, False),
    "a file for Node.js": ("node --no-warnings -r $H/bin/tell $H/bin/tell -r mod", True, True),
    "a variable before a program": ("X=$(jq -r .x) tell $X", True, True),
}


def test_a_dotfile_that_leads_into_the_work_decides_what_a_program_does(tmp_path) -> None:
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
    environment = {"HOME": str(tmp_path / "home"), "PATH": os.defpath}
    search = search_outside(environment, (tmp_path / "work",))
    assert why_changeable("true", "/", environment, search) == ""
    (tmp_path / "home/.curlrc").symlink_to(tmp_path / "work/curlrc")
    assert "/home/.curlrc, which programs read, leads" in why_changeable("true", "/", environment, search)
    assert why_changeable("true", "/", environment, search, names={}) == "", "git's are judged apart"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with the work and the home of the lines, which none of them changes."""
    place: Path = tmp_path_factory.mktemp("place")
    work, home = place / "work", place / "home"
    for name in (
        *(
            "work/s",
            "work/a b/s",
            "work/a=b",
            "work/d/in",
            "work/d/__main__.py",
            "work/d/mod.py",
            "work/d/Mod.pm",
        ),
        *("work/d/In.class", "work/package/module.py", "work/d/package.json"),
        *("home/bin/tell", "home/bin/named", "home/bin/outer"),
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch(0o755)
    (home / "bin/named").write_text(f"#!{work}/s\n")
    (home / "bin/wrapper").write_text('#!/bin/sh\n# sh\nD=$PROJ/d\nexec sh "$D/in" "$@"\n')
    (home / "bin/wrapper").chmod(0o755)
    for name, text in {
        "by-env": "#!/usr/bin/env -S linked -u\n",
        "by-path": f"#!/usr/bin/env -S PATH=/usr/bin:{work} tell\n",
        "by-script": f"#!/bin/sh {work}/s\n",
        "by-quotes": "#!/usr/bin/env -S'linked' -u\n",
        "by-tell": "#!/usr/bin/env tell\n",
        "with-nul": "#!/bin/sh\0x\n",
        "starts-link": "#!/bin/sh\nexec linked\n",
    }.items():
        (home / "bin" / name).write_text(text)
        (home / "bin" / name).chmod(0o755)
    (home / "bin/logger").write_text(f"#!/bin/sh\ngrep x {work}/s\n# sh {work}/s\n")
    (home / "bin/outer").write_text(f"#! {home}/bin/named -x\n")
    (home / "bin/linked").symlink_to(work / "s")
    (home / "bin/hard").hardlink_to(work / "s")
    (home / "other").mkdir()
    (home / "other/there").symlink_to(work / "s")
    return place


@every_row(("line", "is_for_hooks", "is_for_keys"), [*LINES.values()])
def test_commands_decide_what_a_line_runs(place, line, *, is_for_hooks, is_for_keys) -> None:
    work, home = place / "work", place / "home"
    environment = {"HOME": str(home), "PATH": f"{home}/bin:{os.defpath}", "PROJ": str(work), "OWN": str(home)}
    environment["TEXT"] = "don't (5 > 4) `done` $(x"
    search = search_outside(environment, (work,))
    text = line.replace("$W", str(work)).replace("$H/", f"{home}/")
    for directory, takes_data, may in ((work, True, is_for_hooks), (home, False, is_for_keys)):
        why = why_changeable(text, str(directory), environment, search, takes_data=takes_data)
        assert (why == "") is may, why


def test_a_program_of_asdf_is_chosen_by_what_lies_where_it_starts(tmp_path) -> None:
    (tmp_path / "shims").mkdir()
    shim = tmp_path / "shims/tell"
    shim.write_text('#!/usr/bin/env bash\nexec /opt/asdf exec "tell" "$@"\n')
    shim.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/shims:{os.defpath}"}
    search = search_outside(environment, (tmp_path / "work",))
    why = [
        why_changeable("tell --now", f"{tmp_path}/{place}", environment, search) for place in ("work", "home")
    ]
    assert [one.partition(" finds what it runs in ")[0] for one in why] == ["asdf", ""]


@every_row(
    ("line", "is_safe"),
    [
        ("python3 -c 'import mod'", True),
        ("python3 -um mod", True),
        ("python3 - < x", True),
        ("python3 <<E", True),
        ("echo 'import mod' | python3", True),
        ("echo 'import mod' | env python3.11 -u -B; true", True),
        ("python3 $H/bin/tell --mode c", False),
        ("python3 -u $H/bin/tell", False),
    ],
)
def test_no_module_beside_it_is_taken_by_what_names_one(line, *, is_safe) -> None:
    found = module_variables({"PYTHONPATH": "/x"}, ProgramSearch(), line)
    assert ("PYTHONSAFEPATH" in found) is is_safe
    # Its own directory comes first, unless commands may write that.
    own, _, given = found["PYTHONPATH"].partition(":")
    assert given == "/x"
    assert "PYTHONPATH" not in module_variables({}, ProgramSearch(roots=(own,)), line)


@pytest.mark.parametrize("has_own", [False, True])
def test_a_python_program_runs_nothing_unasked_of_an_editable_installation(tmp_path, has_own) -> None:
    base, work = tmp_path / "base", tmp_path / "work"
    work.mkdir()
    packages = base / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    (packages / "editable.pth").write_text(f"{work}\n")
    (packages / "shared.py").write_text("place = 'packages'\n")
    later = tmp_path / "later"
    later.mkdir()
    (packages / "later.pth").write_text(f"{later}\n")
    for place in (work, later):
        (place / "shared.py").write_text(f"place = {str(place)!r}\n")
        (place / "other.py").write_text(f"place = {str(place)!r}\n")
    (work / "usercustomize.py").write_text("print('of the work')\n")
    (work / "mine.py").write_text("print('imported')\n")
    if has_own:
        (packages / "usercustomize.py").write_text("print('own')\n")
    own = ProgramSearch(os.defpath, (str(work),), ())
    given = {"PYTHONUSERBASE": str(base)}
    given |= module_variables({"PYTHONPATH": ""}, own, "python3 guard.py")
    program = "import shared, other, mine; print(shared.place, other.place)"
    ran = subprocess.run(
        [sys.base_prefix + "/bin/python3", "-c", program],
        env=given,
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.splitlines() == [*(["own"] * has_own), "imported", f"packages {later}"]


USERS, OWN, VENV = (f"{one}/lib/python3.11/site-packages" for one in (".local", "py", "venvs/mp"))
FROM_WORK = (f"{USERS}/x.pth", "$W/src\n")
# $H is the home, and $H/py the Python of PATH. The line, the file in the home and its text, and whether the line is refused.
INSTALLED = {
    "a module": ("python3 -m mypkg.server", *FROM_WORK, True),
    "one beside the interpreter": ("python3 -m mypkg.server", f"{OWN}/x.pth", "$W/src\n", True),
    "one of Debian": (
        "python3 -m mypkg.server",
        "py/local/lib/python3.11/dist-packages/x.pth",
        "$W/src\n",
        True,
    ),
    "one of another version": (
        "python3 -m mypkg.server",
        ".local/lib/python3.9/site-packages/x.pth",
        "$W/src\n",
        False,
    ),
    "one elsewhere": ("python3 -m mypkg.server", f"{USERS}/x.pth", "$H/src\n", False),
    "a comment": ("python3 -m mypkg.server", f"{USERS}/x.pth", "# $W/src\n\n", False),
    "a relative one": ("python3 -m mypkg.server", f"{USERS}/x.pth", "../../../../../work/src\n", True),
    "code": ("python3 -m mypkg.server", f"{USERS}/x.pth", "import sys; sys.path.append('$W/src')\n", True),
    "a finder": (
        "python3 -m mypkg.server",
        f"{USERS}/__editable___mypkg_0_1_finder.py",
        "MAPPING: dict[str, str] = {'mypkg': '$W/src/mypkg'}\n",
        True,
    ),
    "a finder of hatch": (
        "python3 -m mypkg.server",
        f"{USERS}/_editable_impl_mypkg.py",
        "F.map_module('mypkg', '$W/src/mypkg/__init__.py')\n",
        True,
    ),
    "an unknown finder": (
        "python3 -m mypkg.server",
        f"{USERS}/mypkg-0.1.dist-info/direct_url.json",
        '{"dir_info": {"editable": true}, "url": "file://$W"}',
        True,
    ),
    "not the user's, isolated": ("python3 -I -m mypkg.server", *FROM_WORK, False),
    "not the user's, behind another option": ("python3 -W error -sm mypkg.server", *FROM_WORK, False),
    "an option of the module": ("python3 -m mypkg.server -I", *FROM_WORK, True),
    "no other option": ("python3 -E -u -m mypkg.server", *FROM_WORK, True),
    "its own, isolated": ("python3 -I -m mypkg.server", f"{OWN}/x.pth", "$W/src\n", True),
    "none": ("python3 -IS -m mypkg.server", f"{OWN}/x.pth", "$W/src\n", False),
    "two of which one is isolated": ("python3 -I -m a; python3 -m b", *FROM_WORK, True),
    "a script": ("mysrv --now", *FROM_WORK, True),
    "a script that a Python is told": ("python3 -I $H/bin/mysrv", *FROM_WORK, False),
    "a script with options": ("quiet", *FROM_WORK, False),
    "a script with options, beside the interpreter": ("quiet", f"{OWN}/x.pth", "$W/src\n", True),
    "a script that env starts": ("by-env", *FROM_WORK, True),
    "a script of a virtual environment": ("mp", f"{VENV}/x.pth", "$W/src\n", True),
    "one that it does not see": ("mp", *FROM_WORK, False),
    "one that it does not see either": ("mp", f"{OWN}/x.pth", "$W/src\n", False),
    "a link to a Python": ("$H/linked -m mypkg.server", f"{OWN}/x.pth", "$W/src\n", True),
    "one of a virtual environment": ("$H/venvs/mp/bin/python -m mypkg", f"{VENV}/x.pth", "$W/src\n", True),
    "an activated one": (". $H/venvs/mp/bin/activate; python3 -m mypkg", f"{VENV}/x.pth", "$W/src\n", True),
    "one of a PATH": ("PATH=$H/venvs/mp/bin:$PATH only", f"{VENV}/x.pth", "$W/src\n", True),
    "one of pyenv": ("shimmed", f"pyenv/versions/3.11.7/{OWN[3:]}/x.pth", "$W/src\n", True),
    "one behind another program": ("cat | timeout 9 mysrv", *FROM_WORK, True),
    "one in a text": ("sh -c 'mysrv x'", *FROM_WORK, True),
    "one of a wrapper": ("wrapper", *FROM_WORK, True),
    "one in a word": ("tell --run 'python3 -m mypkg.server'", *FROM_WORK, True),
    "another program": ("cat | tell", *FROM_WORK, False),
}


def installed(place: Path) -> Path:
    """A home with a Python, and programs that it runs."""
    home = place / "home"
    programs = {
        "bin/tell": "#!/bin/sh\ncat\n",
        "bin/mysrv": f"#!{home}/py/bin/python3\nfrom mypkg.server import main\n",
        "bin/quiet": f"#!{home}/py/bin/python3 -sE\n",
        "bin/by-env": "#!/usr/bin/env -S python3 -u\n",
        "bin/wrapper": "#!/bin/sh\nexec python3 -m mypkg.server\n",
        "py/bin/python3.11": "",
        "venvs/mp/bin/mp": f"#!{home}/venvs/mp/bin/python\n",
        "venvs/mp/bin/only": f"#!{home}/venvs/mp/bin/python\n",
        "venvs/mp/bin/activate": "# sourced\n",
        "venvs/mp/pyvenv.cfg": "include-system-site-packages = false\n",
        "pyenv/shims/shimmed": '#!/bin/sh\nexec pyenv exec shimmed "$@"\n',
        "pyenv/versions/3.11.7/bin/python3.11": "",
        "pyenv/versions/3.11.7/bin/shimmed": f"#!{home}/pyenv/versions/3.11.7/bin/python3.11\n",
    }
    for name, text in programs.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    links = {"py/bin/python3": "python3.11", "linked": "py/bin/python3", "bin/mp": "../venvs/mp/bin/mp"}
    links |= dict.fromkeys(("venvs/mp/bin/python", "venvs/mp/bin/python3"), "../../../py/bin/python3")
    for name, target in links.items():
        (home / name).symlink_to(target)
    return home


def why_of(line: str, home: Path, work: Path, **variables: str) -> str:
    path = f"{home}/bin:{home}/pyenv/shims:{home}/py/bin:{os.defpath}"
    environment = {"HOME": str(home), "PATH": path, **variables}
    search = search_outside(environment, (work,))
    line = line.replace("$H", str(home))
    found = [
        why_changeable(line, directory, environment, search, takes_data=is_server)
        for directory, is_server in (("/", True), (str(home), False))
    ]
    assert found[0] == found[1]
    return found[0]


@every_row(("line", "file", "text", "is_refused"), [*INSTALLED.values()])
def test_commands_decide_what_an_editable_installation_runs(
    tmp_path_factory, line, file, text, *, is_refused
) -> None:
    place: Path = tmp_path_factory.mktemp("place")
    home, work = installed(place), place / "work"
    (home / file).parent.mkdir(parents=True, exist_ok=True)
    (home / file).write_text(text.replace("$W", str(work)).replace("$H", str(home)))
    why = why_of(line, home, work)
    assert (" takes modules from " in why) is is_refused, why
    assert bool(why) is is_refused
    if is_refused:
        entry = home / file if "dist-info" not in file else (home / file).parent
        assert f" takes modules from {work}" in why
        assert f" by {entry}, where commands may write" in why


@every_row(
    ("link", "target", "is_refused"),
    [
        ("app/node_modules/nm", "work/nm", True),
        ("app/node_modules/@scope/nm", "work/nm", True),
        ("node_modules", "work/node_modules", True),
        ("app/node_modules/nm", "store/nm", False),
        ("app/lib/node_modules/nm", "work/nm", False),
    ],
)
def test_commands_decide_what_a_linked_module_of_node_runs(
    tmp_path_factory, link, target, *, is_refused
) -> None:
    place: Path = tmp_path_factory.mktemp("place")
    home, work = installed(place), place / "work"
    (home / link).parent.mkdir(parents=True, exist_ok=True)
    (home / "app").mkdir(exist_ok=True)
    for script in ("app/main.js", "app/lib/main.js"):
        (home / script).parent.mkdir(exist_ok=True)
        (home / script).write_text("#!/usr/bin/env node\n")
    (home / link).symlink_to(place / target)
    script = "app/lib/main.js" if "/lib/" in link else "app/main.js"
    why = why_of(f"node {home}/{script}", home, work)
    assert (f"{home}/{link} leads to modules where commands may write" in why) is is_refused, why
    assert "leads to modules" not in why_of(f"curl -d @{home}/app/other.txt x", home, work)


def test_the_users_modules_are_those_of_the_variables(tmp_path) -> None:
    home, work = installed(tmp_path), tmp_path / "work"
    packages = home / USERS
    packages.mkdir(parents=True)
    (packages / "mypkg").symlink_to(work / "src/mypkg")
    told = f"{home}/py/bin/python3 takes modules from {packages}/mypkg, where commands may write"
    assert why_of("python3 -m mypkg", home, work) == told
    assert why_of("python3 -m mypkg", home, work, PYTHONNOUSERSITE="1") == ""
    assert why_of("python3 -E -m mypkg", home, work, PYTHONNOUSERSITE="1") == told
    packages.parents[3].joinpath("other").mkdir()
    packages.parents[2].rename(home / "other/base")
    assert why_of("python3 -m mypkg", home, work) == ""
    assert "/other/base/lib/" in why_of("python3 -m mypkg", home, work, PYTHONUSERBASE=f"{home}/other/base")
    (home / "venvs/mp/pyvenv.cfg").write_text("include-system-site-packages = true\n")
    assert "/other/base/lib/" in why_of("mp", home, work, PYTHONUSERBASE=f"{home}/other/base")
    assert why_of("python3 -sm mypkg", home, home / ".local") == ""
    assert why_of("python3 -m mypkg", home, home / ".local") == (
        f"{home}/py/bin/python3 takes modules from {home}/.local/lib, where commands may write"
    )


@pytest.mark.parametrize("name", ["s.py", "d/in"])
@every_row(
    ("line", "is_script"),
    [
        ("uv run $F", True),
        ("uv run --script $F --strict", True),
        ("bun run $F", True),
        ("deno run -A $F", True),
        ("pwsh -File $F", True),
        ("jq -ef $F", True),
        ("jq --from-file=$F x", True),
        ("awk -F: -f '$F'", True),
        ("jq -r .name $F", False),
        ("awk '/x/' $F", False),
        ("tail -f $F", False),
        ("uv run $H/guard $F", False),
    ],
)
def test_what_a_runner_starts_is_a_script_and_its_data_are_not(tmp_path, line, name, *, is_script) -> None:
    script = tmp_path / name
    script.parent.mkdir(exist_ok=True)
    script.touch()
    found = guarding_files(
        [line.replace("$F", name)], str(tmp_path), {"HOME": "/h"}, search_outside({}, (tmp_path,))
    )
    assert (str(script) in found) is is_script


@every_row("name", ["plain", "My Project", "it's", 'a"b', "a\\b", "a(b)", "a$b", "proj [x]", "a;b", "a,b"])
@every_row(
    ("line", "script"),
    [
        ('"$PROJ"/.hooks/run', "run"),
        ('bash "$PROJ"/.hooks/g.sh', "g.sh"),
        ('bash "$PROJ/.hooks/g.sh"', "g.sh"),
        ('sh -e "${PROJ}"/.hooks/g.sh', "g.sh"),
        ('jq -e --from-file "$PROJ"/.hooks/g.jq', "g.jq"),
        ('awk -f "$PROJ/.hooks/g.awk"', "g.awk"),
        ('python3 ".my hooks/g.py"', "g.py"),
        ("node .my\\ hooks/g.js", "g.js"),
    ],
)
def test_a_script_of_a_guard_is_found_however_it_is_quoted(tmp_path, line, script, *, name) -> None:
    work = tmp_path / name
    for place in (work / ".hooks", work / ".my hooks"):
        place.mkdir(parents=True, exist_ok=True)
        (place / script).touch(0o700 if script == "run" else 0o600)
    environment = {"HOME": "/h", "PROJ": str(work)}
    found = guarding_files([line], str(work), environment, search_outside({}, (work,)))
    assert {path.rpartition("/")[2] for path in found} == {script}


@every_row(
    ("words", "is_refused"),
    [
        (["npx", "--prefix", "$W", "mine"], True),
        (["npx", "--prefix=$W", "mine"], True),
        (["npm", "--prefix", "$W", "exec", "mine"], True),
        (["uv", "--directory=$W", "run", "mine"], True),
        (["uvx", "--from", "$W", "mine"], True),
        (["pipx", "run", "--spec", "$W", "mine"], True),
        (["make", "-C", "$W", "serve"], True),
        (["env", "-C", "$W", "npx", "mine"], True),
        (["sh", "-c", "cd '$W' && npx mine"], True),
        (["npx", "-y", "$W"], True),
        (["npx", "-y", "file:$W"], True),
        (["npx", "-y", "bridge", "--stdio", "npx -y '$W/srv'"], True),
        (["npx", "-y", "bridge", "--stdio", "npx -y server '$W'"], False),
        (["npx", "-y", "-p", "$W", "mine"], True),
        (["uvx", "$W"], True),
        (["uvx", "--from", "file://$W", "mine"], True),
        (["pnpm", "dlx", "$W"], True),
        (["go", "run", "$W"], True),
        (["gradle", "-p", "$W", "run"], True),
        (["dotnet", "run", "--project", "$W"], True),
        (["swift", "run", "--package-path", "$W"], True),
        (["uvx", "--from", "$W[cli]", "mine"], True),
        (["uv", "run", "--with", "a,$W[cli]", "mine"], True),
        (["pipx", "run", "--spec", "mine[cli] @ file://$W", "mine"], True),
        (["uvx", "--from", "git+file://$W@main", "mine"], True),
        (["uvx", "--from", "file://localhost$U", "mine"], True),
        (["npx", "-y", "mine@file:$W"], True),
        (["yarn", "dlx", "-p", "mine@file:$W", "mine"], True),
        (["nix", "run", "$W#mine"], True),
        (["make", "-C$W", "serve"], True),
        (["mise", "--cd", "$W", "run", "mine"], True),
        (["uvx", "--from", "$H[cli]", "mine"], False),
        (["uvx", "--from", "mine[cli]@1.0", "mine", "$W"], False),
        (["npx", "-y", "@scope/mine@1.0", "$W"], False),
        (["npx", "-y", "-p", "server", "server", "$W"], False),
        (["npx", "-y", "server-filesystem", "$W"], False),
        (["npx", "-y", "server", "--directory", "$W"], False),
        (["uvx", "mcp-server-git", "--repository", "$W"], False),
        (["npx", "--prefix", "$H", "mine"], False),
    ],
)
def test_what_a_runner_finds_in_the_work_gets_no_credential(tmp_path, words, is_refused) -> None:
    work, home = tmp_path / "my work", tmp_path / "home"
    work.mkdir(exist_ok=True)
    home.mkdir(exist_ok=True)
    values = {"$W": str(work), "$U": quote(str(work)), "$H": str(home)}
    named = [re.sub(r"\$[WUH]", lambda found: values[found[0]], word) for word in words]
    search = search_outside({"PATH": os.defpath}, (work,))
    why = why_changeable(join(named), "/", {"HOME": str(home)}, search, takes_data=True)
    assert bool(why) is is_refused
    if is_refused:  # a notification or a key
        assert why_changeable(join(named), "/", {"HOME": str(home)}, search)
