"""A night in which every text tries to become markup."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tests.pages.contents import SEVERAL

HOSTILE = (
    "</script></style></title></pre></svg><img src=x onerror=alert(1)> \" onload=alert(2) x=\" ' autofocus='"
    " javascript:alert(3) ]]> --> &lt;b&gt; {{ 7*7 }} {% raw %} \x00\x1b]0;t\x07\x9b\u202e\u2028\ud800 {}"
)


class Walk:
    """Replaces each text of a Struct, and of the Structs in it, by a text that contains the number of its field."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: dict[str, str] = {}

    def over(self, value: Any, name: str = "") -> Any:
        match value:
            case Struct():
                kind = type(value).__name__
                return replace(
                    value,
                    **{
                        field: self.over(getattr(value, field), f"{kind}.{field}")
                        for field in value.__struct_fields__
                    },
                )
            case tuple():
                return tuple(self.over(one, name) for one in value)
            case str():
                number = self.names.setdefault(name, f"field{len(self.names)}end")
                return self.text.replace("{}", number) if value else value
        return value


# A field of each kind has a text in it: a night with all that there can be.
FULL = replace(
    SEVERAL,
    sections=tuple(
        replace(
            section,
            parts=tuple(replace(part, problem="damaged", reason="why") for part in section.parts),
            commits=tuple(
                replace(
                    commit,
                    shown_by="git show",
                    files=tuple(replace(file, cut_lines=1) for file in commit.files),
                )
                for commit in section.commits
            ),
            resume_command="ralph -c",
        )
        for section in SEVERAL.sections
    ),
)
