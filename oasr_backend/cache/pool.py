"""A fixed number of equal places, each held by one owner at a time.

Key/value blocks and convolution contexts are both such places: a forward gathers them by number. It knows nothing of
streams, nor of what is kept in a place: the runtime keeps that where it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

Place = int
"""A place's number."""


class Pool:
    """Numbers from 0 up, given away and taken back."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self._free = list(range(num_places - 1, -1, -1))
        self._is_free = [True] * num_places

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_places - len(self._free)

    def take(self, num_wanted: int = 1) -> list[Place] | None:
        """Give away so many places, or none of them and None where there are fewer."""
        if num_wanted > len(self._free):
            return None
        places = [self._free.pop() for _ in range(num_wanted)]
        for place in places:
            self._is_free[place] = False
        return places

    def free(self, places: Sequence[Place]) -> None:
        """Take places back."""
        for place in places:
            assert not self._is_free[place], f"place {place} is free already"
            self._is_free[place] = True
            self._free.append(place)
