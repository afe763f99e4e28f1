"""The mutants of `benchmarks/mutants` must fit the code: the old text of each occurs exactly once, the test files that
each names exist, and each row of `specs/seeds.md` has one.
"""

from __future__ import annotations

from benchmarks.mutants.copies import REPOSITORY, modules_of, place_of
from benchmarks.mutants.mutants import MUTANTS
from benchmarks.mutants.seeds import SEEDS, named_tests


def test_each_mutant_has_its_place_in_the_code() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    modules = modules_of(REPOSITORY / "ralph")
    for mutant in (*MUTANTS, *SEEDS):
        place_of(mutant, modules)


def test_each_row_of_the_seeds_that_names_a_test_has_a_mistake_that_it_must_notice() -> None:
    assert {row for mistake in SEEDS for row in mistake.rows} == set(named_tests())


def test_each_mutant_names_test_files_that_exist() -> None:
    tests = REPOSITORY / "tests"
    patterns = {pattern for mutant in MUTANTS for pattern in mutant.tests}
    assert [pattern for pattern in sorted(patterns) if not any(tests.rglob(pattern))] == []
