"""ralph starts git in one module. All other modules call that one."""

from __future__ import annotations

import ast

from tests.rows import every_row
from tests.syntax_trees import nodes_below, nodes_of
from tests.test_architecture import MODULES, module_name

RUNNER, LOOKS = "ralph.git.runner", "ralph.cli.checks.machine"
# With these names and functions of `os`, a module can start a program.
STARTERS = {
    *("subprocess", "start_process", "start_confined", "own_program", "OwnedProcess", "supervisor.start"),
    *("posix_spawn", "posix_spawnp", "system", "popen", "fork", "execv", "execve", "execvp", "execvpe"),
}


def starts_git(nodes: list[ast.AST]) -> bool:
    """Whether a module names the program git, and also something that starts programs."""
    names = {
        name
        for node in nodes
        for name in (
            *([node.id] if isinstance(node, ast.Name) else []),
            *(
                [node.attr, ".".join(ast.unparse(node).split(".")[-2:])]
                if isinstance(node, ast.Attribute)
                else []
            ),
            *([alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []),
        )
    }
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return not names.isdisjoint(STARTERS) and any(text == "git" or text.endswith("/git") for text in texts)


@every_row(
    ("code", "found"),
    [
        ("import subprocess\nsubprocess.run(['git', 'status'])", True),
        ("from ralph.machine.own_programs import own_program as p\np('git', path, None)", True),
        ("import os\nos.execv('/usr/bin/git', ['x'])", True),
        ("words = ('git', 'x')\nself.seams.supervisor.start(words)", True),
        ("import subprocess\nsubprocess.run(['rg'])", False),
        ("is_git = name == 'git'", False),
    ],
)
def test_a_module_that_starts_git_is_seen(code: str, found: bool) -> None:
    assert starts_git(list(nodes_below(ast.parse(code)))) == found


def test_git_is_started_in_one_module() -> None:
    """The demo plays a user, who has a git of its own. `ralph doctor` only looks whether the program is there."""
    found = {module_name(path) for path in MODULES if starts_git(list(nodes_of(path)))}
    assert {name for name in found if not name.startswith("ralph.demo.")} == {RUNNER, LOOKS}
