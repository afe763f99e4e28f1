"""Programs and modules that somebody else put into the working directory must not run as a part of ralph."""

from __future__ import annotations

import importlib.util
import marshal
import os
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.cli import command_line
from ralph.machine.own_process import READ_LATER, leave_working_directory_out
from ralph.mock_api import Turn
from tests.program.model_answers import bash, calls, report, results
from tests.rows import every_row

# As an installer writes it, but for its name: the interpreter puts the directory of the script first.
CONSOLE_SCRIPT = "import sys\nfrom ralph.__main__ import main\nsys.exit(main())\n"

# What the interpreter has loaded before ralph's first line is not among them, and cannot be helped.
MODULES = "__future__ resource _ctypes signal contextlib json typing typer httpx rich".split()


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that a planted program writes if it runs."""
    return tmp_path / "mark"


def plant_programs(directory: Path, mark: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        program = directory / name
        program.write_text(f"#!/bin/sh\necho {name} >>'{mark}'\nexit 1\n")
        program.chmod(0o755)


def plant_modules(directory: Path, mark: Path, *names: str) -> None:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / f"{name}.py").write_text(
            f"open({str(mark)!r}, 'a').write('{name} ')\nraise ImportError\n"
        )


ENTRIES = ("", ".", "{of}", "{cwd}/{of}", "{cwd}", "{link}")
"""Entries of a search path that lead into the working directory. `of` is a directory there."""


def leading_in(ralph, name: str) -> str:
    """All these entries, in the form in which a search path begins."""
    link = ralph.cwd.parent / "link"
    link.symlink_to(ralph.cwd / name)
    return os.pathsep.join(entry.format(cwd=ralph.cwd, of=name, link=link) for entry in ENTRIES)


def test_a_program_that_lies_in_the_working_directory_is_not_the_tools_own(ralph, serve, mark) -> None:
    for directory in (ralph.cwd, ralph.cwd / "bin"):
        plant_programs(directory, mark, "rg", "bash", "sh")
    search_path = f"{leading_in(ralph, 'bin')}:{ralph.environment['PATH']}"
    ralph.environment["PATH"] = search_path
    searches = calls(("Grep", {"pattern": "needle"}), ("Glob", {"pattern": "*.txt"}))
    serve(searches, bash('printf %s "$PATH" >path; echo needle >found.txt'), Turn("Done."))
    assert ralph("go").code == 0
    assert not mark.exists()
    assert (ralph.cwd / "path").read_text() == search_path, "commands have what the user has set"


@pytest.mark.ordinary_user
def test_an_rg_and_a_bwrap_of_path_that_others_can_write_are_not_asked(ralph, serve, tmp_path) -> None:
    mark = tmp_path / "mark"
    plant_programs(tmp_path / "elsewhere", mark, "rg", "bwrap")
    (tmp_path / "elsewhere").chmod(0o777)
    ralph.environment["PATH"] = f"{tmp_path}/elsewhere:{ralph.environment['PATH']}"
    (ralph.cwd / "found.txt").write_text("needle\n")
    server = serve(calls(("Grep", {"pattern": "needle"}), ("Glob", {"pattern": "*.txt"})), Turn("Done."))
    assert ralph("go").code == 0
    assert results(server, 1) == [("found.txt", False)] * 2
    checked = ralph("doctor").stdout
    assert f"{tmp_path}/elsewhere/rg: {tmp_path}/elsewhere" in checked, "doctor says why"
    assert not mark.exists()


def test_an_rg_and_a_bwrap_of_an_added_directory_and_of_sandbox_write_are_not_asked(
    ralph, serve, tmp_path
) -> None:
    mark = tmp_path / "mark"
    for name in ("added", "given"):
        plant_programs(tmp_path / name / "bin", mark, "rg", "bwrap")
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[sandbox]\nwrite = ["{tmp_path}/given"]\n')
    ralph.environment["PATH"] = f"{tmp_path}/added/bin:{tmp_path}/given/bin:{ralph.environment['PATH']}"
    (ralph.cwd / "found.txt").write_text("needle\n")
    server = serve(calls(("Grep", {"pattern": "needle"})), bash("true"), Turn("Done."))
    ralph("go", "--add-dir", str(tmp_path / "added"), "--config", str(settings), code=0)
    assert results(server, 1) == [("found.txt", False)]
    assert not mark.exists()


def test_a_loop_runs_no_git_to_which_a_path_leads_through_what_commands_may_write(
    ralph, checkout, iterations, mark, tmp_path
) -> None:
    caches = Path(ralph.environment["HOME"], ".cache/ralph/packages/of-another")
    given = {name: tmp_path / name for name in ("linked", "added", "given")} | {"cached": caches}
    for directory in given.values():
        plant_programs(directory, mark, "git", "bash", "ssh")
    # As a command leaves an activated environment.
    (ralph.cwd / ".venv").mkdir()
    (ralph.cwd / ".venv/bin").symlink_to(given["linked"])
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[sandbox]\nwrite = ["{given["given"]}"]\n')
    entries = [ralph.cwd / ".venv/bin", *(given[name] for name in ("added", "given", "cached"))]
    ralph.environment["PATH"] = ":".join(map(str, (*entries, ralph.environment["PATH"])))
    ralph.environment.pop("XDG_CACHE_HOME", None)
    iterations([bash("/bin/true")])
    added = ("--add-dir", str(given["added"]), "--config", str(settings))
    ralph("loop", "go", "--commit", "--until", "/bin/true", "--max-iterations", "1", *added, code=0)
    assert not mark.exists()


def test_a_loop_runs_neither_git_nor_a_shell_nor_ssh_of_the_checkout(
    ralph, checkout, iterations, mark
) -> None:
    checkout.git("remote", "set-url", "origin", "ssh://git.example.test/repository")
    plant_programs(ralph.cwd, mark, "git", "bash", "ssh", "git-upload-pack")
    ssh = ralph.cwd.parent / "programs"
    plant_programs(ssh, ralph.cwd.parent / "asked", "ssh")
    ralph.environment["PATH"] = f".:{ssh}:{ralph.environment['PATH']}"
    iterations([bash("/bin/true")])
    ran = ralph("loop", "go", "--until", "/bin/true", "--push", "--max-iterations", "1")
    assert "cannot push" in ran.stderr or ran.code == 78
    assert (ralph.cwd.parent / "asked").read_text() == "ssh\n", "the user's own ssh was asked"
    assert not mark.exists()


def console(ralph, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    script = ralph.cwd.parent / "bin" / "ralph"
    script.parent.mkdir(exist_ok=True)
    script.write_text(CONSOLE_SCRIPT)
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=cwd or ralph.cwd,
        env=ralph.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_module_that_pythonpath_finds_in_the_working_directory_is_not_imported(ralph, serve, mark) -> None:
    for directory in (ralph.cwd, ralph.cwd / "src", ralph.cwd.parent / "bin"):
        plant_modules(directory, mark, *MODULES)
    python_path = f"{leading_in(ralph, 'src')}{os.pathsep}{ralph.environment['PYTHONPATH']}"
    ralph.environment["PYTHONPATH"] = python_path
    serve(calls(("Grep", {"pattern": "needle"})), bash('printf %s "$PYTHONPATH" >path'), Turn("Done."))
    ran = console(ralph, "run", "go")
    assert (ran.returncode, ran.stdout) == (0, "Done.\n"), ran.stderr
    assert not mark.exists()
    assert (ralph.cwd / "path").read_text() == python_path, "commands have what the user has set"


@every_row("option", ["--cd {}", "--cd={}", "-C {}", "-qC{}", "--add-dir {}", "--add-dir={}"])
def test_the_import_path_leaves_out_the_directory_that_is_named(monkeypatch, tmp_path, option) -> None:
    named, other = tmp_path / "named", tmp_path / "other"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PYTHONPATH", f"{named}/src{os.pathsep}{other}")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [f"{named}/src", str(other)])
        assert leave_working_directory_out(["go", *option.format(named).split()]) == [f"{named}/src"]
        assert sys.path == [str(other)]


def test_the_import_path_leaves_out_what_a_link_in_the_working_directory_leads_to(
    monkeypatch, tmp_path
) -> None:
    work, cache = tmp_path / "work", tmp_path / "cache"
    for directory in (work, cache / "deep", cache / "ralph/packages/0"):
        directory.mkdir(parents=True)
    (work / "src").symlink_to(cache)
    (work / "ring").symlink_to("ring")
    (tmp_path / "link").symlink_to(work / "src")
    (tmp_path / "packages").symlink_to(cache / "ralph/packages/0")
    named = [
        *(f"{work}/src", f"{work}/src/deep", f"{tmp_path}/link", f"{work}/ring", f"{tmp_path}/packages"),
        *("/dev/shm/x", f"{cache}/ralph/packages/0"),
    ]
    monkeypatch.chdir(work)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((*named, str(cache))))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*named, str(cache)])
        for prefix, kept in ((named[0], None), (named[2], None), ("x", None), (str(cache), str(cache))):
            patch.setattr(sys, "pycache_prefix", prefix)
            assert leave_working_directory_out(["go"]) in (named, [])
            assert sys.pycache_prefix == kept
        assert sys.path == [str(cache)]


def test_byte_code_that_a_command_may_write_is_not_loaded(ralph, mark) -> None:
    """It is looked for where PYTHONPYCACHEPREFIX names, and taken for that of a file with the same time and size."""
    prefix = ralph.cwd / "cache"
    source = Path(command_line.__file__)
    status = source.stat()
    planted = Path(f"{prefix}{source.parent}", Path(importlib.util.cache_from_source(str(source))).name)
    planted.parent.mkdir(parents=True)
    code = compile(f"{source.read_text()}\nopen({str(mark)!r}, 'w')\n", source, "exec")
    times = struct.pack("<III", 0, int(status.st_mtime), status.st_size)
    planted.write_bytes(importlib.util.MAGIC_NUMBER + times + marshal.dumps(code))
    ralph.environment["PYTHONPYCACHEPREFIX"] = str(prefix)
    loads = [sys.executable, "-c", "import ralph.cli.command_line"]
    subprocess.run(loads, cwd="/", env=ralph.environment, check=True)
    assert mark.exists(), "Python takes it"
    mark.unlink()
    assert console(ralph, "sessions").returncode == 0
    assert not mark.exists()


TELLS_VARIABLES = """
import ctypes, os
from ralph.machine.own_process import READ_LATER, leave_working_directory_out
leave_working_directory_out([])
found = ctypes.CDLL(None).getenv
found.restype = ctypes.c_char_p
print([(os.environ[name], found(name.encode())) for name in READ_LATER])
"""


def test_libraries_of_ralph_do_not_see_settings_in_the_working_directory(ralph) -> None:
    for value, seen in (("x", None), (f"{ralph.cwd}/x", None), ("/etc/x", b"/etc/x")):
        environment = ralph.environment | dict.fromkeys(READ_LATER, value)
        command = [sys.executable, "-c", TELLS_VARIABLES]
        said = subprocess.check_output(command, cwd=ralph.cwd, env=environment, text=True)
        assert said == f"{[(value, seen)] * len(READ_LATER)}\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only its loader tells what it loads")
@pytest.mark.parametrize("command", ["loop", "run", "servers"])
def test_the_loader_of_ralphs_own_programs_knows_no_directory_of_the_work(
    ralph, checkout, serve, iterations, tmp_path, command
) -> None:
    """The loader writes a file about each program that it starts with these variables."""
    ralph.starts_afresh = True
    (ralph.cwd / "lib").mkdir()
    ralph.environment |= {"LD_LIBRARY_PATH": f"{ralph.cwd}/lib", "LD_DEBUG": "libs"}
    ralph.environment["LD_DEBUG_OUTPUT"] = f"{tmp_path}/loaded"
    shows = 'printf %s "$LD_LIBRARY_PATH" >path; echo needle >a; kill -9 $PPID'
    turns = [bash(shows), bash("true"), calls(("Grep", {"pattern": "needle"}))]
    if command == "loop":
        iterations(turns, [bash("true")])
        ran = ralph("loop", "go", "--commit", "--max-iterations", "2", "--report", "page.html")
    elif command == "run":
        serve(*turns, report(payload={}))
        ran = ralph("go", "--json-schema", '{"type": "object"}')
    else:
        serve(Turn("Done."))
        ralph.user_file.write_text(
            f'[mcp.servers.own]\ncommand = "{sys.executable}"\nargs = ["-c", ""]\nsandbox = false\n'
        )
        ran = ralph("go")
    assert ran.code == (78 if command == "servers" else 0), ran.stderr
    if command != "servers":
        assert (ralph.cwd / "path").read_text() == f"{ralph.cwd}/lib", "commands have what the user has set"
    started = [
        found[1]
        for file in tmp_path.glob("loaded.*")
        if (found := re.search(r"initialize program: (\S+)", file.read_text(errors="replace")))
    ]
    own = [name for name in started if Path(name).name.startswith(("python", "git", "rg", "ssh"))]
    assert len(own) == 1, f"only ralph itself was started with them: {started}"


def test_what_lies_in_the_directory_that_is_named_is_not_imported_either(ralph, serve, mark) -> None:
    plant_modules(ralph.cwd / "src", mark, *MODULES)
    ralph.environment["PYTHONPATH"] = f"{ralph.cwd}/src{os.pathsep}{ralph.environment['PYTHONPATH']}"
    serve(Turn("Done."))
    ran = console(ralph, "run", "go", f"-qC{ralph.cwd.name}", cwd=ralph.cwd.parent)
    assert (ran.returncode, ran.stdout) == (0, "Done.\n"), ran.stderr
    assert not mark.exists()


def test_what_an_iteration_writes_is_not_imported_by_the_next(ralph, iterations, mark) -> None:
    """Not even the interpreter may import it before ralph's first line, because a loop starts its iterations
    isolated.
    """
    ralph.environment["PYTHONPATH"] = f".{os.pathsep}{ralph.environment['PYTHONPATH']}"
    code = f"import os\nif 'ANTHROPIC_API_KEY' in os.environ: open({str(mark)!r}, 'w')\n"
    names = [f"{name}.py" for name in ("sitecustomize", "usercustomize", *MODULES)]
    plants = calls(*(("Write", {"file_path": name, "content": code}) for name in names))
    iterations([plants], [calls(("Glob", {"pattern": "*"})), bash('printf %s "$PYTHONPATH" >path')])
    ralph("loop", "go", "--max-iterations", "2", code=0)
    assert all((ralph.cwd / name).exists() for name in names)
    assert not mark.exists()
    assert (ralph.cwd / "path").read_text() == ralph.environment["PYTHONPATH"]


def test_where_ralphs_own_modules_are_left_out_that_is_said_in_one_line(ralph) -> None:
    (ralph.cwd / "ralph").symlink_to(Path(ralph.environment["PYTHONPATH"]) / "ralph")
    ralph.environment["PYTHONPATH"] = "."
    command = [sys.executable, "-S", "-c", CONSOLE_SCRIPT, "go"]  # without installed packages
    ran = subprocess.run(
        command, cwd=ralph.cwd, env=ralph.environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (78, "")
    assert ran.stderr == (
        f"ralph: module typer not found; PYTHONPATH names {ralph.cwd}, but ralph imports nothing from the working "
        "directory: install ralph elsewhere, or run it from another directory\n"
    )


def test_packages_that_are_installed_in_the_working_directory_stay(ralph) -> None:
    ralph.starts_afresh = True
    del ralph.environment["PYTHONPATH"]
    ralph.cwd = Path(sys.prefix).parent  # as with a virtual environment inside a checkout
    assert ralph("--help").code == 0
