"""Tries actions in the sandbox on this machine (`ralph doctor --sandbox`)."""

from __future__ import annotations

import os
import stat
import sys
from itertools import groupby, islice
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.cli.checks.finding import Finding, fail, ok, warn
from ralph.machine.files.paths import is_within_any
from ralph.machine.own_programs import search_around
from ralph.places.gather import files_in, gather_places
from ralph.places.table import FILTERED
from ralph.sandbox.detection import find_means
from ralph.sandbox.planning import about_git, may_have_overlays, opened_by_settings
from ralph.sandbox.sandbox_settings import SandboxSettings, absolute_place
from ralph.sandbox.trial import probe
from ralph.sandbox.trial.self_test import ProbeError, ProbeResult, SelfTest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ralph.sandbox.levels import BoxLevel, Net

# Enough to see whether a directory of secrets can be read.
_FILES_OF_A_DIRECTORY = 5
_VERDICT_WIDTH = len(probe.ALLOWED)
_SUBJECT = "sandbox"
_ONLY_A_COPY = "  (with namespaces a copy without credentials, otherwise not)"
_NO_NAME = "nothing denies these"


class TriedSandbox(Struct, frozen=True):
    rows: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def try_sandbox(environment: Mapping[str, str], cwd: Path | None, wanted: SandboxSettings) -> TriedSandbox:
    """Runs the probe, for some seconds, in the strongest sandbox of this machine, with the network that `wanted`
    names. It also tries to read one byte of each of the user's secrets, and shows none.
    """
    if sys.platform != "linux":
        return TriedSandbox(findings=(warn(_SUBJECT, "none: only Linux has the means", "use a container"),))
    roots = () if cwd is None else (cwd,)
    search = search_around(environment, roots, wanted.written(environment))
    means = find_means(search, has_overlays=may_have_overlays(wanted, environment, roots))
    net: Net = "off" if wanted.net is None and not wanted.allow_hosts else wanted.asked_net  # type: ignore[assignment]  # the setting allows only these names
    try:
        with SelfTest(means, net, secrets=tuple(_secrets(environment, wanted))) as test:
            results = test.run()
            level = test.level
    except (OSError, ProbeError) as error:
        return TriedSandbox(
            findings=(fail(_SUBJECT, f"the probe did not run to its end: {error}", "report this as a bug"),)
        )
    return TriedSandbox(
        (
            f"Sandbox: {level.name} with network {net}, the strongest that this machine can do",
            *_table(results),
            *_what_of_the_home(environment, cwd, wanted),
        ),
        (*_verdict(level, results), *_about_git(environment, cwd)),
    )


def _about_git(environment: Mapping[str, str], cwd: Path | None) -> Iterator[Finding]:
    for notice in () if cwd is None else about_git((os.path.realpath(cwd),), environment):
        yield warn(_SUBJECT, notice.text, notice.advice)


def _secrets(environment: Mapping[str, str], wanted: SandboxSettings) -> Iterator[str]:
    """Yields files that must not be read, as the table of places and the settings say: the first ones of each directory."""
    denied = _real(wanted.read_deny, environment)
    places = gather_places([], environment, denied=denied)
    for place in (*places.unread, *places.closed_homes):
        files = (
            one for one in files_in(place, 0) if stat.S_ISREG(_mode_of(one)) and places.why_not_read(one)
        )
        yield from islice(files, _FILES_OF_A_DIRECTORY)


def _real(given: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    return [os.path.realpath(absolute_place(place, environment.get("HOME", ""))) for place in given]


def _what_of_the_home(
    environment: Mapping[str, str], cwd: Path | None, wanted: SandboxSettings
) -> Iterator[str]:
    denied = _real(wanted.read_deny, environment)
    roots = [] if cwd is None else [os.path.realpath(cwd)]
    write, read, _ = opened_by_settings(wanted, environment, roots)
    given = (*read, *write)
    places = gather_places(roots, environment, denied=denied, given=given)
    if not places.closed_homes:
        yield "  of the home, all but secrets may be read: it is the working directory, is in it, or is needed as a whole"
        return
    in_home = [path for path in given if is_within_any(path, places.closed_homes)]
    yield f"  of {', '.join(places.closed_homes)}, besides the working directory, only this may be read"
    for path in dict.fromkeys((*filter(os.path.lexists, places.shown), *in_home)):
        yield f"    {path}"
    for path in places.guarded(FILTERED, {}):
        real = os.path.realpath(path)
        if stat.S_ISREG(_mode_of(real)) and places.why_not_read(real):
            yield f"    {path}{_ONLY_A_COPY}"


def _mode_of(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _table(results: Sequence[ProbeResult]) -> Iterator[str]:
    by_protection = sorted(results, key=lambda one: one.protection)
    for protection, rows in groupby(by_protection, key=lambda one: one.protection):
        yield f"  {protection or _NO_NAME}"
        for one in rows:
            remark = "  PROMISED TO BE DENIED" if one.is_broken else f"  ({one.detail})" if one.detail else ""
            yield f"    {one.verdict:<{_VERDICT_WIDTH}}  {one.row}{remark}"


def _verdict(level: BoxLevel, results: Sequence[ProbeResult]) -> Iterator[Finding]:
    denied = sum(one.is_promised and one.verdict == probe.DENIED for one in results)
    allowed = [one.row for one in results if not one.is_promised and one.verdict == probe.ALLOWED]
    untried = sum(one.verdict == probe.UNTRIED for one in results)
    broken = [one.row for one in results if one.is_broken]
    if broken:
        yield fail(
            _SUBJECT,
            f"{level.name} promises to deny what was allowed: {', '.join(broken)}",
            "report this as a bug, and use a container or a separate account until then",
        )
    else:
        yield ok(_SUBJECT, f"{level.name} keeps its promises: {denied} attempts denied, {untried} not tried")
    if allowed:
        yield warn(
            _SUBJECT,
            f"not protected, {len(allowed)} attempts allowed: {', '.join(allowed)}",
            "`ralph help sandbox` says what each means",
        )
    for why, names in level.reasons().items():
        yield ok(_SUBJECT, f"not in force: {', '.join(names)} ({why})")
