"""A list of bounded length that covers a whole run."""

from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Thinned"]

Item = TypeVar("Item")


class Thinned(Generic[Item]):
    """At most `most` items, evenly spread over all that were appended, and the newest one.

    Where it is full, every second item is removed, and from then on every second new one is kept.

    >>> from undertow.torch.monitor.thinned import Thinned
    >>> numbers = Thinned(4)
    >>> for number in range(11):
    ...     numbers.append(number)
    >>> print(list(numbers))
    [0, 4, 8, 10]
    """

    def __init__(self, most: int):
        self.most = most
        self.stride = 1
        """Every so many items one is kept."""
        self._appended = 0
        self._items: list[Item] = []
        self._newest: list[Item] = []

    def append(self, item: Item) -> None:
        """Append an item."""
        self._newest = [item]
        if self._appended % self.stride == 0:
            self._items.append(item)
            self._newest = []
            if len(self._items) == self.most:
                self._newest = self._items[-1:] if self.most % 2 == 0 else []
                self._items = self._items[::2]
                self.stride *= 2
        self._appended += 1

    def __iter__(self) -> Iterator[Item]:
        return iter([*self._items, *self._newest])

    def __len__(self) -> int:
        return len(self._items) + len(self._newest)
