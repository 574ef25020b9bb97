"""Eager execution while hooks are attached: compiled code does not run hooks."""

import sys
from contextlib import AbstractContextManager

import torch

__all__ = ["EAGER_MODE"]


class _EagerMode:
    """A count of users; PyTorch runs compiled models eagerly while it is above 0."""

    def __init__(self) -> None:
        self.users = 0
        self._stance: AbstractContextManager[None] | None = None

    def acquire(self) -> None:
        """Add a user."""
        self.users += 1
        if self._stance is None and "torch._dynamo" in sys.modules:
            self._stance = torch.compiler.set_stance("force_eager")

    def release(self) -> None:
        """Remove a user."""
        self.users -= 1
        if self.users == 0 and self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None


EAGER_MODE = _EagerMode()
"""One count for the whole process, because the setting of PyTorch is global."""
