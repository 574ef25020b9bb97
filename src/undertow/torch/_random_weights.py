"""Random weights for a network: of moderate size, without zero biases or factors and unit gains."""

import torch
from torch import Tensor, nn

__all__ = [
    "LARGE_PARAMETER",
    "RandomWeights",
    "convolution_kernels",
    "fill_random",
    "is_norm",
    "norm_gains",
    "randomise",
]

LARGE_PARAMETER = 2**16
"""Number of entries from which random values are uniform numbers of 16 bits."""


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a norm, by the name of its class."""
    return "norm" in type(module).__name__.lower()


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Draw random weights that keep activations of moderate size, without zero biases or factors and unit gains."""
    RandomWeights(model).draw(seed)


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
        self._large: list[tuple[nn.Parameter, float]] = []
        factors: dict[torch.device, list[Tensor]] = {}
        roots: dict[torch.device, list[Tensor]] = {}
        self._gains: dict[torch.device, list[tuple[int, int]]] = {}
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            device, gain = parameter.device, id(parameter) in gains
            factor, root = _spread(parameter, gain=gain, kernel=id(parameter) in kernels)
            if parameter.numel() >= LARGE_PARAMETER and not gain:
                self._large.append((parameter, factor / root))
                continue
            held = factors.setdefault(device, [])
            if gain:
                first = sum(map(len, held))
                self._gains.setdefault(device, []).append((first, first + parameter.numel()))
            held.append(torch.full((parameter.numel(),), factor, dtype=torch.float64))
            roots.setdefault(device, []).append(torch.full((parameter.numel(),), root, dtype=torch.float64))
            self._small.setdefault(device, []).append(parameter)
        self._factors = {device: torch.cat(held).to(device) for device, held in factors.items()}
        self._roots = {device: torch.cat(held).to(device) for device, held in roots.items()}

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Give every parameter the random values of a seed."""
        devices = {*self._factors, *(parameter.device for parameter, _ in self._large)}
        generators = {device: torch.Generator(device).manual_seed(seed) for device in devices}
        with torch._C.DisableTorchFunction():  # no casts to replace here
            for device, params in self._small.items():
                sizes = [parameter.numel() for parameter in params]
                normal = torch.empty(sum(sizes), device=device)
                for part in normal.split(sizes):
                    part.normal_(generator=generators[device])
                values = normal.double().mul_(self._factors[device]).div_(self._roots[device])
                for first, last in self._gains.get(device, ()):
                    values[first:last].exp_()
                shaped = [part.view(p.shape) for part, p in zip(values.split(sizes), params, strict=True)]
                torch._foreach_copy_(params, shaped)
            for parameter, spread in self._large:
                _fill_large(parameter, generators[parameter.device], spread)


def _spread(parameter: Tensor, *, gain: bool, kernel: bool) -> tuple[float, float]:
    """Return a factor and a divisor: the standard deviation of random values, or that of the logarithm of a gain.

    A parameter with three axes that is not the weight of a convolution holds matrices, one per expert.
    """
    if gain or parameter.ndim < 2:
        return 0.3, 1.0
    return 1.0, (parameter[0].numel() if kernel else sum(parameter.shape[-2:]) / 2) ** 0.5


def _fill_large(parameter: Tensor, generator: torch.Generator, spread: float) -> None:
    """Fill a large parameter with uniform numbers of 16 bits, four from each random integer.

    At 23 million parameters this takes a third of the time of normal numbers, and any weights in general position do.
    """
    words = torch.empty(-(-parameter.numel() // 4), dtype=torch.int64, device=parameter.device)
    words.random_(-(2**63), None, generator=generator)
    parameter.copy_(words.view(torch.int16)[: parameter.numel()].view(parameter.shape))
    parameter.add_(0.5).mul_(2**-15 * 3**0.5 * spread)  # no zeros


def fill_random(parameter: Tensor, generator: torch.Generator, *, gain: bool, kernel: bool) -> None:
    """Fill a parameter with random values in place: that of a norm, of a convolution, or other."""
    factor, root = _spread(parameter, gain=gain, kernel=kernel)
    if parameter.numel() >= LARGE_PARAMETER and not gain:
        _fill_large(parameter, generator, factor / root)
        return
    drawn = factor * torch.randn(parameter.shape, generator=generator, device=parameter.device).double() / root
    parameter.copy_(drawn.exp() if gain else drawn)
