"""Which lines of a plan are tasks, and what a plan is that cannot be read."""

from __future__ import annotations

import errno
import os

import pytest

from ralph.loop.check import open_tasks, read_open_tasks
from tests.rows import every_row


@every_row(
    ("text", "count"),
    [
        ("- [ ] a\n* [ ] b\n+ [ ] c\n1. [ ] d\n2) [ ] e\n- [x] f\n- [X] g\n", 5),
        ("- [x] a\n", 0),
        ("# Plan\n\nNothing to do.\n", None),
        ("", None),
        ("a [ ] b\n[ ] c\n-[ ] d\n- [] e\n- [ ]f\n- [y] g\n- [a](b)\n", None),
        ("- [ ]\n", 1),
        ("- a\n  - [ ] b\n    - [ ] c\n\n      - [ ] d\n\t- [ ] e\n", 4),
        ("- a\n        - [ ] too deep, and a task for all who read it\n", 1),
        ("> - [ ] quoted\n- - [ ] nested\n", 2),
        # Code blocks.
        ("```\n- [ ] a\n```\n- [x] b\n", 0),
        ("~~~~ md\n- [ ] a\n~~~\n```\n- [ ] b\n~~~~\n- [ ] c\n", 1),
        ("````\n- [ ] a\n```\n- [ ] b\n`````  \n- [ ] c\n", 1),
        ("```\nnever closed\n- [ ] a\n", None),
        ("``` not `code`\n- [ ] a\n", 1),
        ("- a\n  ```\n  - [ ] b\n- [ ] the item has ended, and its code too\n", 1),
        ("- ```\n  - [ ] b\n  ```\n- [ ] c\n", 1),
        ("> ```\n> - [ ] a\n- [ ] the quotation has ended\n", 1),
        ("```\n> ```\n- [ ] a\n```\n- [ ] b\n", 1),
        ("Such as:\n\n    - [ ] a\n\t- [ ] b\n\n- [ ] c\n", 1),
        ("-     [ ] code in an item\n- [ ] b\n", 1),
        # Comments.
        ("<!-- - [ ] a -->\n<!--\n- [ ] b\n-->\n- [ ] c\n", 1),
    ],
)
def test_a_task_is_an_item_with_a_box_outside_of_code_and_comments(text: str, count: int | None) -> None:
    assert open_tasks(text) == count
    assert open_tasks(text.replace("\n", "\r\n")) == count


def test_a_plan_that_is_no_text_has_no_task_and_what_is_no_file_or_too_long_or_leads_out_is_an_error(
    tmp_path,
) -> None:
    (tmp_path / "binary").write_bytes(b"- [ ] \xff\n")
    assert read_open_tasks(tmp_path / "binary", (tmp_path,)) is None
    (tmp_path / "plan").write_text("- [ ] a\n" * 3)
    assert read_open_tasks(tmp_path / "plan", (tmp_path,)) == 3
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"- [x] a\n" * 600_000)
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "link").symlink_to(tmp_path / "plan")
    for name, number in (
        ("gone", errno.ENOENT),
        ("pipe", errno.EINVAL),
        ("long", errno.EFBIG),
        ("repo/link", errno.EPERM),
    ):
        with pytest.raises(OSError, match=name) as raised:
            read_open_tasks(tmp_path / name, (tmp_path / "repo",))
        assert raised.value.errno == number, name
