"""Hooks on a model that its copies do not have."""

from collections.abc import Callable

__all__ = ["TransientHook"]


class _NoHook:
    """Replacement of a hook in a copied or saved model."""

    def __call__(self, *_: object) -> None:
        return None


class TransientHook:
    """A hook that copies and pickles of the model do not inherit."""

    def __init__(self, function: Callable[..., None], *bound: object):
        self.function, self.bound = function, bound

    def __call__(self, *args: object) -> None:
        self.function(*self.bound, *args)

    def __deepcopy__(self, memo: dict) -> _NoHook:
        return _NoHook()

    def __reduce__(self) -> tuple[type[_NoHook], tuple[()]]:
        return _NoHook, ()
