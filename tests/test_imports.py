"""Six commands import only the packages, libraries and modules of the standard library that are listed here.

Every start pays for a new import, so a review should see it in this list. `specs/speed.md` says what the
packages cost. Nothing here measures time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import MockApi, Scenario, Turn
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

# ralph ends with `os._exit`. The script writes the names of all modules that are loaded by then to a pipe.
TELL = """
import os, sys
loaded, leave = set(sys.modules), os._exit

def tell(code):
    # ralph forbids the import of a module by None.
    there = {name for name, module in sys.modules.items() if module is not None}
    os.write(int(os.environ["TELL"]), " ".join(there - loaded).encode())
    leave(code)

os._exit = tell
from ralph.__main__ import main
main()
"""

HELP = """
    collections contextlib copyreg enum errno fcntl functools gc importlib itertools keyword operator pwd re reprlib
    resource signal types typing warnings
"""
# What runs and loops share. msgspec imports `datetime`, `decimal`, `textwrap` and `uuid`; typer `inspect` with `dis` and `token`.
START = """
    array base64 binascii bisect collections contextlib copy copyreg datetime decimal dis enum errno fcntl fnmatch functools
    gc grp heapq importlib inspect ipaddress itertools json keyword linecache math ntpath numbers opcode operator pathlib pwd
    queue re reprlib resource select selectors shlex shutil signal socket string struct termios textwrap threading token
    traceback types typing unicodedata urllib uuid warnings weakref zlib
"""
# httpx imports `logging`; what it imports for cookies, logins and forms is left out, and `ssl` and its own `hashlib` come with TLS
# alone. h11 imports `dataclasses`.
HTTPX = "atexit dataclasses logging"
TYPER = "annotated_doc typer"
SESSIONS = """
    collections contextlib copyreg enum errno fcntl fnmatch functools gc importlib ipaddress itertools json keyword math ntpath
    operator pathlib pwd re reprlib types typing unicodedata urllib warnings
"""
LOOP = "ast glob hashlib hmac locale platform random secrets subprocess tempfile tomllib"
PACKAGES_OF_RUN = "agent api cli conversation machine output permissions places prompt retry run sandbox sessions settings tools values"
PACKAGES_OF_LOOP = "cli conversation git loop machine output permissions places prompt retry run sandbox sessions settings values"

# The command line, ralph's packages, libraries, modules of the standard library.
COMMANDS = [
    ("--version", "", "", "errno"),
    # A person waits for these two: neither typer nor msgspec, and for the first not even `typing`.
    ("--complete zsh run --permission-mode=", "cli machine", "", "errno pwd"),
    ("--complete zsh sessions show --session-dir . x", "cli machine places sessions values", "", SESSIONS),
    ("--help", "cli machine values", "", HELP),
    (
        "run hi",
        PACKAGES_OF_RUN,
        f"h11 httpcore httpx httpx_sse msgspec {TYPER}",
        f"{START} {HTTPX}",
    ),
    ("loop --print hi --until true", PACKAGES_OF_LOOP, f"msgspec {TYPER}", f"{START} {LOOP}"),
]


@pytest.fixture
def base_url() -> Iterator[str]:
    with MockApi(Scenario([Turn("Hello.")])) as server:
        yield server.base_url


@every_row(("command", "packages", "libraries", "modules"), COMMANDS)
def test_a_command_imports_what_is_listed_here_and_no_more(
    command: str, packages: str, libraries: str, modules: str, base_url: str, tmp_path: Path
) -> None:
    loaded = loaded_by(command, base_url, tmp_path)
    of_ralph = {name.split(".")[1] for name in loaded if name.startswith("ralph.")}
    assert "ralph.permissions.judge" not in loaded, "without rules"
    assert "typer._completion_classes" not in loaded, "ralph makes its own completion"
    of_other_vendors = ("ralph.api.chat", "ralph.api.responses")
    assert not {name for name in loaded if name.startswith(of_other_vendors)}
    assert of_ralph - {"__main__"} == set(packages.split())
    assert "hashlib" in modules.split() or not {"_ssl", "_hashlib"} & loaded, "OpenSSL, which only TLS needs"
    others = {name.partition(".")[0] for name in loaded} - {"ralph"}
    standard = {name for name in others if name in sys.stdlib_module_names}
    assert others - standard == set(libraries.split())
    # The standard library imports other modules of its own in each version of Python. The list is for the oldest one.
    if sys.version_info < (3, 12):
        assert {name for name in standard if not name.startswith("_")} == set(modules.split())


def test_doctor_imports_nothing_of_the_fleet(tmp_path: Path) -> None:
    loaded = loaded_by("doctor", "http://127.0.0.1:9", tmp_path)
    assert "ralph.cli.doctor" in loaded
    assert not {name for name in loaded if re.match(r"(dbos|psycopg|sqlalchemy|ralph[.]fleet)\b", name)}


def test_the_help_of_fleet_imports_nothing_of_it_and_only_work_imports_the_engine(tmp_path: Path) -> None:
    loaded = loaded_by("fleet submit --help", "", tmp_path)
    assert not {name for name in loaded if re.match(r"(dbos|psycopg|sqlalchemy|ralph[.]fleet)\b", name)}
    loaded = loaded_by("fleet ls", "", tmp_path, code=2)
    assert "ralph.fleet.claims" in loaded
    assert "dbos" not in loaded


RULES = {"permissions": {"deny": ["Bash(rm:*)"]}}


def test_rules_are_loaded_where_there_are_some(tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text(json.dumps(RULES))
    with MockApi(Scenario([Turn("Hello.")])) as server:
        loaded = loaded_by("run hi", server.base_url, tmp_path)
    assert "ralph.permissions.judge" in loaded


def loaded_by(command: str, base_url: str, directory: Path, *, code: int = 0) -> set[str]:
    """The names of the modules that are loaded when the command ends, without those of a bare interpreter."""
    reading, writing = os.pipe()
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    own = {"HOME": f"{directory}.home", "ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef"}
    ran = subprocess.run(
        [sys.executable, "-c", TELL, *command.split()],
        cwd=directory,
        env=kept | own | {"ANTHROPIC_BASE_URL": base_url, "PYTHONPATH": str(ROOT), "TELL": str(writing)},
        capture_output=True,
        pass_fds=[writing],
        check=False,
    )
    os.close(writing)
    with os.fdopen(reading) as told:
        loaded = set(told.read().split())
    assert ran.returncode == code, ran.stderr
    return loaded
