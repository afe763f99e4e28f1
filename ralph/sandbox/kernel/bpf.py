"""Assembles the classic BPF programs that seccomp runs (linux/filter.h, linux/seccomp.h). No I/O happens here."""

from __future__ import annotations

import struct

# offsetof(struct seccomp_data, ...)
NUMBER = 0
ARCHITECTURE = 4
_ARGUMENTS = 16

ALLOW = 0x7FFF_0000
KILL_PROCESS = 0x8000_0000
_ERRNO = 0x0005_0000

# BPF_LD | BPF_W | BPF_ABS, BPF_ALU | BPF_AND | BPF_K, BPF_RET | BPF_K; BPF_JMP | BPF_K with JEQ, JSET and JGE.
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_ANY_BIT, _IF_AT_LEAST = 0x15, 0x45, 0x35
_INSTRUCTION = struct.Struct("<HBBI")
# The distance of a conditional jump is stored in one byte.
_FARTHEST = 255


def refuse(number: int) -> int:
    """The return value of a filter that makes a system call fail with the errno `number`."""
    return _ERRNO | number


def argument(index: int) -> int:
    """The offset of the lower 32 bits of an argument in `struct seccomp_data`, on a little-endian machine."""
    return _ARGUMENTS + 8 * index


class Assembler:
    """Collects the instructions of a filter. A jump can only lead forward, to a label that is set later."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, int, str | None]] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Gives the next instruction a name. Raises ValueError if the name is already used."""
        if name in self._labels:
            raise ValueError(f"the label {name!r} is there twice")
        self._labels[name] = len(self._lines)

    def load(self, place: int) -> None:
        self._lines.append((_LOAD, place, None))

    def mask(self, bits: int) -> None:
        """Adds an instruction that keeps only `bits` of the loaded value, and sets all other bits to 0."""
        self._lines.append((_AND, bits, None))

    def go_if_equal(self, value: int, label: str) -> None:
        self._lines.append((_IF_EQUAL, value, label))

    def go_if_any_bit(self, bits: int, label: str) -> None:
        self._lines.append((_IF_ANY_BIT, bits, label))

    def go_if_at_least(self, value: int, label: str) -> None:
        self._lines.append((_IF_AT_LEAST, value, label))

    def answer(self, value: int) -> None:
        self._lines.append((_RETURN, value, None))

    def packed(self) -> bytes:
        """The instructions in the kernel's binary format. Raises ValueError if a jump's label is missing, comes before
        the jump, or is too far away.
        """
        return b"".join(
            _INSTRUCTION.pack(code, self._distance(at, label), 0, value)
            for at, (code, value, label) in enumerate(self._lines)
        )

    def _distance(self, at: int, label: str | None) -> int:
        if label is None:
            return 0
        distance = self._labels.get(label, -1) - at - 1
        if not 0 <= distance <= _FARTHEST:
            raise ValueError(f"no jump from line {at} to the label {label!r}")
        return distance
