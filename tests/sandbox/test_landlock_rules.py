from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ralph.places.places import places_of
from ralph.places.table import CLOSED, DEVICE, paths_with
from ralph.sandbox import landlock
from ralph.sandbox.box_plan import BoxPlan, Means
from ralph.sandbox.box_rules import landlock_rules, plan_with_places, visible_parts
from ralph.sandbox.bubblewrap import DEVICES
from ralph.sandbox.landlock import Support
from tests.rows import every_row

TREE = {
    "/": ["home", "etc", "usr", "dev", "work"],
    "/home": ["me", "you"],
    "/home/me": [".ssh", ".config", "notes", ".bashrc"],
    "/home/me/.config": ["gh", "nvim"],
    "/etc": ["shadow", "passwd"],
    "/dev": ["null", "sda", "pts", "console", "tty1", "vcs", "vcs1"],
}
SECRETS = ("/home/me/.ssh", "/home/me/.config/gh", "/home/me/.local/share/keyrings", "/etc/shadow")


PLAN_FIELDS = {"readable": "read", "unreadable": "read_deny"}
PLAN = BoxPlan(Means(Support(6)))


def parts(roots: tuple[str, ...] = ("/work",), bases: Any = None, **given: tuple[str, ...]):
    plan = replace(PLAN, **{PLAN_FIELDS.get(name, name): paths for name, paths in given.items()})
    own: dict[str, Any] = {
        "temporary": "/tmp/ralph-x",
        "cache": "/tmp/ralph-x",
        "git": ("/repo/.git",),
        "programs": (),
    }
    return plan_with_places(
        plan, places_of({"root": roots, "denied": SECRETS, **(bases or {})}, {}, str, str), roots=roots, **own
    )


def rights(found) -> dict[str, int]:
    held: dict[str, int] = {}
    for rule in landlock_rules(found, lambda directory: TREE.get(directory, [])):
        held[rule.path] = held.get(rule.path, 0) | rule.rights
    return held


def test_everything_but_the_deny_list_is_readable() -> None:
    held = rights(parts())
    readable = {path for path, right in held.items() if right & landlock.READ_FILE}
    assert {"/usr", "/home/you", "/home/me/notes", "/home/me/.bashrc", "/etc/passwd"} <= readable
    assert "/home/me/.config/nvim" in readable
    above = ("/", "/home", "/home/me", "/home/me/.config", "/etc")
    assert not readable & {*above, *SECRETS, "/home/me/.local", "/home/me/.local/share"}
    assert held["/"] == landlock.READ_DIR


def test_of_a_home_only_what_the_table_shows_is_readable() -> None:
    home = {"~": ("/home/me",)}
    held = rights(parts(bases=home, readable=("/home/me/notes",)))
    readable = {path for path, right in held.items() if right & landlock.READ_FILE}
    assert {"/usr", "/home/you", "/home/me/notes", "/home/me/.rustup", "/home/me/.gitconfig"} <= readable
    # ~/.cargo is listed, because credentials may lie in it.
    assert not readable & {"/home/me", "/home/me/.bashrc", "/home/me/.config", "/home/me/.cargo"}
    made = parts(roots=("/home/me/src/x",), bases=home)
    for path, is_readable in (
        ("/home/me/src/x/a", True),
        ("/home/me/src/y", False),
        ("/home/me/.cargo/bin/cargo", True),
        ("/home/me/.cargo/credentials.toml", False),
        ("/home/me/.bashrc", False),
        ("/home/me", False),
    ):
        assert made.may_read(path) == is_readable, path
    assert rights(parts(bases=home, readable=("/home/me",)))["/home/me/.bashrc"] & landlock.READ_FILE
    assert parts(roots=("/home/me",), bases=home).may_read("/home/me/.bashrc"), (
        "the home is the working directory"
    )


def test_where_the_root_is_closed_nothing_is_readable_but_what_is_given() -> None:
    held = rights(parts(unreadable=("/",), readable=("/usr",)))
    assert {path for path, right in held.items() if right & landlock.READ_FILE} == {
        *("/usr", "/work", "/tmp/ralph-x", "/repo/.git", "/dev/shm"),
        *paths_with(DEVICE, {}),
    }


def test_only_the_listed_devices_can_be_opened() -> None:
    held = rights(parts())
    assert "/dev" not in held
    assert not held.keys() & {"/dev/sda", "/dev/pts", "/dev/console", "/dev/tty1", "/dev/vcs", "/dev/vcs1"}
    assert held["/dev/null"] & landlock.WRITE_FILE


def test_only_roots_and_given_places_are_writable() -> None:
    held = rights(parts(write=("/srv",)))
    made = {path for path, right in held.items() if right & landlock.MAKE_REG}
    assert made == {"/work", "/tmp/ralph-x", "/repo/.git", "/dev/shm", "/srv"}
    assert not any(right & (landlock.MAKE_CHAR | landlock.MAKE_BLOCK) for right in held.values())


def test_what_is_given_back_is_readable_and_what_is_denied_in_addition_is_not() -> None:
    made = parts(readable=("/home/me/.ssh/known_hosts",), unreadable=("/home/you",))
    held = rights(made)
    assert held["/home/me/.ssh/known_hosts"] & landlock.READ_FILE
    assert "/home/you" not in held
    assert made.may_read("/home/me/.ssh/known_hosts")
    assert not made.may_read("/home/me/.ssh/id_ed25519")
    assert not made.may_read("/home/you/x")


def test_only_given_sockets_and_those_in_a_root_can_be_connected_to() -> None:
    held = rights(parts(sockets=("/run/docker.sock",)))
    reached = {path for path, right in held.items() if right & landlock.RESOLVE_UNIX}
    assert reached == {"/run/docker.sock", "/work", "/tmp/ralph-x", "/repo/.git", "/dev/shm"}


@every_row(
    "path, may_write, may_read",
    [
        ("/work/a", True, True),
        ("/workers/a", False, True),
        ("/dev/null", True, True),
        ("/dev/sda", False, False),
        ("/etc/passwd", False, True),
        ("/home/me/.ssh/id_rsa", False, False),
        ("/home/me/.ssh", False, False),
        ("/repo/.git/index", True, True),
        ("/repo/a", False, True),
    ],
)
def test_the_decision_can_be_asked_for_a_path(path, may_write, may_read) -> None:
    assert (parts().may_write(path), parts().may_read(path)) == (may_write, may_read)


def test_a_root_wins_over_the_deny_list() -> None:
    made = parts(roots=("/home/me",))
    assert made.may_read("/home/me/.ssh/id_rsa")
    assert "/home/me/.ssh" not in rights(made), "the root's own rule covers it"


def test_no_rule_is_made_for_a_path_that_a_command_could_redirect() -> None:
    """A command could put a symbolic link there, and the next ruleset would open the link's target."""
    made = parts(
        readable=("/work/x/key",), unreadable=("/work/a/b/secret",), sockets=("/work/s",), write=("/work/w",)
    )
    looked: list[str] = []

    def entries(directory: str) -> list[str]:
        looked.append(directory)
        return {"/work": ["a", "c"], "/work/a": ["b", "d"]}.get(directory) or TREE.get(directory, [])

    rules = [rule.path for rule in landlock_rules(made, entries)]
    assert not [path for path in (*rules, *looked) if path.startswith("/work/")]


def test_the_devices_that_bubblewrap_makes_stand_for_the_closed_ones() -> None:
    assert DEVICES in paths_with(CLOSED, {})


def test_what_only_namespaces_can_do_is_no_part_of_a_lower_level() -> None:
    assert parts().empty == parts().visible == ()
    means = Means(Support(6), bwrap="bwrap")
    with_namespaces = replace(PLAN, means=means)
    own: dict[str, Any] = {"temporary": "/t", "cache": "/t", "git": (), "programs": ("/p",)}
    made = plan_with_places(with_namespaces, places_of({}, {}, str, str), roots=("/work",), **own)
    assert "/run/user" in made.empty
    assert made.visible == ("/p",)
    given = replace(with_namespaces, sockets=("/run/docker.sock",))
    made = plan_with_places(given, places_of({}, {}, str, str), roots=("/work",), **own)
    assert "/run/docker.sock" not in made.empty
    assert made.has_own_temporary
    assert (made.inside("/t/x"), made.outside("/tmp/x", ())) == ("/tmp/x", "/t/x")
    assert made.outside("/tmp/x", ("/tmp/x",)) == "/tmp/x"


def test_what_is_mounted_again_in_tmp_holds_no_unreadable_path() -> None:
    tree = {
        "/tmp/q": ["bin", "priv", "open", "work"],
        "/tmp/q/open": ["a"],
        "/tmp/me": [".cargo", ".bashrc", "bin", "notes"],
        "/tmp/me/.cargo": ["bin", "credentials.toml"],
    }
    q, me = ("/tmp/q",), ("/tmp/me",)
    denied: dict[str, Any] = {"unreadable": ("/tmp/q/priv",)}
    for place, bases, given, seen in (
        ("/tmp/q", {}, {}, {"/tmp/q"}),
        ("/tmp/q", {}, denied, {"/tmp/q/bin", "/tmp/q/open", "/tmp/q/work"}),
        ("/tmp/q", {}, {**denied, "readable": q}, {"/tmp/q/bin", "/tmp/q/open", "/tmp/q/work"}),
        ("/tmp/q/priv/x", {}, denied, set()),
        (
            "/tmp/q",
            {},
            {**denied, "roots": ("/tmp/q/priv/work",)},
            {"/tmp/q/bin", "/tmp/q/open", "/tmp/q/work"},
        ),
        ("/tmp/me/notes", {"~": me}, {}, set()),
        ("/tmp/me/bin", {"~": me}, {}, {"/tmp/me/bin"}),
    ):
        made = parts(bases=bases, **given)
        assert set(visible_parts(made, (place,), lambda path: tree.get(path, []))) == seen, (place, given)
    found = visible_parts(parts(bases={"~": me}), me, lambda path: tree.get(path, []))
    assert {"/tmp/me/bin", "/tmp/me/.cargo/bin"} <= set(found)
    assert not [
        path for path in found if "/notes" in path or path in (*me, "/tmp/me/.bashrc", "/tmp/me/.cargo")
    ]
    assert "/tmp/me/.cargo/credentials.toml" not in found
