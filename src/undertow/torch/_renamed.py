"""Attributes that have a new name: access to the old name raises an error with the new name."""

from typing import Never

__all__ = ["Renamed"]


class Renamed:
    """Placeholder for an attribute of a class under its old name.

    >>> class Census:
    ...     relations = Renamed("symmetries")
    >>> Census().relations
    Traceback (most recent call last):
    AttributeError: `Census.relations` was renamed: use `Census.symmetries`.
    """

    def __init__(self, new: str):
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.old = owner.__name__, name

    def __get__(self, instance: object, owner: type | None = None) -> Never:
        raise AttributeError(f"`{self.owner}.{self.old}` was renamed: use `{self.owner}.{self.new}`.")
