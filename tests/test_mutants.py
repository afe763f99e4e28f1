"""The mutants of `benchmarks/mutants` must fit the code: the old text of each occurs exactly once, and the test files
that each names exist.
"""

from __future__ import annotations

from benchmarks.mutants.__main__ import modules_of, place_of
from benchmarks.mutants.mutants import MUTANTS
from tests.processes.fork_server import REPOSITORY


def test_each_mutant_has_its_place_in_the_code() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    modules = modules_of(REPOSITORY / "ralph")
    for mutant in MUTANTS:
        place_of(mutant, modules)


def test_each_mutant_names_test_files_that_exist() -> None:
    tests = REPOSITORY / "tests"
    patterns = {pattern for mutant in MUTANTS for pattern in mutant.tests}
    assert [pattern for pattern in sorted(patterns) if not any(tests.rglob(pattern))] == []
