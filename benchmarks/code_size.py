"""Measures the source code of ralph, for the limits of `tests/test_architecture.py`: `python -m benchmarks.code_size
[CHECKOUT]`. Counts modules, functions and classes in the syntax trees. Then runs one prompt with two turns and one
Bash call, and records through which modules it passes. Does not judge the results.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ralph.mock_api import MockApi, Scenario, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

LONG_FUNCTION_LINES = 40
SMALL_MODULE_LINES = 40
FOLLOWED = "--follow"
"""The first argument of the process in which the prompt runs."""


class Module(NamedTuple):
    name: str
    folder: str
    """The dotted name of the folder that holds it. Empty for the `__init__.py` of a folder."""
    lines: int
    code_lines: int
    tree: ast.Module


def modules(folder: Path) -> list[Module]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_bytes())
        parts = path.relative_to(folder.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        inside = "" if parts[-1] == "__init__" else ".".join(parts[:-1])
        found.append(Module(name, inside, path.read_bytes().count(b"\n"), _code_lines(path, tree), tree))
    return found


def _code_lines(path: Path, tree: ast.Module) -> int:
    """The number of lines with code. Comments, docstrings and blank lines do not count."""
    texts = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    with path.open("rb") as file:
        tokens = [one for one in tokenize.tokenize(file.readline) if one.type not in no_code and one.start[0]]
    lines = {line for one in tokens if one.string for line in range(one.start[0], one.end[0] + 1)}
    return len(lines - texts)


def package_of(module: str) -> str:
    """The name of the folder or module directly below `ralph/` that a module belongs to. Empty for the package
    itself.
    """
    return (module + ".").split(".")[1]


def arrows(found: Sequence[Module]) -> set[tuple[str, str]]:
    """Pairs of folders of which the first imports from the second. Imports for types count too."""
    names = {one.name for one in found}
    pairs = set()
    for one in found:
        for target in _imported(one.tree):
            if target in names and package_of(target) != package_of(one.name):
                pairs.add((package_of(one.name), package_of(target)))
    return {pair for pair in pairs if all(pair)}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(found: Iterable[Module]) -> list[int]:
    """The number of lines of each function, including methods and inner functions."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for one in found
        for node in ast.walk(one.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def classes(found: Iterable[Module]) -> list[ast.ClassDef]:
    return [node for one in found for node in ast.walk(one.tree) if isinstance(node, ast.ClassDef)]


def counted(checkout: Path) -> Iterator[tuple[str, object]]:
    found = modules(checkout / "ralph")
    folders = Counter(one.folder for one in found if one.folder)
    top = {package_of(one.name) for one in found if one.name.count(".") > 1}
    pairs = arrows(found)
    lengths = sorted(functions(found))
    kinds = classes(found)
    names = Counter(one.name for one in kinds if not one.name.startswith("_"))
    yield "modules", len(found)
    yield "lines", sum(one.lines for one in found)
    yield "of these code", sum(one.code_lines for one in found)
    yield "folders at the top", len(top)
    yield "modules at the top", folders["ralph"]
    yield "most modules flat in one folder", max(folders.values())
    yield "arrows between packages", len(pairs)
    yield "packages that import each other", sum((b, a) in pairs for a, b in pairs) // 2
    yield "functions", len(lengths)
    tenth = lengths[len(lengths) * 9 // 10]
    yield (
        "lines of a function: median, 90 %, longest",
        (f"{statistics.median(lengths):.0f}, {tenth}, {lengths[-1]}"),
    )
    yield "functions over 40 lines", sum(length > LONG_FUNCTION_LINES for length in lengths)
    yield "classes", len(kinds)
    yield (
        "dataclasses",
        sum(any("dataclass" in ast.unparse(one) for one in kind.decorator_list) for kind in kinds),
    )
    yield "class names used twice", sum(number > 1 for number in names.values())
    yield "modules under 40 lines", sum(one.lines < SMALL_MODULE_LINES for one in found)


def followed(checkout: Path) -> dict[str, float]:
    """Runs one prompt in a process that records its own calls, and returns figures about them. This takes several
    times as long as a usual run.
    """
    scenario = Scenario([Turn([ToolUse("Bash", {"command": "echo one"})]), Turn("Done.")])
    with MockApi(scenario) as server, tempfile.TemporaryDirectory(prefix="ralph-code-size-") as place:
        work = Path(place, "work")
        work.mkdir()
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(checkout),
            "HOME": place,
            "ANTHROPIC_API_KEY": "sk-ant-code-size-0001",
            "ANTHROPIC_BASE_URL": server.base_url,
        }
        completed = subprocess.run(
            (sys.executable, str(Path(__file__).resolve()), FOLLOWED, str(checkout)),
            cwd=work,
            env=environment,
            capture_output=True,
            check=True,
        )
    figures: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
    return figures


def follow(checkout: Path) -> None:
    """Runs `ralph run` of that checkout in this process. Prints figures about the modules and functions that its main
    thread entered.
    """
    making_s = _count_class_making()
    package = str(checkout / "ralph") + os.sep
    entered: list[str] = []
    called: set[tuple[str, str]] = set()

    def observe(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        # The body of a class is no function: its names are not optimized.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event != "call" or not is_function or not code.co_filename.startswith(package):
            return
        module = code.co_filename.removeprefix(package)
        called.add((module, code.co_name))
        if not entered or entered[-1] != module:
            entered.append(module)

    def leave(_code: int) -> None:
        sys.setprofile(None)
        packages = [module.partition("/")[0] for module in entered]
        switches = sum(a != b for a, b in pairwise(packages))
        figures = {
            "modules entered": len(set(entered)),
            "functions entered": len(called),
            "changes from one module to another": len(entered),
            "changes from one package to another": switches,
            "ms spent in making classes while importing": round(1000 * sum(making_s), 1),
        }
        os.write(1, b"\n" + json.dumps(figures).encode() + b"\n")
        real_exit(0)

    from ralph.__main__ import main  # noqa: PLC0415 - what it imports is measured

    real_exit, os._exit = os._exit, leave  # type: ignore[assignment]
    sys.argv[1:] = ["run", "Say one", "--quiet"]
    sys.setprofile(observe)
    try:
        main()
    finally:
        leave(0)


def _count_class_making() -> list[float]:
    """Makes Python measure the CPU time of each class statement that is not inside another, including dataclass
    decorators. Returns the list to which these times, in seconds, are added.
    """
    took_s: list[float] = []
    depth = 0

    def timed(make: Callable[..., Any]) -> Callable[..., Any]:
        def make_timed(*arguments: object, **keywords: object) -> object:
            nonlocal depth
            started_s = time.process_time()
            depth += 1
            try:
                return make(*arguments, **keywords)
            finally:
                depth -= 1
                if not depth:
                    took_s.append(time.process_time() - started_s)

        return make_timed

    builtins.__build_class__ = timed(builtins.__build_class__)
    dataclasses._process_class = timed(dataclasses._process_class)  # type: ignore[attr-defined]  # noqa: SLF001 - what a decorator costs is nowhere else
    return took_s


def main() -> None:
    if sys.argv[1:2] == [FOLLOWED]:
        follow(Path(sys.argv[2]))
        return
    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    for name, value in (*counted(checkout), *followed(checkout).items()):
        print(f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value} |")
    tests = modules(checkout / "tests")
    print(
        f"| tests: modules, lines, functions | {len(tests):,}, {sum(one.lines for one in tests):,}, {len(functions(tests)):,} |"
    )


if __name__ == "__main__":
    main()
