from __future__ import annotations

from ralph.places.table import DEVICE, WRITABLE, paths_with
from ralph.sandbox.kernel import landlock
from ralph.sandbox.policy import BoxPolicy, landlock_rules, outermost
from tests.rows import every_row

TREE = {
    "/": ["home", "etc", "usr", "dev", "work"],
    "/home": ["me", "you"],
    "/home/me": [".ssh", ".config", "notes", ".bashrc"],
    "/home/me/.config": ["gh", "nvim"],
    "/etc": ["shadow", "passwd"],
    "/dev": ["null", "sda"],
}
SECRETS = ("/home/me/.ssh", "/home/me/.config/gh", "/home/me/.local/share/keyrings", "/etc/shadow")


def policy(roots: tuple[str, ...] = ("/work",), **given: tuple[str, ...]):
    bases = {"root": roots, "temporary": ("/tmp/ralph-x",), "writable git": ("/repo/.git",)}
    writable = (*paths_with(WRITABLE, bases), *given.pop("write", ()))
    return BoxPolicy(outermost(writable), outermost((*SECRETS, *given.pop("unreadable", ()))), **given)


def rights(found) -> dict[str, int]:
    held: dict[str, int] = {}
    for rule in landlock_rules(found, lambda directory: TREE.get(directory, [])):
        held[rule.path] = held.get(rule.path, 0) | rule.rights
    return held


def test_everything_but_the_deny_list_is_readable() -> None:
    held = rights(policy())
    readable = {path for path, right in held.items() if right & landlock.READ_FILE}
    assert {"/usr", "/home/you", "/home/me/notes", "/home/me/.bashrc", "/etc/passwd"} <= readable
    assert "/home/me/.config/nvim" in readable
    above = ("/", "/home", "/home/me", "/home/me/.config", "/etc")
    assert not readable & {*above, *SECRETS, "/home/me/.local", "/home/me/.local/share"}
    assert held["/"] == landlock.READ_DIR


def test_where_the_root_is_closed_nothing_is_readable_but_what_is_given() -> None:
    held = rights(policy(unreadable=("/",), readable=("/usr",)))
    assert {path for path, right in held.items() if right & landlock.READ_FILE} == {
        *("/usr", "/work", "/tmp/ralph-x", "/repo/.git", "/dev/shm"),
        *paths_with(DEVICE, {}),
    }


def test_only_the_listed_devices_can_be_opened() -> None:
    held = rights(policy())
    assert "/dev" not in held
    assert "/dev/sda" not in held
    assert held["/dev/null"] & landlock.WRITE_FILE


def test_only_roots_and_given_places_are_writable() -> None:
    held = rights(policy(write=("/srv",)))
    made = {path for path, right in held.items() if right & landlock.MAKE_REG}
    assert made == {"/work", "/tmp/ralph-x", "/repo/.git", "/dev/shm", "/srv"}
    assert not any(right & (landlock.MAKE_CHAR | landlock.MAKE_BLOCK) for right in held.values())


def test_what_is_given_back_is_readable_and_what_is_denied_in_addition_is_not() -> None:
    made = policy(readable=("/home/me/.ssh/known_hosts",), unreadable=("/home/you",))
    held = rights(made)
    assert held["/home/me/.ssh/known_hosts"] & landlock.READ_FILE
    assert "/home/you" not in held
    assert made.may_read("/home/me/.ssh/known_hosts")
    assert not made.may_read("/home/me/.ssh/id_ed25519")
    assert not made.may_read("/home/you/x")


def test_only_given_sockets_and_those_in_a_root_can_be_connected_to() -> None:
    held = rights(policy(sockets=("/run/docker.sock",)))
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
def test_the_decision_can_be_asked_for_a_path(path: str, may_write: bool, may_read: bool) -> None:
    assert (policy().may_write(path), policy().may_read(path)) == (may_write, may_read)


def test_a_root_wins_over_the_deny_list() -> None:
    made = policy(roots=("/home/me",))
    assert made.may_read("/home/me/.ssh/id_rsa")
    assert "/home/me/.ssh" not in rights(made), "the root's own rule covers it"


def test_no_rule_is_made_for_a_path_that_a_command_could_redirect() -> None:
    """A command could put a symbolic link there, and the next ruleset would open the link's target."""
    made = policy(
        readable=("/work/x/key",), unreadable=("/work/a/b/secret",), sockets=("/work/s",), write=("/work/w",)
    )
    looked: list[str] = []

    def entries(directory: str) -> list[str]:
        looked.append(directory)
        return {"/work": ["a", "c"], "/work/a": ["b", "d"]}.get(directory) or TREE.get(directory, [])

    rules = [rule.path for rule in landlock_rules(made, entries)]
    assert not [path for path in (*rules, *looked) if path.startswith("/work/")]
