"""Networks with batches and losses to move to equilibrium."""

import copy

import torch
from torch import nn

from tests.torch.zoo import adapter, language, llama_like, tokens
from undertow.torch._copies import trainable
from undertow.torch.census.axes import move
from undertow.torch.census.proof import random_transform


def regression(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def relu_task(seed=0, count=24, size=16):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))
    inputs = [torch.randn(size, 6) for _ in range(count)]
    return net, [(x, torch.sin(x[:, :3]) + 0.1 * torch.randn(size, 3)) for x in inputs], regression


def llama_task(name="Llama"):
    torch.manual_seed(0)
    return llama_like(name), [tokens(2, 9) for _ in range(12)], language


def lora_task():
    torch.manual_seed(0)
    model = adapter()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return model, [tokens(2, 9) for _ in range(12)], language


TASKS = {"relu": relu_task, "Llama": llama_task, "Gemma": lambda: llama_task("Gemma"), "LoRA": lora_task}


def imbalanced(model, symmetries):
    """Return a copy moved along its orbits by random amounts."""
    other = copy.deepcopy(model)
    params = trainable(other)
    with torch.no_grad():
        for seed, symmetry in enumerate(symmetries):
            transform = random_transform(symmetry, seed, torch.float64)
            transform = transform**3 if transform.ndim == 1 else transform @ transform
            tensors = {name: params[name].detach().double() for name in symmetry.parameters}
            for name, value in move(tensors, symmetry, transform).items():
                params[name].copy_(value)
    return other


def outputs(model, loss, batch):
    recorded = []
    handle = model.register_forward_hook(lambda module, args, out: recorded.append(getattr(out, "logits", out)))
    with torch.no_grad():
        loss(model, batch)
    handle.remove()
    return recorded[0]
