"""The packages of specs/architecture.md and the imports between them, compared with the real imports."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.rows import every_row
from tests.syntax_trees import nodes_below, nodes_of, parsed

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "ralph"

# A package, and the packages that it may import. `specs/architecture.md` says why. A package inside another one has a row
# of its own: who may import the outer one need not import the inner one.
MAY_KNOW: dict[str, set[str]] = {
    "run": {
        *{
            "settings",
            "agent",
            "retry",
            "api",
            "sessions",
            "tools",
            "mcp",
            "prompt",
            "places",
            "sandbox",
            "git",
            "output",
        },
        *{"permissions", "machine", "conversation", "values"},
    },
    "driven": {
        *{"run", "settings", "retry", "mcp", "prompt", "permissions", "output", "machine", "conversation"},
        "values",
    },
    "demo": {"run", "loop", "mock_api", "machine", "retry", "values"},
    "loop": {
        "settings",
        "git",
        "output",
        "sessions",
        "retry",
        "prompt",
        "places",
        "sandbox",
        "permissions",
        "machine",
        "values",
    },
    "agent": {"retry", "conversation", "values"},
    "retry": {"conversation", "values"},
    "settings": {"retry", "sandbox", "mcp", "places", "conversation", "machine", "values"},
    "pages": {"fleet", "loop", "git", "places", "sessions", "output", "conversation", "machine", "values"},
    "fleet": {"settings", "loop", "git", "places", "sessions", "prompt", "output", "machine", "values"},
    "sessions": {"output", "places", "conversation", "machine", "values"},
    "output": {"conversation", "places", "machine", "values"},
    "api": {"conversation", "machine", "values"},
    "tools": {"mcp", "places", "sandbox", "machine", "values"},
    "permissions": {"values"},
    "mcp": {"machine", "values"},
    "prompt": {"places", "machine", "values"},
    "places": {"permissions", "machine", "values"},
    "sandbox": {"places", "machine", "values"},
    "git": {"places", "sandbox", "machine", "values"},
    "machine": {"values"},
    "conversation": {"values"},
    "values": set(),
    "mock_api": set(),
}
MAY_KNOW["cli"] = {*MAY_KNOW, "loop", "run", "driven", "demo", "mock_api"}
MOST_PACKAGES = 25
MOST_LATE_IMPORTS = 70
MOST_MODULES_FLAT, MOST_TESTS_FLAT = 20, 25

# The folders of `tests/` that are not named after a package: what tests use, and tests of several packages.
OTHER_TEST_FOLDERS = {
    "agent_sdks",
    "campaigns",
    "corpus",
    "fakes",
    "journals",
    "nemesis",
    "processes",
    "program",
    "recorded",
    "services",
    "soak",
}

# Packages and modules that touch the clock, the disk, the network, the environment, processes or the standard streams.
# All others take values and return values, or call a port.
TOUCHES_THE_WORLD = (
    "__main__",
    "api",
    "cli",
    "demo",
    "fleet",
    "git",
    "loop.agent_iterations",
    "loop.agent_events",
    "loop.checkout",
    "loop.command",
    "loop.opening",
    "loop.check",
    "loop.processes",
    "loop.record",
    "loop.sinks",
    "loop.starter",
    "loop.status",
    "machine",
    "mcp.helper",
    "mcp.helper_process",
    "mock_api",
    "output.iteration_log",
    "output.notifier",
    "output.status_line",
    "output.result_file",
    "output.writer",
    "output.standard_streams",
    "output.tracing",
    "output.tracing_spans",
    "output.metrics_file",
    "pages.command",
    "pages.fleet_page",
    "pages.git_changes",
    "pages.page",
    "places.gather",
    "places.git_places",
    "places.home",
    "places.named_paths",
    "places.nested_repositories",
    "places.planted_in_git",
    "places.own_commands",
    "prompt",
    "run.command",
    "driven.control_channel",
    "run.hooks",
    "run.old_session",
    "run.opening",
    "run.permission_rules",
    "run.parts",
    "run.progress",
    "run.report_check",
    "run.report_problems",
    "run.report_schema",
    "run.session_run",
    "sandbox.box_rules",
    "sandbox.box_plan",
    "sandbox.command_box",
    "sandbox.denials",
    "sandbox.detection",
    "sandbox.landlock",
    "sandbox.kept_box",
    "sandbox.disk_work",
    "sandbox.bubblewrap",
    "sandbox.left_behind",
    "sandbox.planning",
    "sandbox.probe",
    "sandbox.proxy",
    "sandbox.protected_files",
    "sandbox.undoing",
    "sandbox.self_test",
    "sessions.command",
    "sessions.journal",
    "sessions.looking",
    "sessions.places",
    "sessions.store",
    "settings.files",
    "settings.handover",
    "settings.key_programs",
    "settings.mcp_servers",
    "settings.toml_file",
    "tools",
)
# Modules that only decide, in a package that is in the list above as a whole.
DECIDES = (
    *(
        "fleet.export",
        "fleet.jobs",
        "fleet.listing",
        "git.answer",
        "git.settings",
    ),
)

# What the others may use: nothing of it looks at a clock, a disk, a socket or the environment.
PURE = {
    "__future__",
    "array",
    "base64",
    "binascii",
    "bisect",
    "codecs",
    "collections",
    "contextlib",
    "copy",
    "datetime",
    "difflib",
    "email",
    "enum",
    "errno",
    "fnmatch",
    "functools",
    "graphlib",
    "hashlib",
    "heapq",
    "http",
    "ipaddress",
    "itertools",
    "json",
    "jsonschema",
    "math",
    "msgspec",
    "operator",
    "pathlib",
    "posixpath",
    "random",
    "re",
    "shlex",
    "signal",
    "string",
    "struct",
    "sys",
    "textwrap",
    "tomllib",
    "types",
    "typing",
    "unicodedata",
    "urllib",
    "uuid",
    "zlib",
    "xml",
}
# Functions and methods by their last name, of whatever object.
IMPURE_CALLS = {
    *{"print", "today", "utcnow"},
    *{"absolute", "cwd", "expanduser", "home", "readlink", "resolve"},
    *{"exists", "is_dir", "is_file", "is_symlink", "lstat", "samefile", "stat"},
    *{"glob", "iterdir", "read_bytes", "read_text", "rglob"},
    *{
        "chmod",
        "hardlink_to",
        "mkdir",
        "rename",
        "rmdir",
        "symlink_to",
        "touch",
        "unlink",
        "write_bytes",
        "write_text",
    },
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def without_types(tree: ast.Module) -> ast.Module:
    """The module without the code under `if TYPE_CHECKING:`, which does not run."""
    body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return ast.Module(body, tree.type_ignores)


@functools.cache
def imports_of(path: Path, *, at_run_time: bool = False) -> set[str]:
    return imported_by(nodes_below(without_types(parsed(path))) if at_run_time else nodes_of(path))


def imported_by(nodes: list[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            assert node.module is not None
            found.add(node.module)
            # `from ralph.core import events` names a module, not an attribute.
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if f"{node.module}.{alias.name}" in MODULE_NAMES
            }
    return found


def nodes_in_functions(path: Path) -> list[ast.AST]:
    functions = [one for one in nodes_of(path) if isinstance(one, ast.FunctionDef)]
    return [below for one in functions for below in nodes_below(one)]


def package_of(module: str) -> str:
    """The name of the innermost package of a module. Empty for `ralph` itself."""
    _, outer, *rest = [*module.split("."), ""]
    inner = ".".join([outer, *rest[:1]])
    return inner if inner in MAY_KNOW else outer


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.parent.name.endswith("project"))
MODULE_NAMES = frozenset(module_name(path) for path in MODULES)


def test_packages_import_only_what_the_table_allows() -> None:
    """Imports for types count too."""
    wrong = [
        f"{module_name(path)} imports {imported}"
        for path in MODULES
        for imported in sorted(imports_of(path))
        if (package := package_of(module_name(path))) not in {"", "__main__"}
        and imported.startswith("ralph.")
        and (other := package_of(imported)) != package
        and other not in MAY_KNOW[package]
    ]
    assert not wrong, "\n".join(wrong)


def test_a_function_imports_only_what_its_module_does_not_load_anyway() -> None:
    """All that is imported at the top of a module is loaded with it."""
    late, at_start = {}, {}
    for path in MODULES:
        inside = set(nodes_in_functions(path))
        top = [node for node in nodes_below(without_types(parsed(path))) if node not in inside]
        late[module_name(path)], at_start[module_name(path)] = imported_by([*inside]), imported_by(top)
    packages = {module_name(path) for path in MODULES if path.stem == "__init__"}
    for module, imported in late.items():
        loaded, new = set[str](), {module}
        while new:
            loaded |= new
            new = set().union(*(at_start[one] for one in new)) & MODULE_NAMES - loaded
        assert not imported & loaded - packages, f"{module} imports them a second time"


def test_few_functions_import_anything() -> None:
    """Each is for a feature that most runs do not use, or loads what would be more than 3 % of a turn."""
    late = {
        (path, node.lineno)
        for path in MODULES
        for node in nodes_in_functions(path)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert len(late) <= MOST_LATE_IMPORTS


def test_no_two_packages_import_each_other() -> None:
    mutual = [(a, b) for a in MAY_KNOW for b in MAY_KNOW if a < b and b in MAY_KNOW[a] and a in MAY_KNOW[b]]
    assert not mutual


def folders_of(folder: Path) -> set[str]:
    """The names of the folders in a folder that hold modules."""
    return {path.name for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))}


def crowded_below(top: Path, most: int) -> dict[str, int]:
    """The folders with more than `most` modules of their own, and how many these are."""
    modules = Counter(
        path.parent.relative_to(top)
        for path in top.rglob("*.py")
        if path.name not in {"__init__.py", "conftest.py"}
    )
    return {str(folder): count for folder, count in modules.items() if count > most}


def test_every_folder_is_a_package_of_the_table_and_none_is_crowded() -> None:
    folders = folders_of(PACKAGE)
    assert folders == {package for package in MAY_KNOW if "." not in package}
    assert len(folders) <= MOST_PACKAGES
    assert not crowded_below(PACKAGE, MOST_MODULES_FLAT)


def test_the_tests_have_the_same_packages_and_no_folder_of_them_is_crowded() -> None:
    packages = {package for package in MAY_KNOW if "." not in package}
    assert folders_of(TESTS) <= packages | OTHER_TEST_FOLDERS
    assert folders_of(TESTS / "program") <= packages
    assert not crowded_below(TESTS, MOST_TESTS_FLAT)


def touches_the_world(module: str) -> bool:
    inside = module.partition(".")[2]
    return inside not in DECIDES and any(
        inside == name or inside.startswith(name + ".") for name in TOUCHES_THE_WORLD
    )


def impure_call(node: ast.AST) -> str | None:
    """The name of the call if it touches the world. Methods named `open` and `now` are common: `open` counts as a
    function, and as a method of what looks like a path; `now` counts as a method of `datetime`.
    """
    match node:
        case ast.Call(func=ast.Name(id="open")):
            return "open()"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in IMPURE_CALLS:
            return name
        case ast.Call(func=ast.Attribute(value=owner, attr="open")) if isinstance(owner, ast.BinOp):
            return "open"
        case ast.Call(func=ast.Attribute(value=owner, attr="open")):
            text = ast.unparse(owner)
            return "open" if text.startswith("Path(") or text.endswith("path") else None
        case ast.Call(func=ast.Attribute(value=owner, attr="now")):
            return "now" if ast.unparse(owner).endswith("datetime") else None
    return None


@every_row(
    ("code", "found"),
    [
        ("Path(name).write_bytes(data)", "write_bytes"),
        ("self.journal.path.unlink()", "unlink"),
        ("os.stat(name)", "stat"),
        ("path.open()", "open"),
        ("(folder / name).open('rb')", "open"),
        ("open(name)", "open()"),
        ("datetime.now(UTC)", "now"),
        ("datetime.datetime.now()", "now"),
        ("print(name)", "print"),
        ("self._book.now()", None),
        ("steering.open(choice)", None),
        ("path.is_relative_to(other)", None),
    ],
)
def test_a_call_that_touches_the_world_is_seen(code: str, found: str | None) -> None:
    assert impure_call(ast.parse(code, mode="eval").body) == found


def test_what_decides_does_not_touch_the_world() -> None:
    wrong = []
    for path in MODULES:
        module = module_name(path)
        if touches_the_world(module):
            continue
        outside = {name.split(".")[0] for name in imports_of(path, at_run_time=True)} - {"ralph"} - PURE
        calls = {call for node in nodes_of(path) if (call := impure_call(node)) is not None}
        found = outside | calls
        if found:
            wrong.append(f"{module}: {', '.join(sorted(found))}")
    assert not wrong, "\n".join(wrong)


def test_values_are_structs_and_no_dataclass_is_made() -> None:
    """Making dataclasses took two fifths of the CPU time of a start. Besides, there should be one way to write a
    value.
    """
    wrong = [module_name(path) for path in MODULES if "dataclasses" in imports_of(path)]
    assert not wrong


def test_a_struct_is_a_value_and_never_changes() -> None:
    """State that changes is an ordinary class, so that a reader knows from the first line which of the two it is."""
    wrong = [
        f"{module_name(path)}: {node.name}"
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2] == "Struct" for base in node.bases)
        and not any(word.arg == "frozen" and ast.unparse(word.value) == "True" for word in node.keywords)
    ]
    assert not wrong


def test_a_run_sets_nothing_of_a_part_from_outside() -> None:
    """An object gets everything that it needs when it is made. Only what a driver may change is set later, through
    `RunControls`. A TLS context takes its flags in no other way.
    """
    wrong = [
        f"{module_name(path)}:{node.lineno} sets {ast.unparse(node)}"
        for path in MODULES
        if package_of(module_name(path)) in {"run", "machine"}
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value).rpartition(".")[2]
        not in {"self", "controls", "_controls", "sys", "context"}
    ]
    assert not wrong


# What runs with `python -I -S` finds no library.
STARTED_BARE = (
    "ralph.machine.gpu_sockets",
    "ralph.machine.launcher",
    "ralph.machine.namespaces",
    "ralph.machine.restriction",
    "ralph.machine.supervisor",
    "ralph.sandbox.probe",
)


def test_what_is_started_without_site_packages_loads_no_library() -> None:
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    code += "\n".join(f"import {module}; print({module!r}, *sys.modules)" for module in STARTED_BARE)
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    for line in ran.stdout.splitlines():
        module, *loaded = line.split()
        assert not {"msgspec", "dataclasses", "inspect"} & {*loaded}, module
        # A supervisor is started for each run with commands, and `enum` would be a third of its start.
        assert "enum" not in loaded or module == "ralph.sandbox.probe", module
    assert len(ran.stdout.splitlines()) == len(STARTED_BARE)


# Packages whose business it is, and what is started bare: that can import nothing that would write for it.
WRITES_TO_STANDARD_STREAMS = ("ralph.output", "ralph.cli", "ralph.__main__", *STARTED_BARE)
STANDARD_STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}


def writes_to_standard_streams(node: ast.AST) -> bool:
    """Whether the node prints or writes to a standard stream. Asking about a stream, as in `sys.stdout.isatty()`,
    does not count.
    """
    match node:
        case ast.ImportFrom(module="sys", names=names):
            return any(alias.name in STANDARD_STREAMS for alias in names)
        case ast.Call(func=ast.Name(id="print")):
            return True
        case ast.Call(func=ast.Attribute(attr="echo" | "secho", value=ast.Name(id="typer" | "click"))):
            return True
        case ast.Call(
            func=ast.Attribute(attr="write" | "writev" | "fdopen") | ast.Name(id="open"), args=args
        ):
            return bool(args) and isinstance(args[0], ast.Constant) and args[0].value in {1, 2}
    return False


def uses_of_standard_streams(nodes: list[ast.AST]) -> list[int]:
    """The lines of code that print, write to a standard stream, or pass one on."""
    looks = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in {"isatty", "fileno"}
    }
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.expr | ast.stmt)
        and (
            writes_to_standard_streams(node)
            or (
                isinstance(node, ast.Attribute)
                and node.attr in STANDARD_STREAMS
                and ast.unparse(node.value) == "sys"
                and id(node) not in looks
            )
        )
    ]


def test_nothing_writes_to_the_standard_streams_but_output_and_cli() -> None:
    """A run or a loop reports everything through `Events.emit`. The sinks that print it are in `output/`."""
    wrong = [
        f"{module_name(path)}:{line}"
        for path in MODULES
        if not any(
            module_name(path) == name or module_name(path).startswith(f"{name}.")
            for name in WRITES_TO_STANDARD_STREAMS
        )
        for line in uses_of_standard_streams(nodes_of(path))
    ]
    assert not wrong


@every_row(
    "code",
    [
        "print('x')",
        "sys.stdout.write('x')",
        "sys.stderr.buffer.write(b'x')",
        "json.dump({}, sys.stdout)",
        "write = sys.__stderr__.write",
        "from sys import stderr",
        "os.write(2, b'x')",
        "os.fdopen(1, 'wb')",
        "open(1, 'wb')",
        "typer.echo('x')",
    ],
)
def test_a_write_to_a_standard_stream_is_seen(code: str) -> None:
    assert uses_of_standard_streams([*ast.walk(ast.parse(code))]) == [1]


def test_a_look_at_a_standard_stream_is_no_write() -> None:
    looks = ast.parse("sys.stdout.isatty()\nos.isatty(2)\nos.write(file, b'x')")
    assert not uses_of_standard_streams([*ast.walk(looks)])


def test_requests_are_sent_from_one_place_alone() -> None:
    """All retries are in the flat loop around this call. A second call, or a second loop below it, would multiply
    the requests. The probe of `ralph doctor` sends single requests.
    """
    calls = [
        f"{module_name(path)}:{node.lineno}"
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".send_message")
    ]
    at_the_call_site, probed, handed_on = [name.partition(":")[0] for name in sorted(calls, reverse=True)]
    assert at_the_call_site == "ralph.retry.loop"
    assert probed == "ralph.cli.checks.probe"
    assert handed_on == "ralph.api.client"
    (loop,) = [
        node
        for node in nodes_of(PACKAGE / "retry" / "loop.py")
        if isinstance(node, ast.For | ast.While) and ".send_message(" in ast.unparse(node)
    ]
    assert loop.end_lineno is not None
    assert loop.end_lineno - loop.lineno < 35, "one screen"
    assert "classify_error(" in ast.unparse(loop)


def test_the_retry_loop_is_flat() -> None:
    """One function sends, classifies, waits and gives up in sight. It has one loop with the call and the match, and
    nothing that would hide or repeat a part of it: no function, no comprehension, no decorator.
    """
    (function,) = [
        node
        for node in nodes_of(PACKAGE / "retry" / "loop.py")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert function.decorator_list == []
    inner = [*ast.walk(function)][1:]
    hidden = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.ClassDef)
    assert [ast.unparse(node) for node in inner if isinstance(node, hidden)] == []
    (loop,) = [node for node in inner if isinstance(node, ast.For | ast.While)]
    (attempt,) = [node for node in loop.body if isinstance(node, ast.Try)]
    sent = "\n".join(map(ast.unparse, attempt.body))
    assert sent.count("site.client.send_message(") == 1
    assert "classify_error(error)" in ast.unparse(attempt.handlers[0])
    around = "\n".join(ast.unparse(node) for node in loop.body if node is not attempt)
    assert [word for word in ("raise ", "site.waiter.sleep(") if word not in around] == []
    assert "recover_conversation()" in around


# Imports that build on one another, and what each of them may still not have loaded.
STEPS = {
    "version": "ralph.__main__",
    "help": "ralph.cli.command_line",
    "main path": "ralph.run.command, ralph.tools",
    "new session": "ralph.run.session_run, ralph.sessions.journal",
    "run": "ralph.run.parts, ralph.tools.bash",
    "request": "ralph.api.client",
}


@functools.cache
def loaded_at_steps() -> dict[str, set[str]]:
    """The modules that an interpreter has loaded after the imports up to each step."""
    code = "import sys\n" + "\n".join(f"import {names}; print(*sys.modules)" for names in STEPS.values())
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    lines = ran.stdout.splitlines()
    return {step: set(line.split()) for step, line in zip(STEPS, lines, strict=True)}


def test_the_main_path_never_imports_anthropic_and_httpx_only_near_a_request() -> None:
    assert not {"anthropic", "httpx", "pydantic", "rich", "click"} & loaded_at_steps()["main path"]
    assert not {"anthropic", "pydantic", "rich"} & loaded_at_steps()["request"]


def test_version_is_answered_without_typer_and_msgspec() -> None:
    assert not {"typer", "msgspec"} & loaded_at_steps()["version"]


def test_a_run_loads_no_dataclasses_but_what_a_library_brings() -> None:
    assert "dataclasses" not in loaded_at_steps()["run"]


def test_help_is_answered_without_what_the_commands_do() -> None:
    assert (
        not {
            "ralph.run.command",
            "ralph.loop.values",
            "ralph.loop.command",
            "ralph.sessions.command",
            "ralph.cli.doctor",
            "ralph.settings.tables",
            "ralph.output.narration",
        }
        & loaded_at_steps()["help"]
    )


# Sees every audited call that the body of a module of ralph makes, however deep below it. Empty modules replace
# the libraries of extras, which take longer to load than all of ralph.
IMPORT_ALL = """
import importlib, importlib.machinery, pkgutil, sys, types
import ralph

class StandIns:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {
            *{"mcp", "mcp_types", "opentelemetry", "requests", "dbos", "psycopg", "sqlalchemy"}
        }:
            return importlib.machinery.ModuleSpec(name, StandIns, is_package=True)

    def create_module(spec):
        return types.ModuleType(spec.name)

    def exec_module(module):
        module.__getattr__ = lambda name: StandIn(name, (), {})

class StandIn(type):
    def __getattr__(self, name):  # a member of an enumeration, or a decorator
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (), {})

    def __call__(self, *arguments, **options):  # the columns of a table
        return self

sys.meta_path.insert(0, StandIns)

def look(event, arguments):
    if not event.startswith(("open", "os.", "shutil.", "socket.", "subprocess.", "tempfile.", "_thread.")):
        return
    if event == "os.scandir" and arguments[0].endswith("mock_api/scenarios"):
        return  # whose names are in a help text
    frame = sys._getframe(1)
    while frame is not None and "importlib" not in frame.f_code.co_filename:
        if frame.f_code.co_filename.startswith(ralph.__path__[0]):
            print(event, arguments, frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back

sys.addaudithook(look)
for module in pkgutil.walk_packages(ralph.__path__, "ralph."):
    if module.name not in {"ralph.__main__", "ralph.machine.launcher"}:
        importlib.import_module(module.name)
"""


def test_no_module_does_anything_at_import() -> None:
    """Importing all of ralph must read and write no file, start no thread and no process, and use no network."""
    ran = subprocess.run([sys.executable, "-c", IMPORT_ALL], check=True, capture_output=True, text=True)
    assert ran.stdout == ""


def test_anthropic_gives_types_and_nothing_else() -> None:
    wrong = [
        module_name(path)
        for path in MODULES
        if "anthropic" in {name.split(".")[0] for name in imports_of(path, at_run_time=True)}
    ]
    assert not wrong


STORE_MODULES = {f"ralph.fleet.{module}" for module in ("database", "schema", "claims")}
# Libraries of the extra `fleet`, and the modules that may import them. Imports for types count too.
FLEET_LIBRARIES = {
    "dbos": {"ralph.fleet.engine"},
    "psycopg": STORE_MODULES,
    "sqlalchemy": STORE_MODULES,
    "sqlalchemy.exc": {*STORE_MODULES, "ralph.fleet.engine"},
}


def strangers(module: str, imported: set[str]) -> list[str]:
    """The libraries of the fleet among the imports that this module may not import."""
    return [
        name
        for name in sorted(imported)
        if (library := name.partition(".")[0]) in FLEET_LIBRARIES
        and module not in FLEET_LIBRARIES.get(name, FLEET_LIBRARIES[library])
    ]


def test_the_engine_of_the_fleet_is_behind_one_module_and_its_store_behind_three() -> None:
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in MODULES
        for name in strangers(module_name(path), imports_of(path))
    ]
    assert not wrong


@every_row(
    ("module", "imported", "found"),
    [
        ("ralph.fleet.engine", {"dbos", "sqlalchemy.exc"}, []),
        ("ralph.fleet.claims", {"sqlalchemy", "sqlalchemy.engine", "psycopg.errors"}, []),
        ("ralph.fleet.engine", {"sqlalchemy"}, ["sqlalchemy"]),
        ("ralph.fleet.claims", {"dbos._error"}, ["dbos._error"]),
        ("ralph.cli.fleet", {"dbos", "psycopg", "sqlalchemy.exc"}, ["dbos", "psycopg", "sqlalchemy.exc"]),
    ],
)
def test_a_library_of_the_fleet_elsewhere_is_seen(module: str, imported: set[str], found: list[str]) -> None:
    assert strangers(module, imported) == found


def test_no_two_classes_of_the_tree_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module_name(path))
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


# A comment that excepts a line from a rule of ruff, mypy or both, with its reason. Less than two words say nothing.
OF_RUFF = r"noqa: [A-Z0-9]+(?:, [A-Z0-9]+)* - "
EXCEPTION = re.compile(
    rf"# (?:{OF_RUFF}|type: ignore\[[a-z, -]+\] *# (?:{OF_RUFF})?)(?P<reason>(?!noqa)\S+ \S.*)"
)
NO_REASON = re.compile(r"\b(as|see) above\b|\bthe same$")


def without_reason(line: str) -> bool:
    """Whether the line has an exception without a reason. Those of whole files have theirs on the line before."""
    start = re.search(r"# (?:noqa|type: ignore)", line)
    if start is None:
        return False
    found = EXCEPTION.fullmatch(line, start.start())
    return found is None or NO_REASON.search(found["reason"]) is not None


def test_each_exception_from_a_rule_gives_its_reason_on_its_line() -> None:
    wrong = [
        f"{module_name(path)}:{number}: {line.strip()}"
        for path in MODULES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if without_reason(line)
    ]
    assert not wrong, "\n".join(wrong)


@every_row(
    ("comment", "is_wrong"),
    [
        ("# noqa: S101 - the caller looked", False),
        ("# noqa: PTH110, PTH113 - strings throughout", False),
        ("# type: ignore[arg-type]  # None is this program", False),
        ("# type: ignore[arg-type] # None is this program", False),
        ("# type: ignore[type-arg]  # noqa: SLF001 - `ctypes` makes its own from it", False),
        ("# noqa", True),
        ("# noqa: S101", True),
        ("# noqa: S101 -", True),
        ("# noqa: PLC0415 - see above", True),
        ("# noqa: PLC0415 - as above", True),
        ("# noqa: S606 - the same", True),
        ("# type: ignore", True),
        ("# type: ignore[arg-type]", True),
        ("# type: ignore[arg-type]  # as above", True),
        ("# type: ignore[arg-type]  # noqa: SLF001", True),
    ],
)
def test_an_exception_without_a_reason_is_seen(comment: str, is_wrong: bool) -> None:
    assert without_reason(f"    work()  {comment}") is is_wrong


def locks_in_handlers(nodes: list[ast.AST]) -> set[str]:
    """The calls in a module's signal handlers that may wait for a lock. Those of `StopEvent` do not."""
    handlers = {
        call.args[1].attr if isinstance(call.args[1], ast.Attribute) else ast.unparse(call.args[1])
        for call in nodes
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "signal.signal"
    }
    safe = {
        ast.unparse(node.targets[0])
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "StopEvent()"
    }
    return {
        ast.unparse(part)
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name in handlers
        for part in nodes_below(node)
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr in {"set", "put", "acquire", "notify", "notify_all"}
            and ast.unparse(part.func.value) not in safe
        )
        or (isinstance(part, ast.With) and "lock" in ast.unparse(part.items[0]))
    }


def test_a_signal_handler_waits_for_no_lock() -> None:
    """It may have interrupted the code that holds the lock."""
    assert not {
        f"{module_name(path)}: {found}"
        for path in MODULES
        if "signal.signal(" in path.read_text()
        for found in locks_in_handlers(nodes_of(path))
    }


@every_row(
    ("code", "found"),
    [
        ("stop = Event()", {"stop.set()"}),
        ("stop = StopEvent()", set()),
    ],
)
def test_a_lock_in_a_handler_is_seen(code: str, found: set[str]) -> None:
    handler = "def hear(number, frame):\n    stop.set()\nsignal.signal(2, hear)"
    assert locks_in_handlers(nodes_below(ast.parse(f"{code}\n{handler}"))) == found
