from __future__ import annotations

import os

from ralph.machine.files.planted_link import LinkResolver


def test_links_are_resolved_as_the_system_does_it(tmp_path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    for name, target in (
        ("one", "a/b"),
        ("two", f"{tmp_path}/one/../more"),
        ("loop", "loop"),
        ("a/up", "../one"),
        ("first", "second"),
        ("second", "first"),
        ("gone", "a/missing/x"),
        *((f"chain{number}", f"chain{number + 1}") for number in range(30)),
        ("chain30", "a"),
    ):
        (tmp_path / name).symlink_to(target)
    resolved = LinkResolver()
    for path in ("one/x", "two/x", "a/up/..", "a/../one/./x/", "gone", "chain0/x", "missing/../x", "/", ""):
        named = f"{tmp_path}/{path}" if path != "/" else path
        assert resolved(named) == os.path.realpath(named), path
    assert resolved(f"/{tmp_path}/one") == f"{tmp_path}/a/b", "two slashes in front are one"
    assert resolved(f"{tmp_path}/loop/x").startswith(str(tmp_path))
    assert resolved(f"{tmp_path}/first/x").startswith(str(tmp_path))


def test_no_link_in_an_unfollowed_directory_is_followed(tmp_path) -> None:
    for name in ("work/sub", "private"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/planted").symlink_to(tmp_path / "private")
    (tmp_path / "to-planted").symlink_to("work/planted")
    (tmp_path / "up").symlink_to("work/sub/../../private")
    resolved = LinkResolver((f"{tmp_path}/work",))
    for path in ("work/planted/x", "to-planted/x", "work/planted/../x", "up/x"):
        assert resolved(f"{tmp_path}/{path}").startswith(f"{tmp_path}/work/"), path
        assert resolved.outside(f"{tmp_path}/{path}") is None
    assert resolved.outside(f"{tmp_path}/work") is None
    assert resolved.outside(f"{tmp_path}/works") == f"{tmp_path}/works"


def test_a_long_chain_of_links_leads_nowhere(tmp_path) -> None:
    for number in range(2000):
        (tmp_path / str(number)).symlink_to(str(number + 1))
    (tmp_path / "2000").mkdir()
    assert LinkResolver()(f"{tmp_path}/0") != f"{tmp_path}/2000"
