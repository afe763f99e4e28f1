"""Tries the corpus: shapes of settings, hooks, commands, prompts, command lines and calls. Each works, or is refused with
the way out.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.corpus.shapes import Call, Happened, Shape, Verdict, judged, kinds, load, try_out
from tests.program.namespaces import MEANS

AT_LEAST = 150
"""The corpus has this many shapes at least."""


def test_what_people_bring_works_or_is_refused_with_the_way_out(tmp_path, capsys) -> None:
    corpus = {kind: load(kind) for kind in kinds()}
    shapes = [(kind, shape) for kind, of_kind in corpus.items() for shape in of_kind]
    assert len(shapes) >= AT_LEAST
    assert len({shape.name for _, shape in shapes}) == len(shapes)
    here = [one for one in shapes if MEANS.has_own_network or not one[1].needs_sandbox]

    def verdicts(numbered: tuple[int, tuple[str, Shape]]) -> list[tuple[str, str, Verdict, str]]:
        number, (kind, shape) = numbered
        happened = try_out(shape, tmp_path / str(number))
        return [(kind, shape.name, verdict, seen) for verdict, seen in judged(shape, happened)]

    with ThreadPoolExecutor(2) as pool:  # ralph's own processes do the work
        found = [one for of_shape in pool.map(verdicts, enumerate(here)) for one in of_shape]
    with capsys.disabled():
        print("\n" + table(corpus, found, len(shapes) - len(here)))  # noqa: T201 - the counts of the corpus
    wrong = [one for one in found if one[2] in {Verdict.NO_WAY_OUT, Verdict.DIFFERENT}]
    assert not wrong, "\n".join(f"{kind}: {name}: {verdict}: {seen}" for kind, name, verdict, seen in wrong)


def table(corpus: dict[str, list[Shape]], found: list[tuple[str, str, Verdict, str]], left_out: int) -> str:
    """The counts: a run is one, and each of its calls."""
    counts = Counter((kind, verdict) for kind, _, verdict, _ in found)
    lines = [f"{'corpus':16}{'shapes':>8}" + "".join(f"{verdict:>26}" for verdict in Verdict)]
    lines += [
        f"{kind:16}{len(of_kind):8}" + "".join(f"{counts[kind, verdict]:26}" for verdict in Verdict)
        for kind, of_kind in corpus.items()
    ]
    total = Counter(verdict for _, _, verdict, _ in found)
    lines.append(
        f"{'all':16}{sum(map(len, corpus.values())):8}"
        + "".join(f"{total[verdict]:26}" for verdict in Verdict)
    )
    if left_out:
        lines.append(f"not tried here, because they need a sandbox: {left_out}")
    return "\n".join(lines)


WORKING = Shape("works", ("go",), says=("a notice",), calls=(Call(bash="ls", gives="a.py"),))
REFUSING = Shape("is refused", ("go",), code=78, refused="--add-dir", calls=())


@pytest.mark.parametrize(
    ("shape", "happened", "expected"),
    [
        (WORKING, Happened(0, "", "a notice", 2, "", (("a.py", False),), {}), ["works", "works"]),
        (WORKING, Happened(0, "", "", 2, "", (("", False),), {}), ["silently different"] * 2),
        (WORKING, Happened(78, "", "why", 0, "", (), {}), ["refused without"] * 2),
        (WORKING, Happened(0, "", "a notice", 2, "", (("no", True),), {}), ["works", "refused without"]),
        (REFUSING, Happened(78, "", "use --add-dir", 0, "", (), {}), ["refused with the way out"]),
        (REFUSING, Happened(78, "", "no", 0, "", (), {}), ["refused without"]),
        (REFUSING, Happened(2, "", "use --add-dir", 0, "", (), {}), ["refused without"]),
        (REFUSING, Happened(78, "", "use --add-dir", 1, "", (), {}), ["silently different"]),
        (REFUSING, Happened(0, "", "use --add-dir", 0, "", (), {}), ["silently different"]),
    ],
)
def test_the_judge_knows_all_four_verdicts(shape, happened, expected) -> None:
    assert [verdict for verdict, _ in judged(shape, happened)] == expected


@pytest.mark.parametrize(
    ("call", "result", "is_error", "expected"),
    [
        (Call(bash="x", denied="no rule allows"), "no rule allows it", True, Verdict.REFUSED),
        (Call(bash="x", denied="no rule allows"), "broken", True, Verdict.NO_WAY_OUT),
        (Call(bash="x", denied="no rule allows"), "no rule allows it", False, Verdict.DIFFERENT),
        (Call(bash="x", fails="Exit code 1"), "Exit code 1", True, Verdict.WORKS),
        (Call(bash="x", fails="Exit code 1"), "not run", True, Verdict.DIFFERENT),
    ],
)
def test_the_judge_tells_a_denied_call_from_a_failed_one(call, result, is_error, expected) -> None:
    assert call.verdict(result, is_error=is_error) is expected
