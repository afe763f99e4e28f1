"""Sequences and mappings that only grow. Each is an immutable value that shares memory with the longer values made from it,
so that a state that changes with every record of a long session is not copied each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_T_co = TypeVar("_T_co", covariant=True)
_V_co = TypeVar("_V_co", covariant=True)
# A longer sequence copies fewer items than this, and the list of the full pieces once for each piece.
_PIECE = 256


class GrowingSequence(Sequence[_T_co]):
    """An immutable sequence. `plus` returns a longer one."""

    __slots__ = ("_full", "_last")

    def __init__(self, items: Iterable[_T_co] = ()) -> None:
        all_items = tuple(items)
        starts = range(0, len(all_items) // _PIECE * _PIECE, _PIECE)
        self._full = tuple(all_items[start : start + _PIECE] for start in starts)
        """Pieces of `_PIECE` items each."""
        self._last = all_items[len(starts) * _PIECE :]
        """The items after them, always fewer than `_PIECE`."""

    def _of(self, full: tuple[tuple[_T_co, ...], ...], last: tuple[_T_co, ...]) -> GrowingSequence[_T_co]:
        made: GrowingSequence[_T_co] = GrowingSequence.__new__(GrowingSequence)
        made._full, made._last = full, last
        return made

    def plus(self, item: _T_co) -> GrowingSequence[_T_co]:  # type: ignore[misc]  # it returns a value and changes none
        last = (*self._last, item)
        return self._of((*self._full, last), ()) if len(last) == _PIECE else self._of(self._full, last)

    def first(self, count: int) -> GrowingSequence[_T_co]:
        """The first `count` items, at most all."""
        if count >= len(self):
            return self
        pieces, rest = divmod(count, _PIECE)
        cut = self._full[pieces] if pieces < len(self._full) else self._last
        return self._of(self._full[:pieces], cut[:rest])

    def begins_with(self, other: GrowingSequence[object]) -> bool:
        """Whether the first items are those of `other`. Shared pieces are not looked into."""
        return len(other) <= len(self) and self.first(len(other)) == other

    def __len__(self) -> int:
        return len(self._full) * _PIECE + len(self._last)

    def __iter__(self) -> Iterator[_T_co]:
        return chain(chain.from_iterable(self._full), self._last)

    @overload
    def __getitem__(self, index: int) -> _T_co: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[_T_co, ...]: ...
    def __getitem__(self, index: int | slice) -> _T_co | tuple[_T_co, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        piece, place = divmod(range(len(self))[index], _PIECE)
        return (self._full[piece] if piece < len(self._full) else self._last)[place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GrowingSequence):
            return isinstance(other, tuple) and tuple(self) == other
        return (self._full, self._last) == (other._full, other._last)

    def __hash__(self) -> int:
        return hash(tuple(self))


class GrowingMapping(Mapping[str, _V_co]):
    """An immutable mapping in the order of the keys' first insertion. `plus` returns a larger one."""

    __slots__ = ("_layers",)

    def __init__(self, items: Mapping[str, _V_co] | Iterable[tuple[str, _V_co]] = ()) -> None:
        found = dict(items)
        self._layers: tuple[Mapping[str, _V_co], ...] = (found,) if found else ()
        """The newest last. Each is more than twice as large as the next one, so there are few, and an item is copied from
        one to another few times."""

    def plus(self, items: Mapping[str, _V_co]) -> GrowingMapping[_V_co]:
        """The mapping with `items`, which replace those of the same key."""
        if all(key in self and self[key] == value for key, value in items.items()):
            return self
        larger: GrowingMapping[_V_co] = GrowingMapping(items)
        kept, newest = [*self._layers], larger._layers[0]
        while kept and len(kept[-1]) <= 2 * len(newest):
            newest = {**kept.pop(), **newest}
        larger._layers = (*kept, newest)
        return larger

    def __getitem__(self, key: str) -> _V_co:
        for layer in reversed(self._layers):
            if key in layer:
                return layer[key]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(chain.from_iterable(self._layers)))

    def __len__(self) -> int:
        return len(set().union(*self._layers))

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))
