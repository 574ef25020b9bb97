"""Load the object that `undertow analyze FILE.py:OBJECT` analyses."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from jaxtyping import PyTree

from undertow._validate import kind_of
from undertow.execution.error_text import error_message
from undertow.execution.registry import UserFileError, exit_message, load_file
from undertow.noise.base import AbstractNoise
from undertow.problem import AbstractProblem

if TYPE_CHECKING:
    from torch import nn

    from undertow.analysis.torch import Batches
    from undertow.torch._copies import Batch, Loss

__all__ = ["JaxTarget", "TorchTarget", "called", "load", "model_data_loss", "named_object"]

T = TypeVar("T")


@dataclass(frozen=True)
class JaxTarget:
    """A problem or a noise, with its params."""

    noise: AbstractNoise | AbstractProblem
    params: PyTree


@dataclass(frozen=True)
class TorchTarget:
    """A PyTorch model with its data, a `Dataset` or batches, and its loss(model, batch)."""

    model: "nn.Module"
    data: "Batches"
    loss: "Loss"


def load(target: str, params_name: str) -> JaxTarget | TorchTarget:
    """Return the object that FILE.py:OBJECT names.

    OBJECT is a problem or a noise, with params in the variable `params_name` of the file; or a pair of both; or a
    PyTorch model with its data and loss, (model, batches, loss); or a function without arguments that returns either.
    """
    module, value = named_object(target, "problem")
    if _is_torch_model(value):
        raise UserFileError(
            f"{target} is a torch model; let the object be (model, batches, loss) with loss(model, batch) and batches "
            "a Dataset or batches."
        )
    if callable(value) and not isinstance(value, AbstractNoise | AbstractProblem | type):
        value = called(target, value)
    if isinstance(value, tuple) and len(value) == 3 and _is_torch_model(value[0]):
        return TorchTarget(*model_data_loss(target, value, "batches"))
    if isinstance(value, tuple) and len(value) == 2:
        return JaxTarget(*value)
    if not isinstance(value, AbstractNoise | AbstractProblem):
        raise UserFileError(
            f"{target} is {kind_of(value)}; give a problem, a noise, or a pair (problem or noise, params); or "
            "(model, batches, loss) of torch."
        )
    if not hasattr(module, params_name):
        path, _, name = target.partition(":")
        raise UserFileError(
            f"{path} has no variable {params_name!r} with the params; name it with --params, or let {name} be a pair "
            "(problem, params)."
        )
    return JaxTarget(value, getattr(module, params_name))


def model_data_loss(target: str, value: object, data: str) -> "tuple[nn.Module, Batches | Batch, Loss]":
    """Return the PyTorch model, the data (named `data` in the error) and the loss of a triple.

    The data and the loss may be given in either order: only the loss can be called.
    """
    if isinstance(value, tuple) and len(value) == 3 and _is_torch_model(value[0]):
        model, first, second = value
        if callable(second):
            return model, first, second
        if callable(first):
            return model, second, first
    shown = f"({', '.join(type(v).__name__ for v in value)})" if isinstance(value, tuple) else type(value).__name__
    raise UserFileError(
        f"{target} is {shown}; let the object be (model, {data}, loss) with a function loss(model, batch), or a "
        "function without arguments that returns them."
    )


def named_object(target: str, example: str) -> tuple[ModuleType, object]:
    """Return the module of a user's file and the object that FILE.py:OBJECT names."""
    path, _, name = target.partition(":")
    file = Path(path)
    if not name:
        raise UserFileError(f"{target}: name an object of the file as well, such as {path or 'FILE.py'}:{example}.")
    if not file.is_file():
        raise UserFileError(f"{path or target}: there is no such file.")
    module = load_file(file)
    if not hasattr(module, name):
        public = ", ".join(sorted(key for key in vars(module) if not key.startswith("_"))[:12])
        raise UserFileError(f"{path} has no object {name!r}; it has {public}.")
    return module, getattr(module, name)


def called(target: str, function: Callable[[], T]) -> T:
    """Return what a function of the user's file returns; report an error in it like one in the file."""
    try:
        needed = [
            p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind < 2
        ]
    except (TypeError, ValueError):  # some functions written in C have no signature
        needed = []
    if needed:
        raise UserFileError(f"{target} takes ({', '.join(needed)}); give a function without arguments.")
    try:
        return function()
    except SystemExit as stop:
        raise UserFileError(f"{target} cannot be run: {exit_message(stop)}") from stop
    except Exception as error:
        raise UserFileError(f"{target} cannot be run: {error_message(error)}") from error


def _is_torch_model(value: object) -> bool:
    """Return whether a value is a PyTorch model, without importing torch: if there is a model, torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "nn") and isinstance(value, torch.nn.Module)
