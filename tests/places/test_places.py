from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from ralph.loop.agents.table import AGENTS
from ralph.places import table as table_of_places
from ralph.places.gather import gather_places
from ralph.places.places import is_named, places_of
from ralph.places.table import GUARDS, ROWS, UNREAD, PlaceRow, expanded
from tests.rows import every_row


def table(variables: dict[str, str] | None = None, **bases: tuple[str, ...]):
    """The table of places in a run. Each of `bases` is a name in braces; `homes` and `roots` stand for themselves."""
    bases = {"root": bases.pop("roots", ("/work",)), "~": bases.pop("homes", ())} | bases
    return places_of(bases, variables or {}, str, str)


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


def test_a_hidden_directory_hides_all_but_the_work_in_it() -> None:
    made = table(roots=("/state/job/work",), hidden=("/state",), given=("/state/mirror",))
    for path in ("/state", "/state/job", "/state/job/works", "/state/later"):
        assert "RALPH_SANDBOX_HIDE" in str(made.why_not_read(path))
        assert made.why_not_written(path) is not None
    for path in ("/state/job/work", "/state/job/work/main.py"):
        assert made.why_not_read(path) is None
        assert made.why_not_written(path) is None
    assert made.why_not_read("/state/mirror/x") is None
    assert made.why_not_written("/state/mirror/x") is not None
    assert made.why_not_written("/state/job/work/.git/config") is not None
    above = table(roots=("/",), hidden=("/state",))
    assert above.why_not_read("/state/x") is not None, "a root around the directory opens nothing"


def test_a_prefix_with_the_work_in_it_protects_its_code_and_not_the_work() -> None:
    """An example is a container that works in /usr/src with the system's Python."""
    made = table(roots=("/usr/src/app",), prefix=("/usr",), code=("/usr/lib/python3", "/usr/bin"))
    assert made.why_not_written("/usr/src/app/main.py") is None
    assert made.why_not_written("/usr/lib/python3/os.py") is not None
    assert made.why_not_written("/usr/bin/python3") is not None
    assert table(prefix=("/work/.venv",)).why_not_written("/work/.venv/bin/x") is not None


def test_a_state_directory_with_the_work_in_it_protects_what_is_kept_there() -> None:
    made = table(sessions=("/work",))
    assert made.why_not_written("/work/main.py") is None
    assert made.why_not_read("/work/sessions/x/1.jsonl") is not None
    assert table(state=("/work/state",)).why_not_read("/work/state/anything") is not None


def test_a_git_directory_with_the_work_in_it_protects_what_git_keeps_there() -> None:
    """An example is a bare repository that contains its own worktrees."""
    made = table(roots=("/work/x.git/main",), git=("/work/x.git",))
    assert made.why_not_written("/work/x.git/main/a.py") is None
    assert made.why_not_written("/work/x.git/hooks/update") is not None
    assert made.why_not_written("/work/x.git/config") is not None


@every_row("root", ["/home/me", "/home", "/"])
def test_dotfiles_of_a_home_are_protected_from_roots_that_contain_it(root) -> None:
    made = table(roots=(root, "/home/me/.config/own"), homes=("/home/me",))
    for name in (".bashrc", ".config/autostart/x", ".local/bin/ls"):
        assert made.why_not_written(f"/home/me/{name}") is not None
    for name in ("notes", "project/.env", ".config/own/a"):
        assert made.why_not_written(f"/home/me/{name}") is None
    assert table(roots=("/home/me/work",), homes=("/home/me",)).why_not_written("/home/me/work/.env") is None


def test_places_are_moved_by_their_variables_and_stay_where_they_were() -> None:
    variables = {
        "XDG_CONFIG_HOME": "/cfg",
        "KUBECONFIG": "/k/one:relative:/k/two",
        "AWS_CONFIG_FILE": "relative",
    }
    made = table(homes=("/home/me",), variables=variables)
    moved = "/cfg/gh/hosts.yml /home/me/.config/gh/hosts.yml /k/one /k/two /home/me/.aws/config".split()
    assert [path for path in moved if not made.why_not_read(path)] == []
    assert made.why_not_read("/work/relative") is None


def test_the_login_of_every_agent_is_a_secret_wherever_a_variable_or_a_link_has_it() -> None:
    for place in (place for row in AGENTS for place in row.state if place.login):
        bases, variables = {"root": ("/work",), "~": ("/home/me",)}, {place.variable: "/moved"}
        login = f"/{place.folder}/{place.login}".replace("//", "/")
        usual = f"{place.usual.replace('~', '/home/me', 1)}{login}"
        made = places_of(bases, variables, partial(re.sub, "/home/me/.netrc", usual), str)
        assert len(made.secrets_around(usual)) == 2
        assert len(made.secrets_around(f"/moved{login}")) == 1


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


def test_a_variable_that_names_the_work_does_not_close_it() -> None:
    made = table(variables={"GNUPGHOME": "/work", "PGPASSFILE": "/work/pass"})
    assert made.why_not_read("/work/main.py") is None
    assert made.why_not_read("/work/pass") is not None


def test_what_must_not_be_read_must_not_be_written_either() -> None:
    made = table(roots=("/home",), homes=("/home/me",))
    assert made.why_not_written("/home/me/Library/Keychains/x") is not None


def test_hidden_paths_are_told_from_the_place_where_a_search_begins() -> None:
    made = table(homes=("/home/me",))
    assert ".ssh" in made.hidden_beneath("/home/me")
    assert "home/me" in made.hidden_beneath("/")
    assert made.hidden_beneath("/work") == ()
    assert made.hidden_beneath("/home/m") == ()


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
        ("/home/me/.bashrc", "/home/me/.bashrc is a dotfile of the home directory: "),
        ("/p/ralph/x.py", "/p/ralph is the ralph that runs. "),
    ):
        assert str(made.why_not_written(path)).startswith(why)
    assert made.why_not_read("/p/ralph/x.py") is None


def test_every_file_of_a_repository_that_ralph_or_an_agent_obeys_is_a_row() -> None:
    from ralph.settings.claude_files import _PROJECT_FILES
    from ralph.settings.files import LOCAL_FILE
    from ralph.settings.mcp_servers import REPOSITORY_FILE

    for name in (*_PROJECT_FILES.values(), LOCAL_FILE, REPOSITORY_FILE):
        for guard in (table_of_places.UNWRITTEN, table_of_places.READ_ONLY, table_of_places.COMPARED):
            patterns = table_of_places.names_with(guard)
            assert any(is_named(f"/{name}", pattern) for pattern in patterns), (name, guard)


def test_a_name_is_told_before_the_home_directory() -> None:
    made = table(roots=("/home",), homes=("/home/me",))
    assert str(made.why_not_written("/home/me/.git/config")).startswith(".git is git's own")


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
