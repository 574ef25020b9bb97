"""`undertow census`: the symmetries of a network of a user's file, or of a folder with a model of `transformers`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from undertow.analysis.target import called, model_data_loss, named_object
from undertow.torch._copies import Batch, Loss
from undertow.torch.census.batches import mean_square, random_batch
from undertow.torch.census.census import Census, census
from undertow.torch.census.scaling.check import check_scaling_map
from undertow.torch.census.scaling.entries import ScalingMap, load_scaling_map
from undertow.torch.census.transfer import carried
from undertow.torch.census.twins import build_model, narrow_twin

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = [
    "Census",
    "ScalingMap",
    "census_of_file",
    "census_of_folder",
    "census_of_weights",
    "check_scaling_map",
    "load_scaling_map",
    "user_network",
    "user_value",
]

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")

Report = Callable[[str], object]


def user_value(target: str, example: str) -> object:
    """Return what FILE.py:OBJECT names; a function is called."""
    _, value = named_object(target, example)
    return called(target, value) if callable(value) and not isinstance(value, nn.Module) else value


def user_network(target: str, data: str) -> tuple[nn.Module, Batch, Loss]:
    """Return the model, the data (named `data` in the error) and the loss that FILE.py:OBJECT names, or returns."""
    return model_data_loss(target, user_value(target, "network"), data)


def census_of_file(target: str, *, seed: int, report: Report) -> Census:
    """Return the census of what FILE.py:OBJECT names: (model, batch, loss), or a function that returns them."""
    model, batch, loss = user_network(target, "batch")
    report(f"searching the symmetries of {_size(model)}")
    return census(model, batch, loss, seed=seed)


def census_of_folder(folder: Path, *, seed: int, report: Report) -> tuple[Census, str]:
    """Return the census of a model of `transformers` in a folder, and a sentence on where it was proved.

    The census is taken of a narrow twin, from the configuration alone. With weights in safetensors it is transferred to
    the model and proved there. Files that can execute code when they are loaded are not read.
    """
    config, has_weights = _configuration(folder), _has_weights(folder)
    narrow = _narrow_census(config, seed, report)
    if not has_weights:
        with torch.device("meta"):
            model = build_model(config)
        return carried(narrow, model), "Proved on a narrow twin; the folder has no weights."
    report("loading the weights")
    return _transferred(narrow, _loaded(folder, config), seed, report), f"Proved on the weights of {folder}."


def census_of_weights(folder: Path, *, seed: int, report: Report) -> tuple[nn.Module, Census]:
    """Return the model of `transformers` in a folder with its weights, in float32, and its census."""
    config = _configuration(folder)
    if not _has_weights(folder):
        raise ValueError(f"{folder}: there are no weights, only the configuration; give a folder with {WEIGHTS[0]}.")
    narrow = _narrow_census(config, seed, report)
    report("loading the weights")
    model = _loaded(folder, config).float()
    return model, _transferred(narrow, model, seed, report)


def _has_weights(folder: Path) -> bool:
    """Return whether a folder has weights in safetensors; raise if they are in a format that can execute code."""
    has_weights = any((folder / name).is_file() for name in WEIGHTS)
    pickles = [name for name in PICKLES if (folder / name).is_file()]
    if pickles and not has_weights:
        raise ValueError(
            f"{folder} has its weights in {pickles[0]} only, which can execute code when it is loaded, and is not "
            "read. Save them with `model.save_pretrained(folder)`, which writes safetensors, or give a folder with "
            "config.json alone: the symmetries follow from the configuration."
        )
    return has_weights


def _narrow_census(config: "PretrainedConfig", seed: int, report: Report) -> Census:
    """Return the census of a narrow twin."""
    report(f"building a narrow twin of {config.model_type}")
    twin = narrow_twin(config, seed=seed)
    report(f"searching the symmetries of the twin, {_size(twin)}")
    return census(twin, random_batch(twin, seed=seed), mean_square, seed=seed)


def _transferred(narrow: Census, model: nn.Module, seed: int, report: Report) -> Census:
    """Return the census of a twin as that of its model, proved on its weights."""
    report(f"proving the symmetries on {_size(model)}")
    return narrow.transfer(model, random_batch(model, seed=seed), mean_square, seed=seed)


def _size(model: nn.Module) -> str:
    return f"{type(model).__name__} with {sum(p.numel() for p in model.parameters()):,} parameters"


def _configuration(folder: Path) -> "PretrainedConfig":
    """Return the configuration of a folder; code of the folder is not executed."""
    try:
        import transformers
    except ImportError:
        raise ValueError(
            f"{folder}: a folder with a model needs transformers; install it with `pip install transformers`, or give "
            "FILE.py:OBJECT."
        ) from None
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder}: there is no config.json; give the folder of a model of transformers.")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        kind = fields["model_type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path} is not a configuration of transformers: it has no `model_type`.") from None
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        own = " (the code in its folder is not executed)" if "auto_map" in fields else ""
        version = transformers.__version__
        raise ValueError(f"{path}: transformers {version} has no architecture {kind!r}{own}.")
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a configuration checks its fields with errors of every kind
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{path} is not a configuration of a {kind}: {reason}") from error


def _loaded(folder: Path, config: "PretrainedConfig") -> nn.Module:
    """Return the model of a folder with its weights from safetensors, on the GPU if there is one."""
    with torch.device("meta"):
        kind = type(build_model(config))
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True, "dtype": "auto"}
    try:
        model, loading = kind.from_pretrained(folder, config=config, output_loading_info=True, **options)
    except Exception as error:  # safetensors has its own class of errors
        raise ValueError(f"{folder}: the weights cannot be loaded: {error}") from error
    if loading["missing_keys"]:
        raise ValueError(f"{folder}: the weights of {min(loading['missing_keys'])} are missing.")
    return model.to("cuda") if torch.cuda.is_available() else model
