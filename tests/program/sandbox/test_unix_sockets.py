"""Unix sockets of commands, in whole runs."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from ralph.machine.own_programs import ProgramSearch
from ralph.sandbox.detection import find_means
from tests.program.model_answers import DONE, bash, results
from tests.program.namespaces import forbidding_namespaces

MEANS = find_means(ProgramSearch(os.environ.get("PATH", "")), has_overlays=True)

pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(MEANS.landlock.abi == 0, reason="this kernel has no Landlock"),
    pytest.mark.skipif(
        MEANS.landlock.has_socket_paths, reason="this kernel's Landlock judges sockets itself"
    ),
]
needs_overlays = pytest.mark.skipif(
    MEANS.bwrap is None or bool(MEANS.why_not_own_sockets), reason=f"no overlays: {MEANS.why_not_own_sockets}"
)


@pytest.mark.parametrize("asked", ["auto", "allow", "deny"])
def test_all_sockets_are_open_where_the_user_says_so_and_the_first_line_says_it_exits_0(
    ralph, serve, asked
) -> None:
    code = "import socket; socket.socket(socket.AF_UNIX).bind('s'); print('bound')"
    server = serve(bash(f'python3 -c "{code}"'), DONE)
    line = ("go", "--unix-sockets", asked, "--output-format", "stream-json")
    ran = ralph.finish(ralph.start(*line, **forbidding_namespaces())).having(0)
    is_open = asked == "allow"
    assert ("bound" in results(server)[0][0].split()) is is_open
    assert ran.stderr.splitlines()[0].endswith(
        "(sandbox: landlock, all Unix sockets open)" if is_open else "(sandbox: landlock)"
    )
    assert ("[notice] commands may use every Unix socket that you may" in ran.stderr) is is_open
    assert ran.objects[0]["sandbox_protections"]["sockets in the file system"] is not is_open


@needs_overlays
def test_commands_have_sockets_of_their_own_and_those_of_others_in_the_work_are_named_exits_0(
    ralph, serve, tmp_path
) -> None:
    connect = "import socket; socket.socket(socket.AF_UNIX).connect('{}'); print('connected')"
    own = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind('s'); s.listen(); {connect.format('s')}"
    words = (own, connect.format("agent"), connect.format(f"{tmp_path}/agent"))
    with socket.socket(socket.AF_UNIX) as inside, socket.socket(socket.AF_UNIX) as outside:
        for one, place in ((inside, ralph.cwd), (outside, tmp_path)):
            one.bind(f"{place}/agent")
            one.listen()
        server = serve(*(bash(f'python3 -c "{one}"') for one in words), DONE)
        ran = ralph("go", "--unix-sockets", "auto")
    assert ran.code == 0
    assert [results(server, nth)[0][0].split()[-1:] == ["connected"] for nth in (1, 2, 3)] == [
        True,
        True,
        False,
    ]
    assert f"other programs have bound where commands may write: {ralph.cwd}/agent" in ran.stderr


@needs_overlays
def test_a_command_in_a_directory_of_a_repository_commits_in_it_exits_0(ralph, serve) -> None:
    subprocess.run(["git", "init", "-q"], cwd=ralph.cwd.parent, check=True, capture_output=True)
    identity = "-c user.name=x -c user.email=x@y"
    server = serve(
        bash(f"echo a > a && git add a && git {identity} commit -q -m a && git log --oneline"), DONE
    )
    assert ralph("go", "--unix-sockets", "auto").code == 0
    assert not results(server)[0][1], results(server)
