"""The arrows of specs/architecture.md, walked over the real imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ralph"

# A room, and the rooms it may know. The longest prefix that fits decides.
MAY_IMPORT = {
    "ralph": set(),
    "ralph.__main__": {"ralph", "ralph.cli", "ralph.own_process"},
    "ralph.own_process": set(),
    "ralph.cli_values": {
        "ralph.cli_options",
        "ralph.core",
        "ralph.effects.named_file",
        "ralph.effects.output",
        "ralph.effects.report_schema",
        "ralph.run_options",
        "ralph.run_session",
    },
    "ralph.cli_options": set(),
    "ralph.cli_sessions": {"ralph.cli_values", "ralph.sessions_command"},
    "ralph.cli_lists": {"ralph.core.list_options", "ralph.core.outcome"},
    "ralph.cli_passed_on": {"ralph.cli_lists", "ralph.core.passed_on"},
    "ralph.cli_loop": {
        "ralph",
        "ralph.cli_lists",
        "ralph.cli_options",
        "ralph.cli_passed_on",
        "ralph.cli_values",
        "ralph.core",
        "ralph.effects.loop.starter_files",
        "ralph.loop_command",
        "ralph.loop_options",
        "ralph.loop_status",
    },
    "ralph.cli": {
        "ralph.cli_lists",
        "ralph.cli_loop",
        "ralph.cli_options",
        "ralph.cli_passed_on",
        "ralph.cli_sessions",
        "ralph.cli_values",
        "ralph",
        "ralph.core",
        "ralph.doctor_command",
        "ralph.run_command",
        "ralph.run_options",
        "ralph.effects.output",
        "ralph.demo",
        "ralph.mock_api",
    },
    "ralph.loop_options": {"ralph.core"},
    "ralph.run_options": {"ralph.core", "ralph.effects.output", "ralph.run_session"},
    "ralph.run_command": {
        "ralph",
        "ralph.core",
        "ralph.ports",
        "ralph.effects",
        "ralph.driven_run",
        "ralph.prepared_run",
        "ralph.run_options",
        "ralph.run_session",
        "ralph.settings",
        "ralph.telemetry",
        "ralph.wiring",
    },
    "ralph.driven_run": {
        "ralph.core",
        "ralph.ports",
        "ralph.effects",
        "ralph.prepared_run",
        "ralph.run_options",
    },
    "ralph.prepared_run": {
        "ralph.core",
        "ralph.ports",
        "ralph.effects.claude_settings",
        "ralph.effects.tools",
        "ralph.loop",
        "ralph.old_session",
        "ralph.run_options",
        "ralph.run_session",
        "ralph.wiring",
    },
    "ralph.telemetry": {
        "ralph",
        "ralph.core",
        "ralph.effects",
        "ralph.ports",
        "ralph.run_options",
        "ralph.run_session",
    },
    "ralph.run_session": {"ralph", "ralph.core", "ralph.ports", "ralph.effects.sessions"},
    "ralph.doctor_command": {"ralph", "ralph.core", "ralph.effects", "ralph.settings"},
    "ralph.old_session": {"ralph", "ralph.core", "ralph.effects.sessions", "ralph.run_session"},
    "ralph.sessions_command": {"ralph.core", "ralph.effects.output", "ralph.effects.sessions"},
    "ralph.wiring": {
        "ralph.core",
        "ralph.ports",
        "ralph.effects",
        "ralph.loop",
        "ralph.run_options",
        "ralph.settings",
    },
    "ralph.demo": {
        "ralph.core",
        "ralph.effects.loop.loop_store",
        "ralph.effects.loop.record",
        "ralph.effects.own_programs",
        "ralph.loop_command",
        "ralph.loop_options",
        "ralph.run_command",
        "ralph.run_options",
        "ralph.run_session",
        "ralph.mock_api",
    },
    "ralph.loop": {
        "ralph.asking",
        "ralph.call_rules",
        "ralph.closing",
        "ralph.core",
        "ralph.ports",
        "ralph.retry",
        "ralph.tool_turn",
        "ralph.transcript",
    },
    "ralph.asking": {"ralph.core", "ralph.retry", "ralph.transcript"},
    "ralph.call_rules": {"ralph.core", "ralph.ports"},
    "ralph.closing": {"ralph.core", "ralph.ports"},
    "ralph.transcript": {"ralph.core", "ralph.ports"},
    "ralph.retry": {"ralph.core", "ralph.ports"},
    "ralph.tool_turn": {"ralph.call_rules", "ralph.core", "ralph.ports"},
    "ralph.ports": {"ralph.core"},
    "ralph.outer_loop": {
        "ralph.core",
        "ralph.loop_book",
        "ralph.loop_iteration",
        "ralph.loop_patience",
        "ralph.loop_ports",
        "ralph.ports",
    },
    "ralph.loop_iteration": {"ralph.core", "ralph.loop_book", "ralph.loop_patience", "ralph.loop_ports"},
    "ralph.loop_patience": {"ralph.core", "ralph.loop_book", "ralph.loop_ports"},
    "ralph.loop_book": {"ralph.core", "ralph.loop_ports", "ralph.ports"},
    "ralph.loop_ports": {"ralph.core", "ralph.ports"},
    "ralph.loop_status": {"ralph.core", "ralph.effects"},
    "ralph.loop_command": {
        "ralph.core",
        "ralph.effects",
        "ralph.loop_options",
        "ralph.loop_ports",
        "ralph.outer_loop",
        "ralph.ports",
        "ralph.settings",
    },
    "ralph.settings": {"ralph.core", "ralph.effects.settings_files"},
    "ralph.effects": {"ralph.core", "ralph.own_process", "ralph.ports"},
    "ralph.effects.loop": {
        "ralph.core",
        "ralph.effects",
        "ralph.loop_ports",
        "ralph.own_process",
        "ralph.ports",
    },
    "ralph.effects.checkout": {"ralph.core", "ralph.effects", "ralph.loop_ports", "ralph.ports"},
    "ralph.core": set(),
    "ralph.mock_api": set(),
}

# What core may use of the standard library: nothing that looks at a clock, a disk, a socket or the environment.
PURE = {
    "__future__",
    "base64",
    "binascii",
    "codecs",
    "collections",
    "dataclasses",
    "datetime",
    "difflib",
    "email",
    "enum",
    "errno",
    "functools",
    "ipaddress",
    "itertools",
    "json",
    "math",
    "pathlib",
    "zlib",
    "re",
    "shlex",
    "signal",
    "types",
    "typing",
    "urllib",
}
IMPURE_CALLS = {"now", "today", "utcnow", "open", "print", "read_text", "write_text", "exists", "cwd", "home"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def without_types(tree: ast.Module) -> ast.Module:
    """The module as it runs: what stands under `if TYPE_CHECKING:` is for the type checker alone."""
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return tree


def imports_of(path: Path, *, at_run_time: bool = False) -> set[str]:
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(without_types(tree) if at_run_time else tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found.add(node.module)
            # `from ralph.core import events` names a module, not an attribute.
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if (PACKAGE.parent / Path(*node.module.split("."), alias.name)).with_suffix(".py").exists()
            }
    return found


def room_of(module: str) -> str:
    fitting = [room for room in MAY_IMPORT if module == room or module.startswith(room + ".")]
    return max(fitting, key=len)


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of(module_name(path))
    for imported in imports_of(path):
        if imported.split(".")[0] != "ralph" or (imported == "ralph" and "ralph" in MAY_IMPORT[room]):
            continue
        inside = imported == room or (room != "ralph" and imported.startswith(room + "."))
        allowed = any(
            imported == other or imported.startswith(other + ".") for other in MAY_IMPORT[room] - {"ralph"}
        )
        assert inside or allowed, f"{module_name(path)} imports {imported}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda path: path.stem)
def test_core_is_pure(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports_of(path, at_run_time=True)} - {"ralph"}
    assert outside <= PURE
    calls = [
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    assert not IMPURE_CALLS & set(calls)


def test_requests_are_sent_from_one_place_alone() -> None:
    """All retries are in the flat loop around it: a second place, or a second loop below, would multiply them."""
    calls = [
        f"{module_name(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".send_message")
    ]
    at_the_call_site, handed_on = [name.partition(":")[0] for name in sorted(calls, reverse=True)]
    assert at_the_call_site == "ralph.retry"
    assert handed_on == "ralph.effects.target_clients"
    (loop,) = [
        node
        for node in ast.walk(ast.parse((PACKAGE / "retry.py").read_text()))
        if isinstance(node, ast.For | ast.While) and ".send_message(" in ast.unparse(node)
    ]
    assert loop.end_lineno is not None
    assert loop.end_lineno - loop.lineno < 50, "one screen"


def loaded_after(code: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(ran.stdout.split())


def test_the_main_path_never_imports_anthropic_and_httpx_only_near_a_request() -> None:
    loaded = loaded_after("import ralph.cli, ralph.run_command, ralph.effects.tools")
    assert not {"anthropic", "httpx", "pydantic", "rich", "click"} & loaded
    loaded = loaded_after("import ralph.effects.messages_api, ralph.effects.http_client")
    assert not {"anthropic", "pydantic", "rich"} & loaded


def test_version_is_answered_without_typer() -> None:
    assert "typer" not in loaded_after("import ralph.__main__")


def test_help_is_answered_without_what_the_commands_do() -> None:
    loaded = loaded_after("import ralph.cli")
    assert (
        not {
            "ralph.run_command",
            "ralph.core.loop_values",
            "ralph.loop_command",
            "ralph.sessions_command",
            "ralph.doctor_command",
            "ralph.effects.output.narration",
        }
        & loaded
    )


def test_no_module_does_anything_at_import() -> None:
    """Importing all of ralph writes nothing, starts no thread and opens no file."""
    code = (
        "import os, threading, pkgutil, importlib, ralph\n"
        "before = set(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else set()\n"
        "skip = {'ralph.__main__', 'ralph.effects.launcher'}\n"
        "for m in pkgutil.walk_packages(ralph.__path__, 'ralph.'):\n"
        "    if m.name not in skip: importlib.import_module(m.name)\n"
        "assert threading.active_count() == 1\n"
        "after = set(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else set()\n"
        "assert len(after) == len(before), (before, after)\n"
    )
    loaded_after(code)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_anthropic_gives_types_and_nothing_else(path: Path) -> None:
    assert "anthropic" not in {name.split(".")[0] for name in imports_of(path, at_run_time=True)}
