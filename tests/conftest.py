"""Sets up every process that runs tests: signals, hypothesis, a time limit for each test, and in CI a failure for
each unexpected skip.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import fewer_reports
from tests.known_skips import is_known, is_told
from tests.patience import TEST_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from ralph.mock_api import MockApi, Playable

# pytest rewrites the asserts of 350 files, which takes each process eight seconds unless it may store the bytecode.
# 70 of these files belong to hypothesis, so hypothesis is imported only after this line.
sys.dont_write_bytecode = False

# Commands in namespaces have a /tmp of their own, so a test's home and checkout lie where those of users do: elsewhere.
if os.access("/var/tmp", os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/var/tmp")

# What the user has told git does not count here: a signature for each commit, hooks, or another name of the first branch.
os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

_CAP_DAC_OVERRIDE = 1
"""The number of the Linux capability to ignore the permissions of files (capabilities(7))."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.timeout is None:
        config.option.timeout = TEST_S
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(fewer_reports)
    from hypothesis import HealthCheck, settings

    # The speed at which examples are made depends on the machine and not on ralph. Other examples are drawn each time,
    # so many small runs find as much as one large one.
    settings.register_profile(
        "ralph", max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile("thorough", settings.get_profile("ralph"), max_examples=1000)
    settings.load_profile("ralph")
    # A shell that starts the tests in the background makes them ignore SIGINT and SIGQUIT, and `nohup` SIGHUP. ralph would
    # inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector away from tests and their modules, which live until the end anyway."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Most of what tests make is freed without the collector, which took an eighth of their CPU time.
        gc.set_threshold(50_000, 20, 50)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Ends what ralph does to a process that starts commands. Otherwise this process would adopt the orphans of all
    later tests, and nobody would reap them. An ordinary user could not look at this process in /proc.
    """
    try:
        return (yield)
    finally:
        launcher: Any = sys.modules.get("ralph.machine.launcher")
        if launcher is not None:  # a test may also have called it without `protect_this_process`
            launcher.prctl(launcher.PR_SET_CHILD_SUBREAPER, 0)
            launcher.prctl(launcher.PR_SET_DUMPABLE, 1)
        processes: Any = sys.modules.get("ralph.machine.starting")
        if processes is not None:
            processes._protected = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One process of several gets all of these: the import takes 1.7 seconds of CPU time.
    items.sort(key=lambda item: not _asks_official_sdk(item))
    if may_pass_over_permissions():
        for item in items:
            if item.get_closest_marker("ordinary_user"):
                item.add_marker(
                    pytest.mark.skip(reason="root passes over permissions: test_ordinary_user.py runs it")
                )


def _asks_official_sdk(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return (
        not {"anthropic", "official"}.isdisjoint(fixtures)
        or getattr(getattr(item, "module", None), "request_problems", None) is not None
    )


def may_pass_over_permissions() -> bool:
    """Whether this process can ignore the permissions of files, as root usually can."""
    status = Path("/proc/self/status")
    if not status.exists():
        return os.geteuid() == 0
    granted = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(granted.split()[1], 16) >> _CAP_DAC_OVERRIDE & 1)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Makes a run in CI fail for each skip that `tests/known_skips.py` does not name. Elsewhere, names the skips that
    leave much untested.
    """
    terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(session.config, "workerinput"):
        return
    skips = sorted(set(_skips(terminal.stats.get("skipped", []))))
    if not os.environ.get("CI"):
        for place, reason in skips:
            if is_told(reason):
                terminal.write_line(f"NOT TESTED HERE: {place}: {reason}", red=True)
        return
    for place, reason in skips:
        known = is_known(reason)
        terminal.write_line(
            f"{'skipped' if known else 'SKIPPED, AND NOBODY SAYS WHY'}: {place}: {reason}", red=not known
        )
        if not known:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skips(reports: list[Any]) -> Iterator[tuple[str, str]]:
    for report in reports:
        yield report.nodeid, str(report.longrepr[2]).removeprefix("Skipped: ")


_numbers = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new directory. pytest's own fixture looks at the directories of all tests before, and makes a link for each."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def tell_base_url() -> Callable[[str], None]:
    """Called with the address of each server that `serve` starts. Folders let it tell their `ralph`."""
    return lambda _url: None


@pytest.fixture
def scenario_options() -> dict[str, Any]:
    """The options of a scenario that a folder's tests share."""
    return {}


@pytest.fixture
def serve(
    tell_base_url: Callable[[str], None], scenario_options: dict[str, Any]
) -> Iterator[Callable[..., MockApi]]:
    """Starts a scripted server that plays these steps, or those that `script` computes. Further options are those of
    `Scenario` and `MockApi`.
    """
    from ralph.mock_api import MockApi, Scenario  # not every folder's tests need it

    with ExitStack() as servers:

        def start(*steps: Playable, **options: Any) -> MockApi:
            of_scenario = {key: options.pop(key) for key in Scenario.__struct_fields__ if key in options}
            scenario = Scenario(steps, **scenario_options | of_scenario)
            server = servers.enter_context(MockApi(scenario, **options))
            tell_base_url(server.base_url)
            return server

        yield start
