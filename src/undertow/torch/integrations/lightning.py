"""A callback for the Trainer of Lightning."""

import importlib
from types import ModuleType

import torch

from undertow.torch.integrations.first_pass import FirstPass, MonitorOptions
from undertow.torch.monitor.monitor import NoiseMonitor
from undertow.torch.monitor.ranks import runs_distributed


def _lightning() -> ModuleType:
    """Return `lightning.pytorch`, or `pytorch_lightning` where only this is installed."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("lightning", "pytorch_lightning"):
                raise
    raise ImportError(
        "`undertow.torch.integrations.lightning` needs Lightning: install it with `pip install lightning`."
    )


pl = _lightning()

__all__ = ["NoiseCallback"]


class NoiseCallback(pl.Callback):
    """Measure the gradient noise of a model while Lightning's `Trainer` trains it.

    At the first forward pass the census is taken from the first batch, and a `NoiseMonitor` starts. After each
    measurement its numbers are logged by `LightningModule.log_dict`: `noise/scale` (the gradient noise scale in
    samples), `noise/share` (the share of the gradient that is noise) and others. No error of a measurement stops the
    training; `monitor.skipped` and `problem` have the reasons.

    The arguments are those of `undertow.torch.integrations.transformers.NoiseCallback`.

    >>> import pytest; _ = pytest.importorskip("lightning")
    >>> from undertow.torch.integrations.lightning import NoiseCallback
    >>> callback = NoiseCallback(every=50)  # Trainer(..., callbacks=[callback])
    >>> print(callback.monitor)
    None
    """

    def __init__(self, every: int = 50, **options: object):
        super().__init__()
        self._first_pass = FirstPass(MonitorOptions(every, **options))  # ty: ignore[invalid-argument-type]

    @property
    def monitor(self) -> NoiseMonitor | None:
        """The monitor, None before the first forward pass."""
        return self._first_pass.monitor

    @property
    def problem(self) -> str | None:
        """Why there is no monitor, or no census."""
        return self._first_pass.problem

    def on_train_start(self, trainer: "pl.Trainer", pl_module: "pl.LightningModule") -> None:
        """Wait for the first forward pass of a module with parameters."""
        self._first_pass = self._first_pass.restarted()
        trains = lambda module: any(p.requires_grad for p in module.parameters())
        parts = [module for module in pl_module.modules() if trains(module)]
        self._first_pass.wait_for(parts, pl_module, distributed=runs_distributed())

    def on_train_batch_start(
        self, trainer: "pl.Trainer", pl_module: "pl.LightningModule", batch: object, batch_idx: int
    ) -> None:
        """Start a pass: a training step may call parts of the model only, or none of them by name."""
        if self.monitor is not None and self.monitor.model is pl_module:
            with torch.enable_grad():
                self.monitor.start_pass((batch,), {})

    def on_train_batch_end(
        self, trainer: "pl.Trainer", pl_module: "pl.LightningModule", outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Log a new measurement."""
        if numbers := self._first_pass.new_scalars():
            pl_module.log_dict(numbers)

    def on_train_end(self, trainer: "pl.Trainer", pl_module: "pl.LightningModule") -> None:
        """Remove all hooks, and write the report."""
        self._first_pass.close()

    def on_exception(self, trainer: "pl.Trainer", pl_module: "pl.LightningModule", exception: BaseException) -> None:
        """Remove all hooks."""
        self._first_pass.close()
