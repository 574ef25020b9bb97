"""Random weights for a network: of moderate size, without zero biases or factors and unit gains."""

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "LARGE_PARAMETER",
    "RandomWeights",
    "convolution_kernels",
    "enlarge",
    "fill_random",
    "is_norm",
    "norm_gains",
    "randomise",
]

LARGE_PARAMETER = 2**14
"""Number of entries from which random values are uniform numbers of 16 bits."""
PIECE = 2**17
"""Number of entries that are filled at once."""


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a norm, by the name of its class."""
    return "norm" in type(module).__name__.lower()


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Draw random weights that keep activations of moderate size, without zero biases or factors and unit gains."""
    RandomWeights(model).draw(seed)


@torch.no_grad()
def enlarge(model: nn.Module, largest: float, seed: int) -> None:
    """Multiply each trainable parameter by a random factor between 1 and `largest`."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            parameter.mul_(largest ** torch.rand((), generator=generator).item())


def norm_gains(model: nn.Module) -> set[int]:
    """Return the ids of the parameters of norms that are not biases."""
    return {id(p) for m in model.modules() if is_norm(m) for n, p in m.named_parameters(recurse=False) if n != "bias"}


def convolution_kernels(model: nn.Module) -> set[int]:
    """Return the ids of the weights of convolutions."""
    return {id(m.weight) for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)}


class RandomWeights:
    """Random weights for all parameters of a model, by seed. Small parameters of a device are drawn together."""

    def __init__(self, model: nn.Module):
        gains, kernels = norm_gains(model), convolution_kernels(model)
        self._small: dict[torch.device, list[nn.Parameter]] = {}
        self._factors: dict[torch.device, list[float]] = {}
        self._gains: dict[torch.device, list[nn.Parameter]] = {}
        self._large: list[tuple[nn.Parameter, float]] = []
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            device, gain = parameter.device, id(parameter) in gains
            spread = _spread(parameter, gain=gain, kernel=id(parameter) in kernels)
            if parameter.numel() >= LARGE_PARAMETER and not gain:
                self._large.append((parameter, spread))
                continue
            self._small.setdefault(device, []).append(parameter)
            self._factors.setdefault(device, []).append(spread)
            if gain:
                self._gains.setdefault(device, []).append(parameter)

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Give every parameter the random values of a seed."""
        devices = {*self._small, *(parameter.device for parameter, _ in self._large)}
        generators = {device: torch.Generator(device).manual_seed(seed) for device in devices}
        with torch._C.DisableTorchFunction():  # no casts to replace here
            for device, params in self._small.items():
                sizes = [parameter.numel() for parameter in params]
                parts = torch.empty(sum(sizes), dtype=torch.float32, device=device).split(sizes)
                for part in parts:
                    part.normal_(generator=generators[device])
                torch._foreach_copy_(params, [part.view(p.shape) for part, p in zip(parts, params, strict=True)])
                torch._foreach_mul_(params, self._factors[device])
                if device in self._gains:
                    torch._foreach_exp_(self._gains[device])
            for parameter, spread in self._large:
                _fill_large(parameter, generators[parameter.device], spread)


def _spread(parameter: Tensor, *, gain: bool, kernel: bool) -> float:
    """Return the standard deviation of random values, or that of the logarithm of a gain.

    A parameter with three axes that is not the weight of a convolution holds matrices, one per expert.
    """
    if gain or parameter.ndim < 2:
        return 0.3
    return (parameter[0].numel() if kernel else sum(parameter.shape[-2:]) / 2) ** -0.5


def _fill_large(parameter: Tensor, generator: torch.Generator, spread: float) -> None:
    """Fill a large parameter with uniform numbers of 16 bits, four from each random integer.

    Any weights in general position do. On a CPU the integers are those of NumPy's SFC64, in pieces that stay in the
    cache: at 23 million parameters this takes a sixth of the time of normal numbers.
    """
    scale = 2**-15 * 3**0.5 * spread
    if parameter.is_cpu and parameter.is_contiguous():
        bits = np.random.SFC64(int(torch.empty((), dtype=torch.int64).random_(generator=generator)))
        for part in parameter.view(-1).split(PIECE):
            words = torch.from_numpy(bits.random_raw(-(-part.numel() // 4)).view(np.int16))
            part.copy_(words[: part.numel()]).add_(0.5).mul_(scale)  # no zeros
        return
    words = torch.empty(-(-parameter.numel() // 4), dtype=torch.int64, device=parameter.device)
    words.random_(-(2**63), None, generator=generator)
    parameter.copy_(words.view(torch.int16)[: parameter.numel()].view(parameter.shape))
    parameter.add_(0.5).mul_(scale)


def fill_random(parameter: Tensor, generator: torch.Generator, *, gain: bool, kernel: bool) -> None:
    """Fill a parameter with random values in place: that of a norm, of a convolution, or other."""
    spread = _spread(parameter, gain=gain, kernel=kernel)
    if parameter.numel() >= LARGE_PARAMETER and not gain:
        _fill_large(parameter, generator, spread)
        return
    drawn = spread * torch.randn(parameter.shape, generator=generator, device=parameter.device).double()
    parameter.copy_(drawn.exp() if gain else drawn)
