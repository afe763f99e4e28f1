"""Tests whether the content of a directory decides which file a path leads to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from ralph.machine.own_programs import search_around, search_outside
from ralph.settings.files import SettingsFile, find_settings_files, read_claude_files
from ralph.settings.handover import LoopHandover, handed_over, taken_over
from ralph.values.claude_file import ClaudeFile


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Directories `in` and `out`, with links between them. The tests ask whether a path depends on `in`."""
    for name in ("in/deep", "out/deep"):
        (tmp_path / name).mkdir(parents=True)
    links = {
        "out/to_in": "../in/deep",
        "out/to_in_by_root": str(tmp_path / "in" / "deep"),
        "in/to_out": "../out/deep",
        "out/over_in": "../in/to_out",
        "out/round": "round",
        "alias_of_in": "in",
        "inner": "out",
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    return tmp_path


ROWS = {
    "beneath": ("in/deep/c.toml", True),
    "beneath, not there": ("in/none/c.toml", True),
    "elsewhere": ("out/deep/c.toml", False),
    "not there at all": ("nowhere/c.toml", False),
    "a link leads in": ("out/to_in/c.toml", True),
    "an absolute link leads in": ("out/to_in_by_root/c.toml", True),
    "a link inside leads out": ("in/to_out/c.toml", True),
    "a link to a link inside that leads out": ("out/over_in/c.toml", True),
    "another name of the directory": ("alias_of_in/c.toml", True),
    "up again": ("in/../out/c.toml", False),
    "up again from inside": ("in/deep/../../out/c.toml", True),
    "a name that begins alike": ("inner/deep/c.toml", False),
    "a link to itself": ("out/round/c.toml", True),
}


@pytest.mark.parametrize("fence", ["in", "alias_of_in"])
@pytest.mark.parametrize(("path", "expected"), ROWS.values(), ids=ROWS.keys())
def test_a_path_leads_through_a_directory_by_links_of_any_kind(place, path, expected, fence) -> None:
    why = search_outside({}, [place / fence]).why_open(str(place / path))
    assert (why is not None) is expected


def test_everything_is_beneath_the_root() -> None:
    assert search_outside({}, ["/"]).why_open("/etc/c.toml")


def test_the_users_file_for_agents_is_a_projects_one_where_an_agent_can_write_it(place) -> None:
    (place / "in/settings.json").write_text("{}")
    (place / "cache/ralph").mkdir(parents=True)
    (place / "cache/ralph/packages").symlink_to("../../in")
    (place / "out/.claude").symlink_to("../in")
    environment, work = {"HOME": str(place / "out")}, place / "out/deep"
    kinds = [
        [one.kind for one in read_claude_files(work, environment | more, None, reach)]
        for more, reach in (({}, ()), ({}, (place / "in",)), ({"XDG_CACHE_HOME": str(place / "cache")}, ()))
    ]
    assert kinds == [["user"], ["project"], ["project"]]


@pytest.mark.parametrize("way", ["packages", "shared memory"])
def test_the_users_own_file_does_not_count_where_every_command_may_write_it(place, way: str) -> None:
    environment = {"HOME": str(place / "out"), "XDG_CACHE_HOME": str(place / "cache")}
    user_file = place / "out/.config/ralph/config.toml"
    user_file.parent.mkdir(parents=True)
    found = []
    for target in (
        place / "in/c.toml",
        Path("/dev/shm/c.toml" if way == "shared memory" else place / "cache/ralph/packages/c.toml"),
    ):
        user_file.unlink(missing_ok=True)
        user_file.symlink_to(target)
        search = search_around(environment, (place / "out/deep",))
        files = find_settings_files(environment, place / "out/deep", None, search)
        found += [one.is_trusted for one in files][:1]
    assert found == [True, False]


FILES = (
    SettingsFile(Path("/a/config.toml"), is_trusted=True, data=b"\xff\n"),
    SettingsFile(Path("/b/ralph.toml"), is_trusted=False, data=None),
    SettingsFile(Path("/c.toml"), is_trusted=True, data=b"", is_named=True),
    SettingsFile(Path("/mcp.json"), is_trusted=True, data=b"{}", is_named=True, is_mcp=True),
)


def test_what_is_handed_over_arrives_byte_for_byte_and_nothing_of_it_has_a_name() -> None:
    claude = (ClaudeFile("/b/.claude/settings.json", "project", "/b", '{"permissions": {}}'),)
    handover = LoopHandover(
        FILES, claude, "/loops/0007", number=3, task_chars=12, secrets=frozenset(["key\udcff"])
    )
    with handed_over(handover, list[object]().append) as descriptor:
        assert not Path(f"/proc/self/fd/{descriptor}").readlink().exists()
        assert replace(taken_over(descriptor), descriptor=-1) == handover
        assert os.pread(descriptor, 1, 0) == b"", "it can be read once"


@pytest.mark.parametrize("rest", ["", '["cut-off-by-a-k'])
def test_the_secrets_that_an_iteration_tells_arrive_also_if_it_is_killed(rest) -> None:
    learned: set[str] = set()
    with handed_over(LoopHandover(FILES, (), "/loops/0007", number=3), learned.update) as descriptor:
        child = os.dup(descriptor)
        os.set_inheritable(child, True)
        handover = taken_over(child)
        assert not os.get_inheritable(child)
        handover.tell(["one-of-the-keys"])
        handover.tell(["one-of-the-keys", "with half of a pair \ud800\n"])
        os.write(child, rest.encode())
        os.close(child)
    assert learned == {"one-of-the-keys", "with half of a pair \ud800\n"}


def test_an_iteration_that_has_read_nothing_tells_no_more_than_the_loop_knew() -> None:
    learned: set[str] = set()
    handover = LoopHandover(FILES, (), "/loops/0007", number=3, secrets=frozenset(["known"]))
    with handed_over(handover, learned.update):
        pass
    assert learned == {"known"}


@pytest.mark.parametrize("data", [b"", b"[1]", b'{"files": []}', b"\xff"])
def test_a_descriptor_with_anything_else_is_refused(tmp_path, data) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="holds nothing of a loop"):
        taken_over(os.open(path, os.O_RDONLY))
