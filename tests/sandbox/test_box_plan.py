"""Tests which sandbox a run gets from its settings and the machine. Nothing runs without a protection that is
required.
"""

from __future__ import annotations

import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from ralph.sandbox import planning
from ralph.sandbox.box_plan import SANDBOX_WORDS, BoxPlan, CannotConfineError
from ralph.sandbox.kernel.landlock import Support
from ralph.sandbox.levels import Means
from ralph.sandbox.planning import bound_in, may_have_overlays, plan_box, with_denied_reads
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.shortage import ShortageError
from tests.rows import every_row

FULL = Means(Support(7), why_no_namespaces="no bubblewrap")
WITHOUT_FILTER = Means(Support(7), why_no_filter="no seccomp", why_no_namespaces="no bubblewrap")
WITHOUT_LANDLOCK = Means(Support(0, "no Landlock here"), why_no_namespaces="no bubblewrap")
NOTHING = Means(Support(0, "not Linux"), "not Linux", "not Linux", why_no_namespaces="not Linux")
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
            "lacks write (no Landlock here); read (no Landlock here)",
        ),
        (Means(Support(5)), SandboxSettings(mode="strict"), "lacks signals ("),
        (WITHOUT_FILTER, SandboxSettings(net="off"), "cannot be restricted to 'off': no seccomp"),
        (
            WITHOUT_FILTER,
            SandboxSettings(allow_hosts=("a.example",)),
            "cannot be restricted to 'proxy': no seccomp",
        ),
        (
            WITHOUT_LANDLOCK,
            SandboxSettings(read_deny=("/x",)),
            "sandbox.read_deny cannot be kept: no Landlock here",
        ),
        (FULL, SandboxSettings(read_deny=("/work/x",)), "/work/x cannot be closed, because it is in /work"),
        (NOTHING, SandboxSettings(max_file_mb=1), "sandbox.max_file_mb cannot be kept: not Linux"),
        (
            WITHOUT_FILTER,
            SandboxSettings(unix_sockets="deny"),
            "sandbox.unix_sockets = deny cannot be kept: no seccomp",
        ),
        (
            FULL,
            SandboxSettings(unix_sockets="deny", mode="off"),
            "sandbox.unix_sockets cannot be kept with sandbox.mode = off",
        ),
        (
            FULL,
            SandboxSettings(unix_sockets="deny", sockets=("/agent",)),
            "sandbox.unix_sockets = deny (--unix-sockets deny) closes the sandbox.sockets",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_name(monkeypatch, means, wanted, says) -> None:
    with pytest.raises(CannotConfineError) as refused:
        planned(monkeypatch, means, wanted)
    assert says in str(refused.value)


def test_a_limit_on_processes_and_memory_is_refused_where_nothing_can_be_counted(monkeypatch) -> None:
    for wanted in (SandboxSettings(max_memory_mb=1), SandboxSettings(max_processes=7)):
        for mode in ("auto", "off"):
            planned(monkeypatch, FULL, replace(wanted, mode=mode))
    monkeypatch.setattr(planning, "_COUNTED_BY", "/no/such")
    with pytest.raises(
        CannotConfineError, match=r"sandbox\.max_memory_mb = 1 cannot be kept: this system has no"
    ):
        planned(monkeypatch, FULL, SandboxSettings(max_memory_mb=1))
    with pytest.raises(
        CannotConfineError, match=r"sandbox\.max_processes = 7 cannot be kept: this system has no"
    ):
        planned(monkeypatch, FULL, SandboxSettings(max_processes=7, mode="off"))
    for most in (0, SandboxSettings().max_processes):
        planned(monkeypatch, FULL, SandboxSettings(max_processes=most))


def test_the_program_that_starts_ralph_adds_places_to_read_to_those_of_the_user(monkeypatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "RALPH_SANDBOX_READ", "/mirror/objects:/other")
    assert planned(monkeypatch, FULL, SandboxSettings(read=("/mine",))).read == (
        "/mine",
        "/mirror/objects",
        "/other",
    )


@every_row("variable", ["RALPH_SANDBOX_READ", "RALPH_SANDBOX_HIDE"])
def test_a_relative_path_of_the_program_that_starts_ralph_is_refused(variable) -> None:
    for mode in ("auto", "off"):
        with pytest.raises(CannotConfineError, match=f"{variable} must contain absolute paths, not 'x'"):
            plan_box(SandboxSettings(mode=mode), ENVIRONMENT | {variable: "/y:x"}, ())


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
    [opened] = planned(monkeypatch, FULL, SandboxSettings(unix_sockets="allow")).notices
    assert opened.text.startswith("commands may use every Unix socket that you may")
    assert "sandbox.unix_sockets = allow, and the kernel tells" in opened.text
    assert (
        planned(
            monkeypatch, replace(SPACES, why_no_overlays=""), SandboxSettings(unix_sockets="allow")
        ).notices
        == ()
    )


def test_sockets_of_other_programs_where_commands_may_write_are_named(monkeypatch, tmp_path) -> None:
    work, beside = tmp_path / "w", tmp_path / "beside"
    work.mkdir()
    beside.mkdir()
    with (
        socket.socket(socket.AF_UNIX) as inside,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as relative,
    ):
        inside.bind(f"{work}/a b")
        monkeypatch.chdir(work)
        relative.bind("relative")
        with socket.socket(socket.AF_UNIX) as outside, socket.socket(socket.AF_UNIX) as gone:
            outside.bind(f"{beside}/outside")
            gone.bind(f"{work}/gone")
            (work / "gone").unlink()
            assert bound_in((str(work),)) == [f"{work}/a b", f"{work}/relative"]
            [named] = planned(
                monkeypatch, replace(SPACES, why_no_overlays=""), SandboxSettings(), str(work)
            ).notices
            assert named.text.endswith(f"where commands may write: {work}/a b, {work}/relative")
            assert planned(monkeypatch, SPACES, SandboxSettings(), str(work)).notices == (), (
                "none can be used"
            )


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


SPACES = Means(Support(7), bwrap="/usr/bin/bwrap")


@every_row(
    ("means", "existing", "missing", "masked", "says"),
    [
        (SPACES, 0, 3, 3, ""),
        (SPACES, 100, 3, 100, ""),
        (SPACES, 102, 3, 100, "deny to read 2 places that commands can read: at most 100 in"),
        (FULL, 0, 3, 0, ""),
        (FULL, 1, 0, 0, "deny to read 1 place that commands can read: without namespaces, nothing in"),
        (FULL, 102, 3, 0, "deny to read 102 places that commands can read: without namespaces"),
    ],
)
def test_what_commands_can_read_although_a_rule_denies_it_is_told_with_its_number(
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
    plan = with_denied_reads(BoxPlan(means), places, [root])
    assert plan.rules_deny == ("/elsewhere/x.pem",)
    assert len(plan.masked) == masked
    assert set(map(str, there[:100])) <= set(plan.masked) or not masked, "what exists comes first"
    assert [says in notice.text for notice in plan.notices] == ([True] if says else [])


def test_a_directory_with_too_many_files_to_compare_is_told() -> None:
    [told] = with_denied_reads(BoxPlan(SPACES), [], [Path("/work")], ["/work"]).notices
    assert told.text.startswith("/work has too many files to compare each with the permission rules")


def test_strict_waits_for_a_passing_shortage_and_does_not_call_it_a_setting(monkeypatch) -> None:
    with pytest.raises(ShortageError):
        planned(monkeypatch, SHORT, SandboxSettings(mode="strict", net="off"))


def test_auto_takes_what_the_machine_gives_and_names_it(monkeypatch) -> None:
    levels = {
        "landlock": planned(monkeypatch, FULL, SandboxSettings()),
        "none": planned(monkeypatch, WITHOUT_LANDLOCK, SandboxSettings()),
    }
    assert {name: plan.level.name for name, plan in levels.items()} == {name: name for name in levels}
    assert all(plan.is_confined for plan in levels.values())
    assert levels["landlock"].protections["write"]
    assert not levels["none"].protections["write"]


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
        ("kube", None),
        ("denied/x", "/denied must not be read"),
        (".claude", None),
        (".local/x", None),
        ("x", None),
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
    environment = {"HOME": str(home), "PATH": "/usr/bin", "KUBECONFIG": f"/x:{home}/kube"} | {
        "XDG_CONFIG_HOME": f"{home}/settings"
    }
    wanted = SandboxSettings(read_deny=(f"{home}/denied",))
    told = {}
    with pytest.MonkeyPatch.context() as patch:
        for means in (FULL, WITHOUT_LANDLOCK):
            patch.setattr(planning, "find_means", lambda *_arguments, means=means, **_options: means)
            wanted = SandboxSettings(read_deny=(f"{home}/denied",) if means is FULL else ())
            for place in ("work", "added"):
                roots = (root,) if place == "work" else (home / "work", root)
                plan = plan_box(wanted, environment, roots)
                told[means is FULL, place] = plan
            given = replace(wanted, write=(str(root),))
            assert plan_box(given, environment, (root,)).closed_roots == ()
    for (is_full, place), plan in told.items():
        about = [notice.text for notice in plan.notices if notice.text.startswith("commands may not write /")]
        closes = says is not None and is_full
        but_for = " but for what git itself writes there" if "git's own" in str(says) else ""
        assert plan.closed_roots == ((str(root),) if closes else ())
        assert (
            len([text for text in about if f"write {root}{but_for}, because" in text and str(says) in text])
            == closes
        )
        assert plan.is_work_closed == (closes and place == "work")
        assert (
            "only in $TMPDIR" in plan.sentence_for_model(len(plan.closed_roots) - plan.is_work_closed)
        ) == (closes and place == "work")


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


@pytest.mark.parametrize("mode", ["auto", "off"])
@pytest.mark.parametrize("is_of_settings", [False, True])
def test_a_root_is_not_found_through_a_link_that_a_command_could_have_made(
    tmp_path, mode, is_of_settings
) -> None:
    libs, work = tmp_path / "libs", tmp_path / "work"
    for directory in (work, libs / "a/b", tmp_path / "mine/b", tmp_path / "to"):
        directory.mkdir(parents=True)
    (tmp_path / "to/libs").symlink_to(libs)
    wanted = SandboxSettings(mode=mode, write=(str(libs),) if is_of_settings and mode == "auto" else ())
    around = () if wanted.write else (libs,)
    for root in (libs / "a/b", tmp_path / "to/libs/a/b"):
        plan_box(wanted, {}, (work, *around, root))
    (libs / "a").rename(libs / "old")
    (libs / "a").symlink_to(tmp_path / "mine")
    for root in (libs / "a/b", tmp_path / "to/libs/a/b"):
        with pytest.raises(
            CannotConfineError, match=f"{libs}/a is a link in a directory that commands may write"
        ):
            plan_box(wanted, {}, (work, *around, root))


def test_a_root_is_not_found_through_a_link_in_the_shared_memory(tmp_path) -> None:
    """Each command may write there, in every run."""
    (tmp_path / "mine/b").mkdir(parents=True)
    with TemporaryDirectory(dir="/dev/shm") as shared:
        (Path(shared) / "a").symlink_to(tmp_path / "mine")
        with pytest.raises(
            CannotConfineError, match=f"{shared}/a is a link in a directory that commands may"
        ):
            plan_box(SandboxSettings(), {}, (tmp_path, Path(shared) / "a/b"))
