"""A callback for `transformers.Trainer` and its subclasses, such as those of trl."""

import inspect

from torch import nn

from undertow.torch.integrations.first_pass import FirstPass, MonitorOptions
from undertow.torch.monitor.monitor import NoiseMonitor
from undertow.torch.monitor.ranks import runs_distributed

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler
except ImportError as error:
    raise ImportError(
        "`undertow.torch.integrations.transformers` needs transformers: install it with `pip install transformers "
        "accelerate`."
    ) from error

__all__ = ["NoiseCallback"]


class NoiseCallback(TrainerCallback):
    """Measure the gradient noise of a model while `transformers.Trainer` trains it.

    At the first forward pass the census is taken from the first batch, and a `NoiseMonitor` starts. The numbers of the
    newest measurement are added to what Trainer logs: `noise/scale` (the gradient noise scale in samples),
    `noise/share` (the share of the gradient that is noise) and others. TensorBoard, wandb and mlflow receive
    them like the loss. No error of a measurement stops the training; `monitor.skipped` and `problem` have the reasons.

    **Arguments:** `every` (steps between measurements), `census` (by default taken from the first batch),
    `symmetries=False` (measure the noise scale only), `window`, `batch_axis` and `writer` as in `NoiseMonitor`;
    `report` (a path: write the page `NoiseMonitor.report` when training ends), `details=True` (log every layer).

    >>> from undertow.torch.integrations.transformers import NoiseCallback
    >>> callback = NoiseCallback(every=50)  # Trainer(..., callbacks=[callback])
    >>> print(callback.monitor)
    None
    """

    def __init__(self, every: int = 50, **options: object):
        self._first_pass = FirstPass(MonitorOptions(every, **options))  # ty: ignore[invalid-argument-type]

    @property
    def monitor(self) -> NoiseMonitor | None:
        """The monitor, None before the first forward pass."""
        return self._first_pass.monitor

    @property
    def problem(self) -> str | None:
        """Why there is no monitor, or no census."""
        return self._first_pass.problem

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        **kwargs: object,
    ) -> None:
        """Wait for the first forward pass."""
        _move_to_front(self)
        self._first_pass = self._first_pass.restarted()
        self._first_pass.wait_for([model], model, distributed=runs_distributed())

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, logs: dict[str, float],
        **kwargs: object,
    ) -> None:  # fmt: skip
        """Add the numbers of a new measurement to the log."""
        numbers = self._first_pass.new_scalars() if "loss" in logs else {}
        logs |= numbers
        if state.log_history:  # a copy of `logs` that was made before
            state.log_history[-1] |= numbers

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Remove all hooks, and write the report."""
        self._first_pass.close()


def _move_to_front(callback: NoiseCallback) -> None:
    """Put a callback before those that write logs; Trainer calls the callbacks of a user last.

    A callback is not told which Trainer it belongs to: the handler that calls it is in a frame of the stack.
    """
    frame = inspect.currentframe()
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler) and callback in handler.callbacks:
            handler.callbacks.remove(callback)
            handler.callbacks.insert(0, callback)
            return
        frame = frame.f_back
