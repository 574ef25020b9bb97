"""Contexts that leave the global state of PyTorch and the buffers of a model as they were."""

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["full_precision", "isolated"]


@contextmanager
def full_precision() -> Generator[None]:
    """Compute products with all digits of their dtype (no TF32) inside the context."""
    cuda, cudnn, host = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    # these may round float32 to 10 bits or fewer in products, too few for a proof on outputs
    settings = [cuda.matmul, cudnn.conv, cudnn.rnn, host.matmul, host.conv, host.rnn]
    original = [(setting, setting.fp32_precision) for setting in settings]
    try:
        for setting, _ in original:
            setting.fp32_precision = "ieee"
        yield
    finally:
        for setting, before in original:
            setting.fp32_precision = before


@contextmanager
def isolated(model: nn.Module, seed: int) -> Generator[None]:
    """Seed all generators and switch TF32 off; restore both, and the buffers of the model, at the end."""
    buffers = [(m, dict(m._buffers), {k: b.detach().clone() for k, b in _buffers(m)}) for m in model.modules()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    other_states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=devices), full_precision():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs that are not restored
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        try:
            yield
        finally:
            with torch.no_grad():
                for module, held, before in buffers:
                    module._buffers.clear()
                    module._buffers.update(held)
                    for name, buffer in _buffers(module):
                        buffer.copy_(before[name])
            random.setstate(other_states[0])
            np.random.set_state(other_states[1])  # noqa: NPY002


def _buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None]
