from __future__ import annotations

import os
import shutil
import subprocess
import time

from ralph.machine.files.paths import LinkResolver, may_have_moved, mounts_made, other_paths
from tests.rows import every_row


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


ONE = """22 1 254:0 / / rw - ext4 /dev/vda rw
23 22 0:5 / /dev rw - devtmpfs udev rw
"""
TWICE = f"""{ONE}30 22 254:1 / /export/home rw - ext4 /dev/vdb rw
31 22 254:1 / /home rw - ext4 /dev/vdb rw
32 22 254:1 /me/keys /srv/with\\040space rw - ext4 /dev/vdb rw
33 22 254:0 /var/lib /var/lib2 rw - ext4 /dev/vda rw
"""
BTRFS = """22 1 0:30 /@ / rw - btrfs /dev/vda rw
23 22 0:30 /@home /home rw - btrfs /dev/vda rw
24 22 0:30 / /mnt/all rw - btrfs /dev/vda rw
"""
# As systemd's automount makes them: the file system that is seen is mounted on another one.
STACKED = f"""{ONE}40 22 0:40 / /home/me rw - autofs systemd-1 rw
41 40 254:1 /me /home/me rw - ext4 /dev/vdb rw
42 22 254:1 /me /x rw - ext4 /dev/vdb rw
43 22 0:40 / /y rw - autofs systemd-1 rw
"""
# The one at /a/b was mounted later, and lies behind the one at /a all the same.
BEHIND = f"""{ONE}50 22 254:1 / /a rw - ext4 /dev/vdb rw
51 22 254:2 / /a/b rw - ext4 /dev/vdc rw
52 22 254:1 /b /x rw - ext4 /dev/vdb rw
"""
INNER = f"""{ONE}60 22 0:60 /v /home/me/notes rw - tmpfs none rw
61 22 0:60 / /volumes rw - tmpfs none rw
62 22 0:61 / /home/me/project rw - tmpfs none rw
63 22 0:61 / /workspace rw - tmpfs none rw
"""
# After chroot(2) into a plain directory, there is no line for "/".
CHANGED_ROOT = """70 22 254:0 /usr /usr rw - ext4 /dev/vda rw
71 22 254:0 /etc /etc rw - ext4 /dev/vda rw
72 22 0:60 / /home/me/notes rw - tmpfs none rw
73 22 0:60 / /x rw - tmpfs none rw
"""


@every_row(
    ("mounts", "places", "others"),
    [
        (ONE, ("/home/me", "/root"), ()),
        (TWICE, ("/home/me",), ("/export/home/me", "/srv/with space")),
        (TWICE, ("/home/me/keys/a",), ("/export/home/me/keys/a", "/srv/with space/a")),
        (TWICE, ("/home/other",), ("/export/home/other",)),
        (TWICE, ("/export/home/me", "/home/me"), ("/srv/with space",)),
        (TWICE, ("/var/lib/secret", "/var/log"), ("/var/lib2/secret",)),
        (BTRFS, ("/home/me", "/etc/key"), ("/mnt/all/@home/me", "/mnt/all/@/etc/key")),
        ("", ("/home/me",), ()),
        ("1 1 0:2 / / rw - rootfs rootfs rw\n2 1 0:2 /a /b rw - x y rw\n", ("/a/c",), ("/b/c",)),
        (STACKED, ("/home/me",), ("/x",)),
        (BEHIND, ("/a/b/c",), ("/x/c",)),
        (INNER, ("/home/me",), ("/volumes/v", "/workspace")),
        (CHANGED_ROOT, ("/home/me", "/etc/shadow"), ("/x",)),
    ],
)
def test_the_other_paths_of_a_place(mounts, places, others) -> None:
    assert other_paths(places, mounts) == others


def test_what_is_open_inside_of_a_closed_place_closes_no_other_path() -> None:
    """The work may be mounted in a home directory and elsewhere."""
    assert other_paths(("/home/me",), INNER, lambda path: path != "/home/me/project") == ("/volumes/v",)


BOX = """1 0 0:70 / / ro - tmpfs tmpfs rw
2 1 254:1 /me/work /home/me/work rw - ext4 /dev/vdb rw
3 2 254:1 /me/work/.git /home/me/work/.git rw - ext4 /dev/vdb rw
4 3 254:1 /me/keys /home/me/work/.git/hooks ro - ext4 /dev/vdb rw
5 2 254:0 /etc /home/me/work/etc rw - ext4 /dev/vda rw
6 1 254:1 /me/keys /srv/with\\040space rw - ext4 /dev/vdb rw
7 1 254:0 /etc/hosts /etc/hosts rw - ext4 /dev/vda rw
"""


def test_which_mounts_of_a_box_show_another_place() -> None:
    assert [*mounts_made(BOX, TWICE)] == [
        ("/home/me/work", "/", False),
        ("/home/me/work/.git", "/home/me/work", True),
        ("/home/me/work/.git/hooks", "/home/me/work/.git", False),
        ("/home/me/work/etc", "/home/me/work", False),
        ("/etc/hosts", "/", False),
    ]


def test_a_commit_is_looked_for_only_where_one_may_be(tmp_path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "f").write_text("x")
    assert not may_have_moved(tmp_path, 0.0), "no repository"
    git("init", "-q")
    assert not may_have_moved(tmp_path, 0.0), "no object"
    git("config", "core.logAllRefUpdates", "false")
    git("add", "f")
    git("commit", "-qm", "x")
    assert may_have_moved(tmp_path, time.time() + 60), "a commit without a reflog"
    git("gc", "-q")
    assert may_have_moved(tmp_path, time.time() + 60), "all is packed"
    git("config", "core.logAllRefUpdates", "true")
    git("commit", "-q", "--allow-empty", "-m", "y")
    found = [may_have_moved(tmp_path, time.time() + ago_s) for ago_s in (-60, 60)]
    assert found == [True, False]
    shutil.rmtree(tmp_path / ".git/objects")
    (tmp_path / ".git/logs/HEAD").unlink()
    assert may_have_moved(tmp_path, 0.0), "nobody knows"
