"""A secret that is known only while a run or a loop works is in nothing that is shown later, when the environment is
empty: sessions, exports, pages, loops and their logs.
"""

from __future__ import annotations

import base64
import json
import stat
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from ralph.conversation.journal_lines import sealed
from ralph.mock_api import Text, ToolUse, Turn
from tests.journals.reading import read_lines
from tests.program.conftest import KEY
from tests.program.kept_sessions import only_journal
from tests.program.model_answers import calls
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.mock_api import MockApi

PASSWORD = 'korrekt"pferd\\batterie/77'
HALVES = PASSWORD[:9], PASSWORD[9:]
FORMS = {
    "plain": PASSWORD,
    "in json": json.dumps(PASSWORD)[1:-1],
    "in a url": quote(PASSWORD, safe=""),
    "base64": base64.b64encode(PASSWORD.encode()).decode(),
}
FILE = (
    "\n".join([f"{name}: {form}" for name, form in FORMS.items()] + ["hidden: " + "\u200b".join(HALVES)])
    + "\n"
)
UNKNOWN = "ghp_" + "A1b2C3d4" * 5
"""A key that no environment has. Its form is known."""


def shows_a_secret(text: str) -> list[str]:
    """The secrets that a reader of the text sees. Control characters and characters without width do not help him."""
    seen = "".join(char for char in text if char.isprintable() or char == "\n").replace("\u200b", "")
    seen += seen.replace("&#34;", '"').replace("&quot;", '"')
    return [form for form in (*FORMS.values(), *HALVES, UNKNOWN, UNKNOWN[:20]) if form in seen]


def turns() -> list[Turn]:
    """A model that reads the file, repeats what it says, and writes it elsewhere."""
    return [
        Turn(
            [
                Text(f"I look for {PASSWORD}."),
                ToolUse("Read", {"file_path": "secrets.txt"}),
                ToolUse("Bash", {"command": f"echo '{UNKNOWN}'", PASSWORD: 1}),
                ToolUse("Bash", {"command": f": '{'x' * 147}{PASSWORD}'"}),
            ]
        ),
        calls(
            ("Write", {"file_path": "copy.txt", "content": FILE}),
            (
                "Edit",
                {
                    "file_path": "secrets.txt",
                    "old_string": "plain: " + PASSWORD,
                    "new_string": f"x {UNKNOWN}",
                },
            ),
            (
                "Bash",
                {"command": "git add -A; git -c user.name=a -c user.email=a@b commit -qm it; printf '\\n'"},
            ),
        ),
        Turn("The password is " + "\r".join((PASSWORD, *HALVES)) + " and " + "\x1b[1m".join(HALVES)),
    ]


@pytest.fixture
def server(serve) -> MockApi:
    started: MockApi = serve(*turns(), Turn("Gone on."))
    return started


@pytest.fixture
def session(ralph, server, checkout) -> Path:
    """The journal of a run that has seen the password. The environment does not have it any more."""
    (ralph.cwd / "secrets.txt").write_text(FILE)
    ralph.environment["DATABASE_PASSWORD"] = PASSWORD
    ran = ralph("look at it")
    assert (ran.code, shows_a_secret((ran.stdout + ran.stderr).replace(UNKNOWN, ""))) == (0, [])
    del ralph.environment["DATABASE_PASSWORD"]
    del ralph.environment["ANTHROPIC_API_KEY"]
    return only_journal(ralph)


READERS = [
    ("sessions", "ls"),
    ("sessions", "ls", "--format", "json"),
    ("sessions", "show"),
    ("sessions", "export"),
    ("sessions", "export", "--format", "json"),
    ("report", "-o", "-"),
]


@every_row("words", READERS)
def test_no_reader_of_a_session_shows_the_secret(session, ralph_here, words) -> None:
    ran = ralph_here(*words, code=0)
    assert shows_a_secret(ran.stdout + ran.stderr) == []
    assert "[redacted]" in ran.stdout or words[:2] == ("sessions", "ls")
    assert "older ralph" not in ran.stdout


def test_the_journal_keeps_the_texts_and_says_where_the_secrets_are(session, ralph, server) -> None:
    raw = session.read_bytes()
    lines = [json.loads(line) for line in raw.splitlines()]
    marked = {line["kind"] for line in lines if line.get("secrets")}
    assert {"assistant", "tool_result"} <= marked
    (read,) = [line for line in lines if line["kind"] == "tool_result" and "hidden: " in str(line["content"])]
    places = [
        read["content"][begin : begin + length]
        for path, begin, length in read["secrets"]
        if path == ["content"]
    ]
    assert sorted(places) == sorted([*FORMS.values(), "\u200b".join(HALVES)])
    ralph.environment["ANTHROPIC_API_KEY"] = KEY
    ralph("--continue", "go on", code=0)
    assert FORMS["in json"] in json.dumps(server.requests[-1].json()), "the model gets what it got before"
    assert session.read_bytes().startswith(raw)


def test_a_resumed_session_knows_the_secrets_that_its_journal_marks(
    ralph, ralph_here, serve, checkout
) -> None:
    again = calls(("Read", {"file_path": "copy.txt"}), ("Bash", {"command": "cat copy.txt"}))
    serve(*turns(), again, Turn(f"It is {PASSWORD}."))
    (ralph.cwd / "secrets.txt").write_text(FILE)
    ralph.environment["DATABASE_PASSWORD"] = PASSWORD
    assert ralph("look at it").code == 0
    del ralph.environment["DATABASE_PASSWORD"]
    resumed = ralph("--continue", "read it again", code=0)
    assert shows_a_secret(resumed.stdout + resumed.stderr) == []
    for words in READERS:
        ran = ralph_here(*words)
        assert (ran.code, shows_a_secret(ran.stdout + ran.stderr)) == (0, []), words


def test_a_fork_keeps_the_places(session, ralph, ralph_here) -> None:
    ralph.environment["ANTHROPIC_API_KEY"] = KEY
    assert ralph("--continue", "--fork-session", "go on").code == 0
    del ralph.environment["ANTHROPIC_API_KEY"]
    for words in READERS:
        ran = ralph_here(*words)
        assert (ran.code, shows_a_secret(ran.stdout)) == (0, []), words


def test_a_journal_of_an_older_ralph_loses_keys_of_known_forms_and_its_page_says_so(
    session, ralph_here
) -> None:
    lines = [json.loads(line) for line in session.read_bytes().splitlines()]
    for line in lines:
        line.pop("secrets", None)
        del line["crc"]
    session.write_bytes(b"".join(map(sealed, lines)))
    assert read_lines(session.read_bytes()).records
    for words in READERS:
        ran = ralph_here(*words, code=0)
        assert UNKNOWN[:20] not in ran.stdout, words
    assert "did not record where secrets are" in ran.stdout, "the last reader makes a page"


def test_a_page_is_private_even_where_an_open_one_was(session, ralph, ralph_here) -> None:
    page = ralph.cwd / "page.html"
    page.write_text("old")
    page.chmod(0o644)
    assert ralph_here("report", "-o", str(page)).code == 0
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


@pytest.fixture
def loop(ralph, iterations, checkout) -> None:
    """A loop that has seen the password. The environment does not have it any more."""
    (ralph.cwd / "secrets.txt").write_text(FILE)
    ralph.environment["DATABASE_PASSWORD"] = PASSWORD
    iterations(turns())
    check = f"cat secrets.txt; printf '{UNKNOWN}\\n'; test -e copy.txt"
    assert ralph("loop", "do it", "--until", check, "--max-iterations", "2").code == 0
    del ralph.environment["DATABASE_PASSWORD"]
    del ralph.environment["ANTHROPIC_API_KEY"]


@every_row(
    "words",
    [
        ("loop", "ls"),
        ("loop", "show"),
        ("loop", "--status"),
        ("loop", "--status", "--json"),
        ("report", "-o", "-"),
    ],
)
def test_no_reader_of_a_loop_shows_the_secret(loop, ralph_here, words) -> None:
    ran = ralph_here(*words, code=0)
    assert shows_a_secret(ran.stdout + ran.stderr) == []


PLANTED = "corp-9f8e7d6c5b4a3210zz"
"""A secret that no journal has: only files and commits have it."""
NEVER_SHOWN = {
    "in a line beside a change": "sed -i s/a=1/a=2/ app.conf; echo shown>other.txt",
    "in a file under a new name": "mv app.conf app2.conf; echo shown>other.txt",
    "in base64": "base64 app.conf >coded.txt; rm app.conf; echo shown>other.txt",
    "in the name of a file": 'rm app.conf; echo shown>other.txt; echo x >"f-$(sed -n s/token=//p app.conf.old)"',
    "in a commit message": "echo shown>other.txt; git add -A; "
    'git -c user.name=a -c user.email=a@b commit -qm "$(cat app.conf)"',
    "in a commit that another one undoes": "git mv app.conf b.conf; git -c user.name=a -c user.email=a@b commit -qm one; "
    "git mv b.conf app.conf; echo shown>other.txt; git add -A; git -c user.name=a -c user.email=a@b commit -qm two",
}


@pytest.mark.parametrize(
    ("place", "is_loop"),
    [*((place, True) for place in NEVER_SHOWN), ("in base64", False), ("in the name of a file", False)],
)
def test_a_page_shows_no_secret_of_a_commit_that_no_journal_has(
    ralph, iterations, serve, ralph_here, checkout, place, is_loop
) -> None:
    command = NEVER_SHOWN[place]
    for name in ("app.conf", "app.conf.old"):
        (ralph.cwd / name).write_text(f"a=1\ntoken={PLANTED}\nb=2\n")
    checkout.git("add", "-A")
    old = "2001-01-01T00:00:00"
    checkout.environment |= {"GIT_COMMITTER_DATE": old, "GIT_AUTHOR_DATE": old}
    checkout.git("commit", "-qm", "before")
    ralph.environment["MYSVC_TOKEN"] = PLANTED
    if is_loop:
        iterations([calls(("Bash", {"command": command}))])
        ran = ralph("loop", "do it", "--commit", "--max-iterations", "1", "--report", "live.html")
        live = (ralph.cwd / "live.html").read_text()
    else:
        commit = "git add -A; git -c user.name=a -c user.email=a@b commit -qm last"
        serve(calls(("Bash", {"command": f"{command}; {commit}"})), Turn("Done."))
        ran, live = ralph("do it"), ""
    assert ran.code == 0, ran.stderr
    del ralph.environment["MYSVC_TOKEN"]
    del ralph.environment["ANTHROPIC_API_KEY"]
    later = ralph_here("report", "-o", "-")
    coded = base64.b64encode(f"a=1\ntoken={PLANTED}\nb=2\n".encode()).decode()[12:36]
    for page in (later.stdout, live):
        assert PLANTED not in page
        assert coded not in page
    assert "left out" in later.stdout
    # A loop leaves the file with such a name out of its commit, and what the commit holds is shown.
    assert ("+shown" in later.stdout) == (is_loop or place != "in the name of a file")
    state = [path.read_bytes() for path in (ralph.cwd.parent / "home/.local").rglob("*") if path.is_file()]
    assert not any(PLANTED.encode() in content for content in state)


def test_the_record_of_a_loop_shows_no_credential_of_its_options(ralph, ralph_here, iterations) -> None:
    iterations([Turn("Done.")])
    settings = {
        "env": {"GATEWAY_TOKEN": PASSWORD, "ANTHROPIC_CUSTOM_HEADERS": f"X-Team: a\nX-Auth-Token: {PASSWORD}"}
    }
    options = ("--settings", json.dumps(settings), "--notify", f"API_TOKEN='{PASSWORD}' true")
    ralph("loop", "go", "--max-iterations", "1", "--gate", f"GATE_TOKEN='{PASSWORD}' true", *options, code=0)
    told = ralph_here("loop", "--status", "--json").stdout
    assert shows_a_secret(told) == []
    plan = json.loads(told)["plan"]
    assert "[redacted]" in plan["notify"], "the record is shown, without the password"
    assert "[redacted]" in plan["claude_settings"]


KNOWN_BY_VALUE = "zebra-quux7-flume9"


@pytest.mark.parametrize(
    ("gate", "variables"),
    [
        (f'sh -c true -H "X-Api-Key: {KNOWN_BY_VALUE}"; true', {}),
        (f"true --password={KNOWN_BY_VALUE}; true", {}),
        (f"echo {KNOWN_BY_VALUE}", {"MY_TOKEN": KNOWN_BY_VALUE}),
    ],
)
def test_neither_the_model_nor_who_looks_at_a_loop_later_sees_a_secret_of_its_gate(
    ralph, ralph_here, iterations, gate, variables
) -> None:
    api = iterations([Turn("Done.")])
    ralph.environment |= variables
    ran = ralph("loop", "go", "--max-iterations", "1", "--gate", gate)
    assert (ran.code, KNOWN_BY_VALUE in ran.stderr) == (0, False), ran.stderr
    assert not any(KNOWN_BY_VALUE.encode() in request.body for request in api.requests)
    for name in variables:
        del ralph.environment[name]
    for words in (("--status",), ("--status", "--json"), ("--status", "--watch"), ("show",)):
        told = ralph_here("loop", *words).stdout
        assert told
        assert KNOWN_BY_VALUE not in told, words
    again = ralph("loop", "--continue", "--max-iterations", "2")
    assert (again.code, "gate passed" in again.stderr) == (0, True), again.stderr
