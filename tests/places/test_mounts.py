"""A place may be reached by a second path: its file system is mounted twice, or a part of it is."""

from __future__ import annotations

from ralph.places.mounts import other_paths
from tests.rows import every_row

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
    ],
)
def test_the_other_paths_of_a_place(mounts: str, places: tuple[str, ...], others: tuple[str, ...]) -> None:
    assert other_paths(places, mounts) == others
