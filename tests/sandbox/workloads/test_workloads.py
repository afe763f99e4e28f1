"""Tests that people's programs work in the sandbox, or fail as the table says. Each run of CI plays the short ones; `make
workloads` installs and plays all.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.patience import TEST_S
from tests.program.namespaces import MEANS
from tests.sandbox.workloads.__main__ import played, why_not_as_told
from tests.sandbox.workloads.play import LEVELS
from tests.sandbox.workloads.programs import APT, DEVELOPERS, NPM, PYPI, missing_of
from tests.sandbox.workloads.table import WORKLOADS
from tests.services.outside_programs import DISTRIBUTION, program_or_skip

# bubblewrap's --ro-overlay
_WITH_OVERLAYS = (0, 11)
SHORT = [one for one in WORKLOADS if one.is_for_ci]


@pytest.mark.timeout(2 * TEST_S)
@pytest.mark.parametrize("level", LEVELS)
def test_what_people_run_works_or_fails_as_the_table_says(level) -> None:
    if level == "namespaces" and MEANS.bwrap is None:
        pytest.skip("no namespaces can be made here")
    if level != "off" and MEANS.landlock.abi == 0:
        pytest.skip("this kernel has no Landlock")
    for name in missing_of(name for one in SHORT for name in one.needs.split()):
        program_or_skip(name)
    came = list(played(level, SHORT))
    assert [one["name"] for one in came] == [one.name for one in SHORT]
    version = tuple(map(int, re.findall(r"\d+", MEANS.about_bwrap.partition("(")[0])))
    if level == "namespaces" and version >= _WITH_OVERLAYS:
        assert all(one["has_sockets"] for one in came)
    wrong = [why for row, one in zip(SHORT, came, strict=True) if (why := why_not_as_told(row, level, one))]
    assert not wrong, "\n\n".join(wrong)


def test_the_table_names_what_is_installed_and_the_short_rows_need_what_ci_installs() -> None:
    assert max(Counter(one.name for one in WORKLOADS).values()) == 1
    needed = {name for one in WORKLOADS for name in one.needs.split()}
    assert needed <= {*APT, *NPM, *PYPI, *DEVELOPERS}
    assert {name for one in SHORT for name in one.needs.split()} <= {*DISTRIBUTION, *DEVELOPERS}
    for row in WORKLOADS:
        assert row.fails("off", has_sockets=True) is None
