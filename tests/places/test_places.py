from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ralph.loop.agents import AGENTS
from ralph.places import table as table_of_places
from ralph.places.gather import gather_places
from ralph.places.places import is_named, places_of
from ralph.places.table import GUARDS, ROWS, UNREAD, PlaceRow, expanded
from tests.rows import every_row


def table(roots: tuple[str, ...] = ("/work",), homes: tuple[str, ...] = (), **bases: tuple[str, ...]):
    """The table of places in a run. Each of `bases` is a name in braces."""
    return places_of({"root": roots, "~": homes, **bases}, {}, str, str)


PROTECTED = """
/work/.git /work/.git/config /work/a/.git/hooks/x /work/.GIT/config /work/.g\u200cit/config
/work/ralph.toml /work/a/Ralph.toml /work/.mcp.json /work/.claude/settings.json
/work/.claude/settings.local.json /work/a/.claude/settings-x.json /work/.claude/\u017fettings.json
""".split()
ALIKE = """
/work/.github/x /work/.gitignore /work/x.git/config /work/ralph.toml.md /work/my-ralph.toml
/work/.claude/commands/x.md /work/.claude/settings/x.md /work/settings.json /work/a.mcp.json
""".split()


def test_names_are_protected_at_any_depth_whatever_their_capitals_and_those_that_look_alike_are_not() -> None:
    assert [path for path in (*PROTECTED, *ALIKE) if table().why_not_written(path)] == PROTECTED
    assert [path for path in PROTECTED if table().why_not_read(path)] == []


HIDDEN = {"root": ("/state/job/work",), "hidden": ("/state",), "given": ("/state/mirror",)}
PREFIX = {"root": ("/usr/src/app",), "prefix": ("/usr",), "code": ("/usr/lib/python3", "/usr/bin")}
MOVED = {"XDG_CONFIG_HOME": "/cfg", "KUBECONFIG": "/k/one:relative:/k/two", "AWS_CONFIG_FILE": "relative"}
# The bases, the variables, and the paths that may be read and written, only read, only written, and neither.
JUDGED: dict[str, Any] = {
    "a hidden directory hides all but the work in it": (
        *(HIDDEN, {}),
        {
            "": "/state /state/job /state/job/works /state/later",
            "rw": "/state/job/work /state/job/work/main.py",
            "r": "/state/mirror/x /state/job/work/.git/config",
        },
    ),
    "a root around a hidden directory opens nothing": ({**HIDDEN, "root": ("/",)}, {}, {"": "/state/x"}),
    "a prefix with the work in it, as of a container's system, protects its code and not the work": (
        *(PREFIX, {}),
        {"rw": "/usr/src/app/main.py", "r": "/usr/lib/python3/os.py /usr/bin/python3"},
    ),
    "a prefix in the work is protected": ({"prefix": ("/work/.venv",)}, {}, {"r": "/work/.venv/bin/x"}),
    "a state directory with the work in it protects what is kept there": (
        *({"sessions": ("/work",)}, {}),
        {"rw": "/work/main.py", "": "/work/sessions/x/1.jsonl"},
    ),
    "a state directory in the work is protected": ({"state": ("/work/state",)}, {}, {"": "/work/state/x"}),
    "a git directory with the work in it, as a bare one, protects what git keeps there": (
        *({"root": ("/work/x.git/main",), "git": ("/work/x.git",)}, {}),
        {"rw": "/work/x.git/main/a.py", "r": "/work/x.git/hooks/update /work/x.git/config"},
    ),
    **{
        f"dotfiles of a home in {root} are protected, and a root in one of them is not": (
            *({"root": (root, "/home/me/.config/own"), "~": ("/home/me",)}, {}),
            {
                "r": "/home/me/.bashrc /home/me/.config/autostart/x /home/me/.local/bin/ls",
                "rw": "/home/me/notes /home/me/project/.env /home/me/.config/own/a",
            },
        )
        for root in ("/home/me", "/home", "/")
    },
    "a home around the work protects no dotfile in the work": (
        *({"root": ("/home/me/work",), "~": ("/home/me",)}, {}),
        {"rw": "/home/me/work/.env"},
    ),
    "places are moved by their variables and stay where they were": (
        *({"~": ("/home/me",)}, MOVED),
        {
            "": "/cfg/gh/hosts.yml /home/me/.config/gh/hosts.yml /k/one /k/two /home/me/.aws/config",
            "rw": "/work/relative",
        },
    ),
    "a variable that names the work does not close it": (
        *({}, {"GNUPGHOME": "/work", "PGPASSFILE": "/work/pass"}),
        {"rw": "/work/main.py", "": "/work/pass"},
    ),
    "what must not be read must not be written either": (
        *({"root": ("/home",), "~": ("/home/me",)}, {}),
        {"": "/home/me/Library/Keychains/x"},
    ),
}


@every_row(("bases", "variables", "judged"), list(JUDGED.values()))
def test_what_may_be_read_and_written(bases, variables, judged) -> None:
    made = places_of({"root": ("/work",), **bases}, variables, str, str)
    for may, paths in judged.items():
        for path in paths.split():
            why_not = {"r": made.why_not_read(path), "w": made.why_not_written(path)}
            assert "".join(letter for letter, why in why_not.items() if not why) == may, path
    if "hidden" in bases:
        assert "RALPH_SANDBOX_HIDE" in str(made.why_not_read("/state/later"))


def test_the_login_of_every_agent_is_a_secret_wherever_a_variable_or_a_link_has_it() -> None:
    for place in (place for row in AGENTS for place in row.state if place.login):
        bases, variables = {"root": ("/work",), "~": ("/home/me",)}, {place.variable: "/moved"}
        login = f"/{place.folder}/{place.login}".replace("//", "/")
        usual = f"{place.usual.replace('~', '/home/me', 1)}{login}"
        made = places_of(bases, variables, partial(re.sub, "/home/me/.netrc", usual), str)
        assert (len(made.secrets_around(usual)), len(made.secrets_around(f"/moved{login}"))) == (2, 1)


def test_the_root_of_the_file_system_is_a_place() -> None:
    for template, variables in (("{root}", {}), ("$NAME", {"NAME": "/"}), ("$NAME", {"NAME": "//"})):
        assert [*expanded(template, {"root": ("/",)}, variables)] == ["/"]
    assert [*expanded("{root}/x", {"root": ("/",)})] == ["/x"]


@every_row(
    ("environment", "denied", "path"),
    [
        ({"RALPH_SANDBOX_HIDE": "/"}, (), "/etc/passwd"),
        ({}, ("/",), "/etc/passwd"),
        ({"XDG_STATE_HOME": "/"}, (), "/ralph/sessions"),
        ({"RALPH_STATE_DIR": "//state"}, (), "/state/sessions"),
    ],
)
def test_a_place_may_be_the_root_or_begin_with_two_slashes(environment, denied, path) -> None:
    assert (
        gather_places(["/w/x"], {"HOME": "/h", **environment}, denied=denied).why_not_read(path) is not None
    )


def test_hidden_paths_are_told_from_the_place_where_a_search_begins() -> None:
    made = table(homes=("/home/me",))
    assert ".ssh" in made.hidden_beneath("/home/me")
    assert "home/me" in made.hidden_beneath("/")
    assert (made.hidden_beneath("/work"), made.hidden_beneath("/home/m")) == ((), ())


@pytest.mark.parametrize(
    "directory", ["/home/me", "/home/me/.aws", "/home/me/.aws/deep", "/home/me/src/x", "/work"]
)
def test_the_places_in_or_around_a_directory_give_the_same_answers_there(directory: str) -> None:
    made = table(homes=("/home/me",), **{"secret files": ("/work/key",)})
    near = made.in_or_around(directory)
    assert len(near.found) < len(made.found)
    names = ("", "/x", "/key", "/.ssh/id", "/.aws/credentials", "/src/x/y", "/.npmrc")
    paths = [f"{directory}{name}" for name in names]
    assert [*map(near.why_not_read, paths)] == [*map(made.why_not_read, paths)]


def test_each_template_stands_for_something_and_each_row_says_what_it_is() -> None:
    templates = [template for row in ROWS if UNREAD in row.guards for template in row.where]
    variables = {t[1:].partition("/")[0]: "/v" for t in templates if t[0] == "$"}
    names = {t[1:].partition("}")[0] for row in ROWS for t in row.where if t[0] == "{"}
    bases = dict.fromkeys((*names, "~"), ("/b",))
    assert len(set(templates)) == len(templates)
    for template in templates:
        found = list(expanded(template, bases, variables))
        assert found, template
        assert all(path.startswith("/") and "~" not in path and "{" not in path for path in found), template
    for row in ROWS:
        assert row.why, row
        assert not row.why.endswith("."), row
        assert row.guards, row
        assert row.source, row
    assert {guard for row in ROWS for guard in row.guards} == {*GUARDS}


def test_the_reasons_are_those_of_the_rows() -> None:
    made = table(
        roots=("/home",), homes=("/home/me",), configuration=("/c/mine.toml",), package=("/p/ralph",)
    )
    for path, why in (
        ("/home/me/.ssh/x", "/home/me/.ssh holds SSH keys. Whoever starts ralph can put"),
        ("/c/mine.toml", "/c/mine.toml is ralph's own configuration. Whoever"),
        ("/home/x/.git/config", ".git is git's own: "),
        ("/home/me/.git/config", ".git is git's own"),
        ("/home/me/.bashrc", "/home/me/.bashrc is a dotfile of the home directory: "),
        ("/p/ralph/x.py", "/p/ralph is the ralph that runs. "),
    ):
        assert str(made.why_not_written(path)).startswith(why)
    assert made.why_not_read("/p/ralph/x.py") is None


def test_every_file_of_a_repository_that_ralph_or_an_agent_obeys_is_a_row() -> None:
    from ralph.settings.files import _PROJECT_FILES, LOCAL_FILE
    from ralph.settings.mcp_servers import REPOSITORY_FILE

    for name in (*_PROJECT_FILES.values(), LOCAL_FILE, REPOSITORY_FILE):
        for guard in (table_of_places.UNWRITTEN, table_of_places.READ_ONLY, table_of_places.COMPARED):
            patterns = table_of_places.names_with(guard)
            assert any(is_named(f"/{name}", pattern) for pattern in patterns), (name, guard)


@every_row(
    ("template", "guard", "why"),
    [
        ("**/.token", table_of_places.UNREAD, "**/.token cannot be unread: it is a name"),
        ("~/.profile", table_of_places.TOLD, "~/.profile cannot be told: it is a path"),
        ("{home in a root}/.*", table_of_places.UNREAD, "cannot be unread: it is a dotfiles"),
        ("{temporary}/x", table_of_places.UNREAD, "cannot be unread: it is a sandbox path"),
        ("{git}", table_of_places.COMPARED, "cannot be compared: it is a git directory"),
        ("{git}/x", table_of_places.EMPTY, "cannot be empty: it is a git entry"),
        ("{homes}/x", table_of_places.UNREAD, "{homes}/x: nobody says where {homes} is"),
        ("~/x/*.conf", table_of_places.COMPARED, "~/x/*.conf: a path has no pattern"),
        ("**/a*/x", table_of_places.COMPARED, "**/a*/x cannot be compared: it is a pattern"),
        ("**/x*.*", table_of_places.COMPARED, "**/x*.*: the last part of a name may have one *"),
    ],
)
def test_a_row_with_a_guard_that_cannot_be_kept_for_it_is_an_error(template, guard, why) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        PlaceRow((template,), "is a test", (guard,))


def test_the_specification_has_the_guards_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "specs/security.md").read_text()
    for name, guard in GUARDS.items():
        assert f"| {name} | {', '.join(guard.levels)} | {guard.effect} |" in page
