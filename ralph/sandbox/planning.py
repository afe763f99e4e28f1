"""Decides at the start of a run or a loop which sandbox its commands get (`BoxPlan`), and what people are told about it. The sandbox
block of a settings file for Claude Code adds restrictions and removes none. If a protection that the user requires is impossible on
this machine, nothing may run.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.files.paths import (
    LinkResolver,
    beginning_of,
    common_directory,
    git_directory,
    is_within,
    is_within_any,
    outermost,
    planted_link,
    repositories_above,
    repository_top,
    status_of,
)
from ralph.machine.own_programs import search_around, search_outside
from ralph.sandbox.allowed_hosts import PORTS, AllowedHost, allowed_hosts
from ralph.sandbox.box_plan import STRICT, AskedSockets, BoxNotice, BoxPlan, CannotConfineError
from ralph.sandbox.bubblewrap import TEMPORARY
from ralph.sandbox.detection import INSTALL, find_means, gpu_devices, no_means
from ralph.sandbox.sandbox_settings import SandboxSettings, absolute_place
from ralph.values.credentials import SANDBOX_HIDE, SANDBOX_READ, callers_places
from ralph.values.events import SOCKETS_IN_FILES
from ralph.values.outcome import ADVICE, ShortageError
from ralph.values.screen_text import counted
from ralph.values.setting import MEGABYTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.machine.own_programs import ProgramSearch
    from ralph.sandbox.box_plan import Net
    from ralph.sandbox.sandbox_settings import HookSettings
    from ralph.values.claude_file import SandboxLimits

# Each mount costs each command time.
_MOST_MOUNTED = 100
# The highest limit that setrlimit(2) takes everywhere.
_MOST_LIMIT = 2**62
_COUNTED_BY = "/proc/self/task"
_BOUND_SOCKETS = "/proc/net/unix"
# Of a long list of paths, a notice names these.
_MOST_NAMED = 3
# Folders of the system that hold protected places, and those of this Python and of ralph.
_WITH_PLACES = (
    *("/etc", "/run", "/var/run", "/Library", "/private", "/dev", "/proc", "/sys"),
    *dict.fromkeys((sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))),
)
# What git ends with an error if it cannot read it, and a directory of hooks.
_NAMES_FILES = re.compile(rb"(?i)include|excludesfile|attributesfile|hookspath")
# The variables that say where the user's configuration and ralph's own files are begin so.
_WITH_FOLDERS = ("XDG_", "RALPH_")


def plan_box(
    wanted: SandboxSettings,
    environment: Mapping[str, str],
    roots: Sequence[Path],
    search: ProgramSearch | None = None,
) -> BoxPlan:
    """Decides which sandbox commands get on this machine, from the user's own environment. `roots` are the directories that
    commands may write, the working directory first. `search` is `search_around` them, if known. Raises CannotConfineError.
    """
    net: Net = wanted.asked_net  # type: ignore[assignment]  # the setting allows only these names
    asked: AskedSockets = wanted.unix_sockets  # type: ignore[assignment]  # the setting allows only these names
    real_roots = tuple(os.path.realpath(root) for root in roots)
    try:
        hidden = _hidden(environment)
        write, read, sockets = opened_by_settings(wanted, environment, real_roots)
    except ValueError as error:
        raise CannotConfineError(str(error)) from None
    _raise_first(_contradictions(wanted, net))
    home = environment.get("HOME", "")
    written = search_outside(environment, (*real_roots, *write)).roots
    _raise_first(_roots_behind_links(roots, written))
    if wanted.mode == "off":
        return BoxPlan(no_means("--sandbox off"), read=read)  # Read keeps its rules
    search = search or search_around(environment, roots, wanted.written(environment))
    has_overlays = may_have_overlays(wanted, environment, roots)
    means = find_means(search, shares_network=net == "full", has_overlays=has_overlays)
    plan = BoxPlan(
        means,
        net,
        write,
        read,
        sockets,
        tuple(os.path.realpath(absolute_place(place, home)) for place in wanted.read_deny),
        gpus=() if means.why_no_privileges else gpu_devices(wanted.asked_gpu),
        allow_hosts=wanted.allow_hosts,
        asked_sockets=asked,
        most_file_bytes=min((wanted.max_file_mb or 0) * MEGABYTE, _MOST_LIMIT),
        is_strict=wanted.mode == "strict",
    )
    writable = (*map(str, roots), *write)
    _raise_first(_lacks(wanted, plan))
    _raise_first(_open_places(plan.read_deny, hidden, writable))
    others = [root for root in real_roots if not is_within_any(root, write)]
    hides = (*plan.read_deny, *hidden)
    is_open = "write" in plan.level.missing()
    closed, open_secrets = ({}, ()) if is_open else _odd_roots(others, environment, plan.read_deny, hides)
    return replace(
        plan,
        closed_roots=tuple(closed),
        is_work_closed=not closed.keys().isdisjoint(real_roots[:1]),
        notices=(
            *_about_means(plan),
            *_about_own_code(written, is_guarded=plan.has_namespaces),
            *(_about_home(home, writable, is_strict=plan.is_strict) if home else ()),
            *(_about_sockets(plan, writable) if plan.is_confined else ()),
            *closed.values(),
            *open_secrets,
            *(about_git(real_roots, environment) if plan.is_confined else ()),
            *(_about_files_for_git(plan, real_roots, environment) if plan.is_confined else ()),
        ),
    )


def refuse_owners_work(plan: BoxPlan, directory: Path) -> None:
    """Raises CannotConfineError if root's commands could not write another user's directory: they have no capabilities."""
    if os.geteuid() != 0 or not plan.is_confined:
        return
    with suppress(OSError):
        status = directory.stat()
        needed = stat.S_IWGRP if status.st_gid in (os.getegid(), *os.getgroups()) else stat.S_IWOTH
        if status.st_uid and not status.st_mode & needed:
            owner = f"{status.st_uid}:{status.st_gid}"
            raise CannotConfineError(
                f"ralph runs as root, and {directory} belongs to user {status.st_uid}: commands in the sandbox have none of root's "
                f"capabilities and could not write there. Run ralph as {owner} (docker run --user {owner}, setpriv --reuid, sudo -u), "
                "or with --sandbox off in a container that holds nothing else"
            )


def may_have_overlays(
    wanted: SandboxSettings, environment: Mapping[str, str], roots: Iterable[Path | str]
) -> bool:
    """Whether commands may see overlays, if this machine can make them: these need a place in /tmp that commands may not write."""
    writable = (*map(os.path.realpath, roots), *map(os.path.realpath, wanted.written(environment)))
    is_own = os.path.realpath(TEMPORARY) == TEMPORARY and not is_within_any(TEMPORARY, writable)
    return is_own and wanted.unix_sockets != "deny"


def _roots_behind_links(roots: Sequence[Path], writable: Sequence[str]) -> Iterator[str]:
    """Yields a complaint for each root behind a link in another writable directory: an earlier command could have made the link."""
    for root in roots:
        link = planted_link(os.path.join(os.getcwd(), root), writable)
        if link is not None:
            yield f"{root} is not opened to the work: {link} is a link in a directory that commands may write; name what it leads to"


def with_denied_places(
    plan: BoxPlan,
    places: Sequence[str],
    roots: Sequence[Path],
    unsearched: Sequence[str] = (),
    changed: Sequence[str] = (),
) -> BoxPlan:
    """A copy of `plan` in which commands also cannot read `places` and cannot change those of `changed`, with a notice about those
    that they still can. The paths contain no symbolic links. `unsearched` are directories where rules may deny further places.

    A place around a writable directory stays readable: it may hold programs. One inside is masked with namespaces, and
    readable without them: Landlock grants a directory with all that is in it, and no right to it means no new file there.
    """
    writable = (*(os.path.realpath(root) for root in roots), *plan.write)
    closed = [place for place in places if not any(is_within(one, place) for one in writable)]
    inside = [place for place in closed if is_within_any(place, writable)]
    masked, left = _mounted(plan, inside)
    write_denied, open_left = _mounted(plan, [place for place in changed if not is_within_any(place, masked)])
    return replace(
        plan,
        rules_deny=tuple(place for place in closed if place not in inside),
        masked=masked,
        write_denied=write_denied,
        notices=(
            *plan.notices,
            *_about_denied(plan, left, "read", "masked"),
            *_about_denied(plan, open_left, "change", "read-only"),
            *(_about_unsearched(unsearched) if plan.has_namespaces else ()),
        ),
    )


def _mounted(plan: BoxPlan, places: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The places that get mounts of their own, and the number of the others that exist."""
    # Git could not work without its own files.
    possible = [place for place in outermost(places) if "/.git/" not in f"{place}/"]
    possible.sort(key=os.path.lexists, reverse=True)
    mounted = tuple(possible[:_MOST_MOUNTED]) if plan.has_namespaces else ()
    return mounted, sum(map(os.path.lexists, possible[len(mounted) :]))


def _about_denied(plan: BoxPlan, left: int, verb: str, done: str) -> Iterator[BoxNotice]:
    """`left` is the number of places for which rules deny what commands can do."""
    told = f"permission rules deny to {verb} {counted(left, 'place')} that commands can {verb}"
    if left and plan.has_namespaces:
        yield BoxNotice(
            f"{told}: at most {_MOST_MOUNTED} in the writable directories are {done}",
            "deny whole directories, or move the files out",
        )
    elif left:
        yield BoxNotice(
            f"{told}: without namespaces, nothing in the writable directories is {done}",
            "move the files out; `ralph help sandbox` says what namespaces need",
        )


def _about_unsearched(unsearched: Iterable[str]) -> Iterator[BoxNotice]:
    for root in unsearched:
        yield BoxNotice(
            f"{root} has too many files to compare each with the permission rules, so commands can read and change those there "
            "that a pattern matches",
            "deny whole directories by name",
        )


def with_hook_places(
    plan: BoxPlan,
    hooks: HookSettings,
    wanted: SandboxSettings,
    environment: Mapping[str, str],
    roots: Sequence[Path],
) -> BoxPlan:
    """The plan for hooks, made from that of commands. It is `plan` itself if hooks may do the same. Raises CannotConfineError."""
    if not plan.is_confined or not hooks.gives_more:
        return plan
    if hooks.outside:
        return BoxPlan(no_means("hooks.outside"), read=plan.read)
    asked = SandboxSettings(write=hooks.write, sockets=hooks.sockets)
    around = (*map(os.path.realpath, roots), *plan.write)
    try:
        write, _, sockets = opened_by_settings(asked, environment, around)
    except ValueError as error:
        raise CannotConfineError(str(error)) from None
    _raise_first(
        f"hooks.write: there is no directory for {place}: make it, or name another place"
        for place in write
        if not Path(place).parent.is_dir()
    )
    _raise_first(_open_places(plan.read_deny, _hidden(environment), write))
    made = replace(
        plan,
        write=(*plan.write, *write),
        write_denied=tuple(place for place in plan.write_denied if not is_within_any(place, write)),
        sockets=(*plan.sockets, *sockets),
        asked_sockets="auto" if sockets else plan.asked_sockets,
    )
    _raise_first(_lacks(wanted, made))
    return made


def _raise_first(complaints: Iterable[str]) -> None:
    for complaint in complaints:
        raise CannotConfineError(complaint)


def _contradictions(wanted: SandboxSettings, net: Net) -> Iterator[str]:
    """Yields what the settings ask for and cannot get on any level. The default limit on processes is kept where that is possible."""
    for name in ("max_memory_mb", "max_processes") if not Path(_COUNTED_BY).is_dir() else ():
        most = getattr(wanted, name)
        if most not in (0, getattr(SandboxSettings(), name)):
            yield f"sandbox.{name} = {most} cannot be kept: this system has no /proc to count by; leave it out"
    if net == "full" and wanted.allow_hosts:
        every = "sandbox.net = full (--net full) reaches every host"
        yield f"{every}, sandbox.allow_hosts (--allow-host) only the listed ones: leave out one of them"
    guards = {
        "net": net != "full",
        "read_deny": wanted.read_deny,
        "gpu": wanted.gpu == "off",
        "unix_sockets": wanted.unix_sockets == "deny",
        "max_file_mb": wanted.max_file_mb is not None,
    }
    if wanted.unix_sockets == "deny" and wanted.sockets:
        yield "sandbox.unix_sockets = deny (--unix-sockets deny) closes the sandbox.sockets: leave out one of them"
    names = ", ".join(f"sandbox.{name}" for name, is_asked in guards.items() if is_asked)
    if wanted.mode == "off" and names:
        yield f"{names} cannot be kept with sandbox.mode = off (--sandbox off): leave out one of them"


def _lacks(wanted: SandboxSettings, plan: BoxPlan) -> Iterator[str]:
    """Yields what the settings ask for and this machine cannot give. Raises ShortageError if it may give it later."""
    means, net = plan.means, plan.net
    missing = {name: why for name, why in plan.level.missing().items() if name in STRICT}
    if wanted.mode == "strict" and missing:
        if means.is_short_of_namespaces:
            raise ShortageError("process")
        told = "; ".join(f"{name} ({why})" for name, why in missing.items())
        yield f"--sandbox strict: this machine lacks {told}"
    if net != "full" and means.why_no_filter and not means.has_own_network:
        yield f"the network of commands cannot be restricted to {net!r}: {means.why_no_filter}"
    if wanted.max_file_mb is not None and means.why_no_privileges:
        yield f"sandbox.max_file_mb cannot be kept: {means.why_no_privileges}"
    if wanted.unix_sockets == "deny" and means.why_no_filter:
        yield f"sandbox.unix_sockets = deny cannot be kept: {means.why_no_filter}"
    if wanted.read_deny and not means.landlock.abi:
        why = means.landlock.why_not or "the kernel has no Landlock"
        yield f"sandbox.read_deny cannot be kept: {why}"


def _hidden(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The places that ralph's caller hides, without links. Raises ValueError if the variable is not valid."""
    return tuple(map(os.path.realpath, callers_places(SANDBOX_HIDE, environment.get(SANDBOX_HIDE, ""))))


def _open_places(read_deny: Sequence[str], hidden: Sequence[str], writable: Sequence[str]) -> Iterator[str]:
    """Yields a complaint for each path of `read_deny` and `hidden` where commands may write: the kernel cannot forbid reading there."""
    for name, places in (("sandbox.read_deny", read_deny), (SANDBOX_HIDE, hidden)):
        for place, root in product(places, writable):
            if is_within(place, os.path.realpath(root)):
                yield f"{name}: {place} cannot be closed, because it is in {root}, which commands may write"


def _about_means(plan: BoxPlan) -> Iterator[BoxNotice]:
    net, means = plan.net, plan.means
    if means.is_short_of_namespaces:
        yield BoxNotice(f"commands have no namespaces in this run: {means.why_no_namespaces}", ADVICE)
    if net != "full" and not means.has_own_network:
        included = "the listed hosts" if net == "proxy" else "loopback"
        yield BoxNotice(
            f"network of commands: without namespaces, {net!r} refuses all internet sockets, {included} included",
            f"{INSTALL}, where namespaces are allowed; or give the network back: --net full",
        )


def _about_home(home: str, writable: Sequence[str], *, is_strict: bool) -> Iterator[BoxNotice]:
    real = os.path.realpath(home)
    around = next((one for one in writable if is_within(real, os.path.realpath(one))), None)
    if around is not None:
        told = f"commands may read and write the home directory with its secrets, because it is in {around}"
        if is_strict:
            raise CannotConfineError(f"--sandbox strict: {told}")
        yield BoxNotice(told, "work in a directory of its own, or allow less")


def _about_sockets(plan: BoxPlan, writable: Iterable[str]) -> Iterator[BoxNotice]:
    """Notices about the sockets of other programs that commands can reach. `writable` are the directories that they may write."""
    if plan.asked_sockets == "allow" and (why := plan.level.missing().get(SOCKETS_IN_FILES)):
        yield BoxNotice(
            f"commands may use every Unix socket that you may, such as those of agents, Docker and the desktop ({why})",
            "they stay closed without --unix-sockets allow (sandbox.unix_sockets)",
        )
    elif plan.unix_sockets == "own" and (found := bound_in(map(os.path.realpath, writable))):
        yield BoxNotice(
            f"commands may connect to sockets that other programs have bound where commands may write: {_named(found)}",
            "close them: --unix-sockets deny",
        )


def bound_in(directories: Iterable[str]) -> list[str]:
    """The Unix sockets in `directories` (without links) that programs of this network have bound. Of those with a relative name,
    only such as would lie at the top of a directory are found.
    """
    tops = tuple(directories)
    try:
        with open(_BOUND_SOCKETS, encoding="utf-8", errors="surrogateescape") as listed:
            lines = [line.rstrip("\n").split(None, 7) for line in listed]
    except OSError:
        return []
    names = {line[7] for line in lines[1:] if len(line) > 7 and not line[7].startswith("@")}
    paths = {os.path.join(top, name) for name in names for top in tops}
    statuses = {path: status_of(path) for path in paths if is_within_any(path, tops)}
    return sorted(path for path, status in statuses.items() if status and stat.S_ISSOCK(status.st_mode))


def _about_own_code(roots: Sequence[str], *, is_guarded: bool) -> Iterator[BoxNotice]:
    package, prefix = os.path.realpath(str(Path(__file__).parents[1])), os.path.realpath(sys.prefix)
    around = [one for one in roots if is_within(package, one) or is_within(prefix, one)]
    if not around:
        return
    from ralph.places.gather import own_code  # noqa: PLC0415 - few runs have it, and it takes 20 ms

    where = "the working directory" if around[0] == roots[0] else around[0]
    if is_guarded and (own := own_code(roots)):
        yield BoxNotice(
            f"ralph itself is in {where}, so that commands cannot change {', '.join(own)}, and install nothing there",
            "install ralph elsewhere",
        )
    else:
        yield BoxNotice(f"ralph itself is in {where}, where commands may change it", "install it elsewhere")


def about_git(roots: Sequence[str], environment: Mapping[str, str]) -> tuple[BoxNotice, ...]:
    """A notice for each git directory that a checkout names as its own, and that commands may not write. `roots` have no links."""
    tops = filter(None, (repository_top(Path(root)) for root in roots))
    statuses = ((top / ".git").lstat() for top in tops)
    are_own = all(stat.S_ISDIR(one.st_mode) and one.st_uid == os.getuid() for one in statuses)
    if are_own and not environment.get("GIT_DIR") and not environment.get("GIT_COMMON_DIR"):
        return ()
    from ralph.places.git_places import git_places  # noqa: PLC0415 - 0.7 ms, which most runs do not need

    return tuple(
        BoxNotice(
            f"commands may not write the git directory {path} ({why}), so that git commit fails",
            f"if it is yours and you trust this checkout, name it: --add-dir {path}",
        )
        for path, why in git_places(roots, environment, os.getuid()).refused
        if not any(is_within(path, root) or is_within(root, path) for root in roots)
    )


def _about_files_for_git(
    plan: BoxPlan, roots: Sequence[str], environment: Mapping[str, str]
) -> Iterator[BoxNotice]:
    """A notice if the configuration of a root's checkout names files that commands may not read."""
    directories = [one for root in roots if (one := git_directory(str(repository_top(Path(root)) or root)))]
    places = {common_directory(one) or one for one in directories}
    if not any(_NAMES_FILES.search(beginning_of(f"{one}/config")) for one in places):  # as in most checkouts
        return
    from ralph.places.gather import unread_by_git  # noqa: PLC0415 - 20 ms

    unread = unread_by_git(
        roots, environment, denied=plan.read_deny, given=plan.read, has_copies=plan.has_namespaces
    )
    if found := [*dict.fromkeys(unread)]:
        yield BoxNotice(
            f"git fails in commands: .git/config names {_named(found)}, which commands may not read",
            "with actions/checkout, set persist-credentials: false; else take it out of .git/config, or allow it: sandbox.read",
        )


def _odd_roots(
    roots: Sequence[str], environment: Mapping[str, str], denied: Sequence[str], hidden: Sequence[str]
) -> tuple[dict[str, BoxNotice], tuple[BoxNotice, ...]]:
    """The roots that commands may not write, because a protected folder holds them, each with a notice; and a notice about secrets
    in the others, unless the home is there too. `hidden` are `denied` and what ralph's caller hides. All are without symbolic links.
    """
    if not any(_may_be_closed(root, environment, hidden) for root in roots):  # as in most runs
        return {}, ()
    from ralph.places.gather import gather_places  # noqa: PLC0415 - 20 ms

    places = gather_places(roots, environment, denied=denied)
    found = ((root, places.why_not_written(root)) for root in dict.fromkeys(roots))
    closed = {
        root: BoxNotice(
            # The git directories around the roots can be used.
            f"commands may not write {root}"
            + (" but for what git itself writes there" if place.row.why.startswith("is git's own") else "")
            + f", because {place.path} {place.row.why}",
            "name a directory elsewhere, or open it: sandbox.write in your config.toml",
        )
        for root, place in found
        if place is not None
    }
    home = os.path.realpath(environment.get("HOME") or os.sep)
    opened = [root for root in roots if root not in closed and not is_within(home, root)]
    secret = [place.path for place in places.found if place.is_unread]
    inside = outermost(one for one in secret if is_within_any(one, opened) and os.path.lexists(one))
    told = f"commands may read secrets, because they are where commands may write: {_named(inside)}"
    return closed, (BoxNotice(told, "work in a directory of its own, or allow less"),) if inside else ()


def _named(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_MOST_NAMED]) + (" and others" if len(paths) > _MOST_NAMED else "")


def _may_be_closed(root: str, environment: Mapping[str, str], hidden: Sequence[str]) -> bool:
    """Whether the table may protect a root: hidden folders, git directories, the system, this Python, the user's configuration."""
    home = os.path.realpath(environment.get("HOME") or "/")
    if "/." in root or ".git/" in f"{root}/" or is_within_any(root, (*_WITH_PLACES, *hidden)):
        return True
    if is_within(root, home) and root[len(home) :].split("/")[1:2] in (["Library"], ["snap"]):
        return True
    if any(not is_checkout for _, is_checkout in repositories_above(root)):
        return True
    named = [value for name, value in environment.items() if name.startswith(_WITH_FOLDERS)]
    return any(is_within(root, one) for one in named if one.startswith("/"))


def opened_by_settings(
    wanted: SandboxSettings, environment: Mapping[str, str], real_roots: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """The paths to which `write`, `read` and `sockets` give access, with links resolved, but for links where commands may write: an
    earlier command could have made one. Raises ValueError if `SANDBOX_READ` is not valid.
    """
    lent = callers_places(SANDBOX_READ, environment.get(SANDBOX_READ, ""))
    named = (wanted.write, (*wanted.read, *lent), wanted.sockets)
    if not any(named):
        return named
    home, writable = environment.get("HOME", ""), search_outside(environment, real_roots).roots
    absolute = [tuple(absolute_place(place, home) for place in places) for places in named]
    writable = (*writable, *map(LinkResolver(writable), absolute[0]))
    return tuple(tuple(map(LinkResolver(writable), places)) for places in absolute)


def restricted(wanted: SandboxSettings, limits: Sequence[tuple[str, SandboxLimits]]) -> SandboxSettings:
    """The settings `wanted` with the restrictions of files, by file names. Raises CannotConfineError if one cannot be kept."""
    for name, one in limits:
        wanted = _with_limits(wanted, name, one)
    for name, one in limits:  # after the lists of all files, which may leave a denied host out
        _refuse_denied(name, wanted, one.denied_hosts)
    return wanted


def _with_limits(wanted: SandboxSettings, name: str, limits: SandboxLimits) -> SandboxSettings:
    if wanted.mode == "off":
        raise CannotConfineError(
            f"{name}: {limits.keys[0]} cannot be kept with --sandbox off ([sandbox] mode): leave out one of them"
        )
    net, hosts = wanted.asked_net, wanted.allow_hosts
    if limits.hosts is not None and net != "off":
        hosts = _common(name, hosts if net == "proxy" else None, limits.hosts)
        net = "proxy" if any(not _is_network(host) for host in hosts) else "off"
    return replace(
        wanted,
        mode="strict" if limits.is_strict else wanted.mode,
        net=net,
        allow_hosts=() if net == "off" else hosts,
        read_deny=(*wanted.read_deny, *limits.read_deny),
    )


def _common(name: str, users: tuple[str, ...] | None, files: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts that both the user (None: all) and the file allow. The user's networks stay: they only say where a name may lie."""
    try:
        allowed = allowed_hosts(files)
    except ValueError as error:
        raise CannotConfineError(f"{name}: sandbox.network.allowedDomains cannot be kept: {error}") from None
    if users is None:
        return tuple(host for host in files if not _is_network(host))
    of_user = allowed_hosts(users)
    networks = tuple(host for host in users if _is_network(host))
    both = (one for one in of_user.hosts if any(_is_part(one, other) for other in allowed.hosts))
    of_file = (one for one in allowed.hosts if any(_is_part(one, other) for other in of_user.hosts))
    return (*networks, *dict.fromkeys(one.entry for one in (*both, *of_file)))


def _is_part(one: AllowedHost, whole: AllowedHost) -> bool:
    is_below = one.name == whole.name or (whole.name.startswith(".") and one.name.endswith(whole.name))
    return is_below and (one.port == whole.port or (whole.port is None and one.port in PORTS))


def _is_network(host: str) -> bool:
    return bool(allowed_hosts((host,)).networks)


def _refuse_denied(name: str, wanted: SandboxSettings, denied: tuple[str, ...]) -> None:
    """Raises CannotConfineError if commands could reach a `denied` host: ralph can allow hosts, and not deny them."""
    if wanted.asked_net == "off":
        return
    reached = allowed_hosts(wanted.allow_hosts).hosts
    for one in denied:
        try:
            found = allowed_hosts((one,)).hosts
        except ValueError:  # such as `*`, which denies more than a name
            found = ()
        is_reached = not found or any(_overlap(found[0].name, host.name) for host in reached)
        if wanted.asked_net == "full" or is_reached:
            raise CannotConfineError(
                f"{name}: sandbox.network.deniedDomains: {one} cannot be denied alone; --net off denies every host, and "
                "--allow-host allows only others"
            )


def _overlap(one: str, other: str) -> bool:
    """Whether one of two names is the other, or a name below it. A name may begin with a dot, as in `AllowedHost`."""
    one, other = f".{one.lstrip('.')}", f".{other.lstrip('.')}"
    return one.endswith(other) or other.endswith(one)
