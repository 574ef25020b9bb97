"""`undertow equilibrate`: move the network of a user's file or folder to its noise equilibrium and save its weights."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_model
from torch import Tensor, nn

from undertow.analysis.census import census_of_weights, user_network, user_value
from undertow.analysis.torch import take_batches
from undertow.torch._copies import Batch, Loss, unwrap
from undertow.torch.census.census import Census, census
from undertow.torch.equilibrium.equilibrate import equilibrate
from undertow.torch.equilibrium.result import Equilibrium

__all__ = ["Equilibrium", "Settings", "equilibrate_file", "equilibrate_folder", "save_pretrained", "save_weights"]

Report = Callable[[str], object]


@dataclass(frozen=True)
class Settings:
    """How the network is trained, and whether it is only measured."""

    step_size: float
    weight_decay: float
    optimiser: str
    dry_run: bool
    batch_size: int
    seed: int


def equilibrate_file(target: str, settings: Settings, report: Report) -> tuple[nn.Module, Equilibrium]:
    """Move the network of FILE.py:OBJECT, which is (model, batches, loss) or a function that returns them."""
    model, batches, loss = user_network(target, "batches")
    model = unwrap(model)
    taken = take_batches(batches, settings.batch_size, settings.seed)
    report("searching symmetries")
    return model, _moved(model, taken, loss, census(model, taken[0], loss, seed=settings.seed), settings, report)


def equilibrate_folder(folder: Path, data: str, settings: Settings, report: Report) -> tuple[nn.Module, Equilibrium]:
    """Move the model of `transformers` in a folder, in float32, with the batches of FILE.py:OBJECT.

    OBJECT is the batches, or (batches, loss), or a function that returns one of them. Without a loss it is
    `model(**batch).loss`.
    """
    value = user_value(data, "batches")
    with_loss = isinstance(value, tuple) and len(value) == 2 and callable(value[1])
    batches, loss = value if with_loss else (value, _own_loss)
    taken = take_batches(batches, settings.batch_size, settings.seed)
    model, symmetries = census_of_weights(folder, seed=settings.seed, report=report)
    return model, _moved(model, taken, loss, symmetries, settings, report)


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch).loss


def _moved(
    model: nn.Module, batches: list[Batch], loss: Loss, symmetries: Census, settings: Settings, report: Report
) -> Equilibrium:
    report(f"measuring the noise on {len(batches)} batches and moving {len(symmetries)} symmetries")
    return equilibrate(
        model, batches, loss, symmetries, step_size=settings.step_size, weight_decay=settings.weight_decay,
        optimiser=settings.optimiser, dry_run=settings.dry_run, seed=settings.seed,
    )  # fmt: skip


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights and buffers of a model in safetensors, each tied weight once; `load_model` reads them."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as beside:
        written = Path(beside) / path.name
        save_model(model, str(written), metadata={"format": "pt"})
        _put_in_place(written, path)


def save_pretrained(model: nn.Module, path: Path) -> None:
    """Write the weights of a model of `transformers` in one file, under the names that `from_pretrained` reads."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as beside:
        model.save_pretrained(beside, max_shard_size="1000TB")
        _put_in_place(Path(beside) / "model.safetensors", path)


def _put_in_place(written: Path, path: Path) -> None:
    with written.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(written, path)
