"""Tests which sandbox a run gets from its settings and the machine. Nothing runs without a protection that is
required.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace

from ralph.sandbox import command_box, planning
from ralph.sandbox.box_plan import (
    SANDBOX_WORDS,
    STRICT,
    BoxPlan,
    CannotConfineError,
    Means,
    box_level,
    unix_sockets,
)
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.landlock import Support
from ralph.sandbox.planning import (
    bound_in,
    may_have_overlays,
    plan_box,
    with_denied_places,
    with_hook_places,
)
from ralph.sandbox.sandbox_settings import HookSettings, SandboxSettings
from ralph.values.outcome import ShortageError
from tests.rows import every_row
from tests.sandbox.boxes import box_of, means_of

FULL = Means(Support(7), why_no_namespaces="no bubblewrap")
WITHOUT_FILTER = Means(Support(7), why_no_filter="no seccomp", why_no_namespaces="no bubblewrap")
WITHOUT_LANDLOCK = Means(Support(0, "no Landlock here"), why_no_namespaces="no bubblewrap")
SPACES = Means(Support(7), bwrap="/usr/bin/bwrap")
OVERLAYS = replace(SPACES, why_no_overlays="")
NOTHING = Means(Support(0, "not Linux"), "not Linux", "not Linux", why_no_namespaces="not Linux")
NO_SOCKETS = SandboxSettings(unix_sockets="deny")
ENVIRONMENT = {"HOME": "/home/me", "PATH": "/usr/bin"}


def planned(monkeypatch, means: Means, wanted: SandboxSettings, root: str = "/work"):
    monkeypatch.setattr(planning, "find_means", lambda *_arguments, **_options: means)
    # The tests may run in a checkout below this root.
    monkeypatch.setattr(planning, "_about_own_code", lambda *_arguments, **_options: ())
    return plan_box(wanted, ENVIRONMENT, (Path(root),))


@every_row(
    ("means", "wanted", "says"),
    [
        (FULL, SandboxSettings(mode="strict", net="off"), "this machine lacks network (no bubblewrap: "),
        (
            WITHOUT_LANDLOCK,
            SandboxSettings(mode="strict"),
            "write (no Landlock here); read (no Landlock here)",
        ),
        (Means(Support(5)), SandboxSettings(mode="strict"), "lacks signals ("),
        (WITHOUT_FILTER, SandboxSettings(net="off"), "cannot be restricted to 'off': no seccomp"),
        (WITHOUT_FILTER, SandboxSettings(allow_hosts=("a.example",)), "restricted to 'proxy': no seccomp"),
        (WITHOUT_LANDLOCK, SandboxSettings(read_deny=("/x",)), "read_deny cannot be kept: no Landlock here"),
        (FULL, SandboxSettings(read_deny=("/work/x",)), "/work/x cannot be closed, because it is in /work"),
        (NOTHING, SandboxSettings(max_file_mb=1), "sandbox.max_file_mb cannot be kept: not Linux"),
        (
            FULL,
            SandboxSettings(mode="off", max_file_mb=1),
            "sandbox.max_file_mb cannot be kept with sandbox.mode = off",
        ),
        (FULL, SandboxSettings(mode="off", allow_hosts=("a.example",)), "sandbox.net cannot be kept with"),
        (WITHOUT_FILTER, NO_SOCKETS, "sandbox.unix_sockets = deny cannot be kept: no seccomp"),
        (
            FULL,
            replace(NO_SOCKETS, mode="off"),
            "sandbox.unix_sockets cannot be kept with sandbox.mode = off",
        ),
        (FULL, replace(NO_SOCKETS, sockets=("/x",)), "deny (--unix-sockets deny) closes the sandbox.sockets"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_name(monkeypatch, means, wanted, says) -> None:
    with pytest.raises(CannotConfineError) as refused:
        planned(monkeypatch, means, wanted)
    assert says in str(refused.value)


def test_a_limit_on_processes_and_memory_is_refused_where_nothing_can_be_counted(monkeypatch) -> None:
    limits = {
        "max_memory_mb": SandboxSettings(max_memory_mb=1),
        "max_processes": SandboxSettings(max_processes=7),
    }
    for is_counted in (True, False):
        for name, wanted in limits.items():
            for mode in ("auto", "off"):
                why = rf"sandbox\.{name} = . cannot be kept: this system has no"
                with nullcontext() if is_counted else pytest.raises(CannotConfineError, match=why):
                    planned(monkeypatch, FULL, replace(wanted, mode=mode))
        monkeypatch.setattr(planning, "_COUNTED_BY", "/no/such")
    for most in (0, SandboxSettings().max_processes):
        planned(monkeypatch, FULL, SandboxSettings(max_processes=most))


def test_the_program_that_starts_ralph_adds_places_to_read_to_those_of_the_user(monkeypatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "RALPH_SANDBOX_READ", "/mirror/objects:/other")
    plan = planned(monkeypatch, FULL, SandboxSettings(read=("/mine",)))
    assert plan.read == ("/mine", "/mirror/objects", "/other")


@every_row("variable", ["RALPH_SANDBOX_READ", "RALPH_SANDBOX_HIDE"])
def test_a_relative_path_of_the_program_that_starts_ralph_is_refused(variable) -> None:
    for mode in ("auto", "off"):
        with pytest.raises(CannotConfineError, match=f"{variable} must contain absolute paths, not 'x'"):
            plan_box(SandboxSettings(mode=mode), ENVIRONMENT | {variable: "/y:x"}, ())


@every_row(
    ("hidden", "wanted", "says"),
    [
        ("/work/x", {}, "/work/x cannot be closed, because it is in /work"),
        ("/work", {}, "/work cannot be closed, because it is in /work"),
        ("/other:{link}", {}, "/work/x cannot be closed, because it is in /work"),
        ("/data/x", {"write": ("/data",)}, "/data/x cannot be closed, because it is in /data"),
        ("/data/x", {}, ""),
        ("/", {}, ""),
        ("/work/x", {"mode": "off"}, ""),
    ],
)
def test_nothing_runs_where_commands_could_read_what_the_program_that_starts_ralph_hides(
    monkeypatch, tmp_path, hidden, wanted, says
) -> None:
    link = tmp_path / "link"
    link.unlink(missing_ok=True)
    link.symlink_to("/work/x")
    monkeypatch.setitem(ENVIRONMENT, "RALPH_SANDBOX_HIDE", hidden.format(link=link))
    with pytest.raises(CannotConfineError) if says else nullcontext() as refused:
        planned(monkeypatch, FULL, SandboxSettings(**wanted))
    if refused:
        assert str(refused.value) == f"RALPH_SANDBOX_HIDE: {says}, which commands may write"


def test_hooks_may_write_no_place_that_is_closed_to_them(monkeypatch, tmp_path) -> None:
    (tmp_path / "closed").mkdir()
    hooks = HookSettings(write=(str(tmp_path),))
    variables = {**ENVIRONMENT, "RALPH_SANDBOX_HIDE": f"{tmp_path}/closed"}
    for environment, wanted, name in (
        (variables, SandboxSettings(), "RALPH_SANDBOX_HIDE"),
        (ENVIRONMENT, SandboxSettings(read_deny=(f"{tmp_path}/closed",)), "sandbox.read_deny"),
    ):
        plan = planned(monkeypatch, FULL, wanted)
        with pytest.raises(CannotConfineError, match=f"^{name}: {tmp_path}/closed cannot be closed"):
            with_hook_places(plan, hooks, wanted, environment, (Path("/work"),))


def test_hooks_write_what_their_user_opens_and_a_rule_denies_to_edit(monkeypatch, tmp_path) -> None:
    plan = planned(monkeypatch, SPACES, SandboxSettings())
    plan = replace(plan, write_denied=("/work/lock", f"{tmp_path}/dist"))
    made = with_hook_places(
        plan, HookSettings(write=(str(tmp_path),)), SandboxSettings(), ENVIRONMENT, (Path("/work"),)
    )
    assert made.write_denied == ("/work/lock",)


def test_strict_refuses_a_home_directory_in_a_root_and_auto_warns(monkeypatch) -> None:
    with pytest.raises(CannotConfineError, match="home directory"):
        planned(monkeypatch, FULL, SandboxSettings(mode="strict"), "/home")
    plan = planned(monkeypatch, FULL, SandboxSettings(), "/home")
    assert len(plan.notices) == 1
    assert "the home directory with its secrets" in plan.notices[0].text
    assert planned(monkeypatch, FULL, SandboxSettings(mode="strict")).notices == ()


SHORT = Means(Support(7), why_no_namespaces="bwrap: no process", is_short_of_namespaces=True)


def test_a_notice_has_advice_that_fits_it(monkeypatch, tmp_path) -> None:
    [short] = planned(monkeypatch, SHORT, SandboxSettings()).notices
    assert short.line.startswith("commands have no namespaces in this run: bwrap: no process; wait until")
    [net] = planned(monkeypatch, FULL, SandboxSettings(net="proxy")).notices
    assert "the listed hosts included" in net.text
    assert "bubblewrap" in net.advice
    git, work = tmp_path / "git", tmp_path / "work"
    git.mkdir()
    work.mkdir()
    (work / ".git").write_text(f"gitdir: {git}\n")
    [refused] = planned(monkeypatch, FULL, SandboxSettings(), str(work)).notices
    assert f"may not write the git directory {git} (it does not name {work}" in refused.text
    assert refused.advice.endswith(f"--add-dir {git}")
    (work / ".git").unlink()
    (work / ".git").mkdir()
    assert planned(monkeypatch, FULL, SandboxSettings(), str(work)).notices == ()


def test_that_all_sockets_are_open_is_said_and_only_where_the_user_asked_for_it(monkeypatch) -> None:
    wanted = SandboxSettings(unix_sockets="allow")
    [opened] = planned(monkeypatch, FULL, wanted).notices
    assert opened.text.startswith("commands may use every Unix socket that you may")
    assert "sandbox.unix_sockets = allow, and the kernel tells" in opened.text
    assert planned(monkeypatch, OVERLAYS, wanted).notices == ()


def test_sockets_of_other_programs_where_commands_may_write_are_named(monkeypatch, tmp_path) -> None:
    work, beside = tmp_path / "w", tmp_path / "beside"
    work.mkdir()
    beside.mkdir()
    monkeypatch.chdir(work)
    with ExitStack() as stack:
        for name, kind in (
            (f"{work}/a b", socket.SOCK_STREAM),
            ("relative", socket.SOCK_DGRAM),
            (f"{beside}/outside", socket.SOCK_STREAM),
            (f"{work}/gone", socket.SOCK_STREAM),
        ):
            stack.enter_context(socket.socket(socket.AF_UNIX, kind)).bind(name)
        (work / "gone").unlink()
        assert bound_in((str(work),)) == [f"{work}/a b", f"{work}/relative"]
        [named] = planned(monkeypatch, OVERLAYS, SandboxSettings(), str(work)).notices
        assert named.text.endswith(f"where commands may write: {work}/a b, {work}/relative")
        assert planned(monkeypatch, SPACES, SandboxSettings(), str(work)).notices == (), "none can be used"


@every_row(
    ("root", "wanted", "expected"),
    [
        ("/work", SandboxSettings(), True),
        ("/tmp/work", SandboxSettings(), True),
        ("/work", SandboxSettings(unix_sockets="deny"), False),
        ("/", SandboxSettings(), False),
        ("/tmp", SandboxSettings(), False),
        ("/work", SandboxSettings(write=("/tmp",)), False),
    ],
)
def test_overlays_need_a_directory_in_tmp_where_commands_may_not_write(root, wanted, expected) -> None:
    assert may_have_overlays(wanted, {}, (root,)) is expected


@every_row(
    ("means", "existing", "missing", "masked", "says"),
    [
        (SPACES, 0, 3, 3, ""),
        (SPACES, 100, 3, 100, ""),
        (SPACES, 102, 3, 100, "deny to {0} 2 places that commands can {0}: at most 100 in"),
        (FULL, 0, 3, 0, ""),
        (FULL, 1, 0, 0, "deny to {0} 1 place that commands can {0}: without namespaces, nothing in"),
        (FULL, 102, 3, 0, "deny to {0} 102 places that commands can {0}: without namespaces"),
    ],
)
def test_what_commands_can_do_although_a_rule_denies_it_is_told_with_its_number(
    tmp_path, means, existing, missing, masked, says
) -> None:
    root = tmp_path / f"{means.bwrap is None}-{existing}"
    (root / ".git").mkdir(parents=True)
    there = [root / f"b{number}.pem" for number in range(existing)]
    for path in there:
        path.touch()
    (root / ".git" / "x.pem").touch()
    places = [str(root / f"a{number}.pem") for number in range(missing)]
    places += [str(root / ".git" / "x.pem"), *map(str, there), "/elsewhere/x.pem"]
    plan = with_denied_places(BoxPlan(means), places, [root])
    assert (plan.rules_deny, len(plan.masked)) == (("/elsewhere/x.pem",), masked)
    assert set(map(str, there[:100])) <= set(plan.masked) or not masked, "what exists comes first"
    assert [says.format("read") in notice.text for notice in plan.notices] == ([True] if says else [])
    plan = with_denied_places(BoxPlan(means), (), [root], changed=places[:-1])
    assert len(plan.write_denied) == masked
    assert [says.format("change") in notice.text for notice in plan.notices] == ([True] if says else [])


def test_a_directory_with_too_many_files_to_compare_is_told() -> None:
    [told] = with_denied_places(BoxPlan(SPACES), [], [Path("/work")], ["/work"]).notices
    assert told.text.startswith("/work has too many files to compare each with the permission rules")


def test_strict_waits_for_a_passing_shortage_and_does_not_call_it_a_setting(monkeypatch) -> None:
    with pytest.raises(ShortageError):
        planned(monkeypatch, SHORT, SandboxSettings(mode="strict", net="off"))


@every_row(("means", "level", "keeps_writing"), [(FULL, "landlock", True), (WITHOUT_LANDLOCK, "none", False)])
def test_auto_takes_what_the_machine_gives_and_names_it(monkeypatch, means, level, keeps_writing) -> None:
    plan = planned(monkeypatch, means, SandboxSettings())
    assert (plan.is_confined, plan.level.name, plan.protections["write"]) == (True, level, keeps_writing)


def test_where_no_process_can_restrict_itself_commands_run_without_a_sandbox(monkeypatch) -> None:
    plan = planned(monkeypatch, NOTHING, SandboxSettings())
    assert (plan.is_confined, plan.level.name, plan.sentence_for_model(0)) == (False, "none", "")


def test_the_sentence_says_what_is_in_force_in_at_most_200_bytes(monkeypatch) -> None:
    many = SandboxSettings(write=tuple(f"/srv/{number}" for number in range(1000)), net="off")
    for means in (FULL, WITHOUT_LANDLOCK):
        for wanted in (SandboxSettings(), SandboxSettings(net="proxy"), many):
            sentence = planned(monkeypatch, means, wanted).sentence_for_model(3)
            assert len(sentence.encode()) <= 200
            assert sentence.startswith(SANDBOX_WORDS) or (means, wanted) == (
                WITHOUT_LANDLOCK,
                SandboxSettings(),
            )
            assert ("may write only in" in sentence) == (means is FULL)


@every_row(
    ("name", "says"),
    [
        (".ssh/keys", "/.ssh holds SSH keys"),
        ("x/.git/hooks", "/hooks is git's own"),
        ("bare.git/hooks", "/hooks is git's own"),
        ("bare/hooks", "/hooks is git's own"),
        ("Library/Keychains", "/Library/Keychains holds keyrings"),
        ("settings/gh/x", "/settings/gh holds git credentials"),
        ("denied/x", "/denied must not be read"),
        *((name, None) for name in ("kube", ".claude", ".local/x", "x")),
    ],
)
def test_a_root_in_a_protected_folder_is_told_at_the_start(tmp_path_factory, name, says) -> None:
    home = tmp_path_factory.mktemp("home")
    for folder in ("x/.git", "bare.git", "bare"):
        for part in ("objects", "refs"):
            (home / folder / part).mkdir(parents=True)
        (home / folder / "HEAD").write_text("ref: refs/heads/x")
    root = home / name
    root.mkdir(parents=True, exist_ok=True)
    environment = {"HOME": str(home), "KUBECONFIG": f"/x:{home}/kube", "XDG_CONFIG_HOME": f"{home}/settings"}
    but_for = " but for what git itself writes there" if "git's own" in str(says) else ""
    for means in (FULL, WITHOUT_LANDLOCK):
        closes = means is FULL and says is not None
        wanted = SandboxSettings(read_deny=(f"{home}/denied",) if means is FULL else ())
        for is_work in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(planning, "find_means", lambda *_, means=means, **__: means)
                plan = plan_box(wanted, environment, (root,) if is_work else (home / "work", root))
                given = plan_box(replace(wanted, write=(str(root),)), environment, (root,))
            assert (given.closed_roots, plan.closed_roots) == ((), (str(root),) if closes else ())
            about = [one.text for one in plan.notices if f"not write {root}{but_for}, because" in one.text]
            assert [str(says) in text for text in about] == [True] * closes
            sentence = plan.sentence_for_model(len(plan.closed_roots) - plan.is_work_closed)
            is_work_closed = closes and is_work
            assert (plan.is_work_closed, "only in $TMPDIR" in sentence) == (is_work_closed, is_work_closed)


def test_places_of_the_settings_lose_their_links_and_the_tilde(monkeypatch, tmp_path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    wanted = SandboxSettings(write=(f"{tmp_path}/link",), read=("~/.ssh/config",))
    plan = planned(monkeypatch, FULL, wanted)
    assert (plan.write, plan.read) == (("/usr",), ("/home/me/.ssh/config",))


def test_a_place_of_the_settings_does_not_follow_links_where_commands_may_write(
    monkeypatch, tmp_path
) -> None:
    for name in ("private", "work", "scratch", "home/.cache/ralph/packages"):
        (tmp_path / name).mkdir(parents=True)
    cache = tmp_path / "home/.cache/ralph/packages"
    for above in (tmp_path / "work", tmp_path / "scratch", cache):
        (above / "planted").symlink_to(tmp_path / "private")
        (tmp_path / f"to-{above.name}").symlink_to(above / "planted")
    named = tuple(f"{tmp_path}/to-{name}" for name in ("work", "scratch", "packages"))
    wanted = SandboxSettings(read=named, write=(f"{tmp_path}/scratch", *named), sockets=named)
    monkeypatch.setattr(planning, "find_means", lambda *_, **__: FULL)
    environment = {"HOME": f"{tmp_path}/home"}
    plan = plan_box(wanted, environment, (tmp_path / "work",))
    planted = tuple(f"{above}/planted" for above in (tmp_path / "work", tmp_path / "scratch", cache))
    assert (plan.read, plan.write, plan.sockets) == (planted, (f"{tmp_path}/scratch", *planted), planted)


def refuses(link: object) -> pytest.RaisesExc[CannotConfineError]:
    return pytest.raises(CannotConfineError, match=f"{link} is a link in a directory that commands may write")


@pytest.mark.parametrize(("mode", "is_of_settings"), [("auto", False), ("auto", True), ("off", False)])
def test_a_root_is_not_found_through_a_link_that_a_command_could_have_made(
    tmp_path, mode, is_of_settings
) -> None:
    libs, work = tmp_path / "libs", tmp_path / "work"
    for directory in (work, libs / "a/b", tmp_path / "mine/b", tmp_path / "to"):
        directory.mkdir(parents=True)
    (tmp_path / "to/libs").symlink_to(libs)
    wanted = SandboxSettings(mode=mode, write=(str(libs),) if is_of_settings else ())
    roots = (work,) if is_of_settings else (work, libs)
    for root in (libs / "a/b", tmp_path / "to/libs/a/b"):
        plan_box(wanted, {}, (*roots, root))
    (libs / "a").rename(libs / "old")
    (libs / "a").symlink_to(tmp_path / "mine")
    for root in (libs / "a/b", tmp_path / "to/libs/a/b"):
        with refuses(f"{libs}/a"):
            plan_box(wanted, {}, (*roots, root))


def test_a_root_is_not_found_through_a_link_in_the_shared_memory(tmp_path) -> None:
    """Each command may write there, in every run."""
    (tmp_path / "mine/b").mkdir(parents=True)
    with TemporaryDirectory(dir="/dev/shm") as shared:
        Path(shared, "a").symlink_to(tmp_path / "mine")
        with refuses(f"{shared}/a"):
            plan_box(SandboxSettings(), {}, (tmp_path, Path(shared, "a/b")))


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o707])
def test_temporary_files_of_hooks_are_in_a_state_directory_that_only_the_user_can_write(
    monkeypatch, tmp_path, mode
) -> None:
    for name in ("work", "state"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "state").chmod(mode)
    found = [f"{tmp_path}/{name}" for name in ("file/state", "state")]
    if mode == 0o700:
        found.insert(0, f"{tmp_path}/work/state")  # commands write this one
    monkeypatch.setattr(command_box, "state_directories", lambda *_: iter(found))
    means = means_of("landlock")
    with box_of(means, [tmp_path / "work"]) as box:
        other = CommandBox(BoxPlan(means), [str(tmp_path / "work")], {}, lambda: NotImplemented, like=box)
        if mode == 0o700:
            assert other.parts.temporary.startswith(f"{tmp_path}/state/ralph-tmp-")
        else:
            with pytest.raises(PermissionError, match="RALPH_STATE_DIR"):
                _ = other.parts
        other.close()


EVERYTHING = Means(Support(9), bwrap="/usr/bin/bwrap", has_network_namespace=True)
CLOSED = Means(Support(0, "no Landlock"), "no rights", "no filter", None, "no namespaces")


def unreached(means: Means, net="full", **options: Any) -> set[str]:
    return {*box_level(means, net, **options).missing()}


def test_a_machine_with_everything_reaches_everything() -> None:
    level = box_level(EVERYTHING, "off")
    assert level.name == "namespaces"
    assert level.missing() == {}


def test_a_machine_with_nothing_says_so_of_each_protection() -> None:
    level = box_level(CLOSED, "off")
    assert level.name == "none"
    assert level.missing() == level.reaches
    assert all(level.reaches.values())


@every_row(
    "abi, missing",
    [
        (1, {"write", "signals"}),
        (2, {"write", "signals"}),
        (3, {"signals"}),
        (5, {"signals"}),
        (6, set()),
        (9, set()),
    ],
)
def test_older_landlock_misses_what_it_does_not_know(abi, missing) -> None:
    level = box_level(Means(Support(abi), why_no_namespaces="no namespaces"), "full")
    assert level.name == "landlock"
    assert {*level.missing()} & {*STRICT} == missing


def test_namespaces_confine_signals_whatever_the_kernel() -> None:
    assert "signals" not in unreached(Means(Support(3), bwrap="/usr/bin/bwrap"))


def test_namespaces_confine_writing_and_not_reading() -> None:
    found = unreached(Means(Support(0, "none"), bwrap="/usr/bin/bwrap"))
    assert "read" in found
    assert "write" not in found


def test_a_limited_network_needs_a_namespace_and_full_needs_none() -> None:
    alone = Means(Support(7), why_no_namespaces="no namespaces")
    assert "network" not in box_level(alone, "full").reaches, "nothing was asked for"
    for net, reason in (("off", "loopback included"), ("proxy", "listed hosts included")):
        why = box_level(alone, net).reaches["network"]  # type: ignore[arg-type]
        assert reason in why
        assert "no namespaces" in why
    assert "network" not in unreached(EVERYTHING, "proxy")


BWRAP = "/usr/bin/bwrap"
WITH_SCOPES = Means(Support(6), bwrap=BWRAP, why_no_overlays="")


@every_row(
    ("means", "asked", "gives", "found"),
    [
        (WITH_SCOPES, "auto", False, "own"),
        (WITH_SCOPES, "auto", True, "own"),
        (WITH_SCOPES, "allow", False, "own"),
        (WITH_SCOPES, "deny", False, "none"),
        (replace(WITH_SCOPES, landlock=Support(5)), "auto", False, "none"),
        (replace(WITH_SCOPES, landlock=Support(5)), "allow", False, "all"),
        (replace(WITH_SCOPES, why_no_overlays="no such mount"), "auto", False, "none"),
        (replace(WITH_SCOPES, why_no_overlays="no such mount"), "auto", True, "all"),
        (Means(Support(8)), "auto", False, "none"),
        (Means(Support(8)), "auto", True, "all"),
        (Means(Support(8)), "allow", False, "all"),
        (Means(Support(9)), "auto", True, "own"),
        (Means(Support(9)), "deny", False, "none"),
        # Nothing refuses them there, so none can be denied.
        (Means(Support(8), why_no_filter="no filter"), "deny", False, "all"),
        (replace(WITH_SCOPES, why_no_filter="no filter"), "auto", False, "own"),
    ],
)
def test_commands_have_the_sockets_that_the_machine_can_tell_from_others(means, asked, gives, found) -> None:
    assert unix_sockets(means, asked, gives_sockets=gives) == found
    open_ = "sockets in the file system" in unreached(means, sockets=asked, gives_sockets=gives)
    assert open_ is (found == "all")


def test_the_reason_why_all_sockets_are_open_is_named() -> None:
    reasons = {
        "allow": "sandbox.unix_sockets = allow, and the kernel tells sockets of commands from others from Landlock 9 on, and",
        "auto": "a socket is given back, and the kernel",
    }
    for asked, reason in reasons.items():
        level = box_level(Means(Support(8)), "full", sockets=asked, gives_sockets=True)  # type: ignore[arg-type]
        assert level.reaches["sockets in the file system"].startswith(reason)
    for means, why in (
        (Means(Support(8)), "no namespaces"),
        (replace(WITH_SCOPES, landlock=Support(5)), "with overlays from 6 on"),
        (replace(WITH_SCOPES, why_no_overlays="no such mount"), "no overlays: no such mount"),
    ):
        assert why in means.why_not_own_sockets


def test_abstract_sockets_are_closed_by_the_filter_or_by_scopes() -> None:
    assert "abstract sockets" not in unreached(Means(Support(3)))
    assert "abstract sockets" in unreached(Means(Support(3), why_no_filter="no filter"))
    assert "abstract sockets" not in unreached(Means(Support(6), why_no_filter="no filter"))
