"""Moves along a scaling map: a source layer divided by scales, its readers multiplied by them, and what that changes.

A map is right if the outputs do not change for any positive scale of each channel. The change is measured on a copy in
double precision, at random weights and at the weights of the model, with random scales.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from undertow.torch._copies import Batch, Loss, OnePrecision, cast_batch, forward, model_copy, randomise, unwrap
from undertow.torch._isolation import isolated
from undertow.torch.census.scaling.layers import LayerMatch, layer_of
from undertow.torch.census.scaling.trace import trace_layers

__all__ = ["OUTPUT_RTOL", "MeasuredChange", "measure_scaling", "model_layers"]

OUTPUT_RTOL = 1e-8
"""Relative change of outputs in float64 that rounding explains."""
HEAD_WIDTHS = ("head_dim", "attention_head_size", "head_size")
"""Attributes under which attention modules store the width of a head."""


class MeasuredChange(NamedTuple):
    """Relative change of the outputs, in double precision."""

    random: float
    """At random weights."""
    own: float
    """At the weights of the model; NaN if its outputs are not finite."""
    problem: str = ""
    """Why the source cannot be scaled against its readers at all; the changes are NaN then."""
    used: bool = True
    """Whether the batch uses the source; if it does not, the changes mean nothing."""
    readers: tuple[str, ...] = ()
    """Modules that read the outputs of the source unchanged."""


def model_layers(model: nn.Module) -> list[str]:
    """Return the names of the layers of a model; a tied weight appears under each of its names."""
    return list(dict.fromkeys(layer_of(name) for name, _ in unwrap(model).named_parameters(remove_duplicate=False)))


def measure_scaling(
    model: nn.Module, batch: Batch, loss: Loss, matches: Sequence[LayerMatch], *, seed: int = 0
) -> list[MeasuredChange]:
    """Return the change of the outputs for each source, divided by random scales against its readers.

    The model itself is not changed. The scales are between 0.58 and 1.73, one for each channel of the source.

    >>> import torch
    >>> from undertow.torch.census.scaling.layers import LayerMatch
    >>> from undertow.torch.census.scaling.moves import measure_scaling
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
    >>> loss = lambda model, x: model(x).square().mean()
    >>> (change,) = measure_scaling(net, torch.randn(6, 5), loss, [LayerMatch("0", ("2",))])
    >>> print(change.random > 0.01)  # GELU breaks it
    True
    """
    model = unwrap(model)
    with isolated(model, seed), OnePrecision(), torch.no_grad():
        twin, batch = model_copy(model, torch.float64), cast_batch(batch, torch.float64)
        randomise(twin, seed)
        trace = trace_layers(twin, batch, loss, [match.source for match in matches])
        offsets = _gain_offsets(twin, batch, loss, [match.source for match in matches])
        layers = _Layers(dict(twin.named_modules()), dict(twin.named_parameters(remove_duplicate=False)))
        paired = [layers.pair_channels(match, offsets.get(match.source, 0.0)) for match in matches]
        at_random = _changes(twin, batch, loss, paired, seed)
        for parameter, value in zip(twin.parameters(), model.parameters(), strict=True):
            parameter.copy_(value)
        at_own = _changes(twin, batch, loss, paired, seed)
    problems = [pairing if isinstance(pairing, str) else "" for pairing in paired]
    used = [trace.uses(match.source) for match in matches]
    readers = [trace.readers.get(match.source, ()) for match in matches]
    return list(map(MeasuredChange, at_random, at_own, problems, used, readers))


@dataclass(frozen=True, eq=False)
class _Pairing:
    """Parameters of a source and of its readers, with the channel of the source that each input of a reader reads."""

    weight: Tensor
    bias: Tensor | None
    axis: int
    """Axis of the outputs of the source."""
    offset: float
    """The source computes with weight + offset (1 in Gemma's norms)."""
    readers: tuple[tuple[Tensor, int, Tensor], ...]
    """Weight, axis of its inputs, and the channel that each input reads."""

    def scales(self, seed: int) -> Tensor:
        """Return random scales; 1 for channels of a fused layer that no reader reads."""
        draws = torch.Generator().manual_seed(seed)
        drawn = torch.rand(self.weight.shape[self.axis], generator=draws, dtype=torch.float64) - 0.5
        scales = (drawn + 0.05 * drawn.sign()).exp()
        read = torch.unique(torch.cat([channels for _, _, channels in self.readers]))
        return torch.ones_like(scales).index_copy(0, read, scales[read])


def _changes(twin: nn.Module, batch: Batch, loss: Loss, paired: Sequence[_Pairing | str], seed: int) -> list[float]:
    """Return the change for each source, from one move of all sources if that changes nothing."""
    run = lambda: forward(twin, batch, loss, seed)[1].clone()
    before = run()
    if not torch.isfinite(before).all():
        return [math.nan] * len(paired)

    def change(numbers: Sequence[int]) -> float:
        with ExitStack() as stack:
            for number in numbers:
                pairing = paired[number]
                if not isinstance(pairing, str):
                    stack.enter_context(_scaled(pairing, pairing.scales(seed + number)))
            return float((run() - before).norm() / before.norm().clamp_min(1e-300))

    together = change(range(len(paired)))
    return [
        math.nan if isinstance(pairing, str) else together if together <= OUTPUT_RTOL else change([number])
        for number, pairing in enumerate(paired)
    ]


@contextmanager
def _scaled(pairing: _Pairing, scales: Tensor) -> Generator[None]:
    """Divide the source by scales and multiply its readers by them inside the context."""
    biases = [] if pairing.bias is None else [pairing.bias]
    parameters = [pairing.weight, *biases, *(weight for weight, _, _ in pairing.readers)]
    original = [parameter.clone() for parameter in parameters]
    try:
        divisors = _along(scales, pairing.weight, pairing.axis)
        pairing.weight.copy_((pairing.weight + pairing.offset) / divisors - pairing.offset)
        for bias in biases:
            bias.div_(_along(scales, bias, -1))
        for weight, axis, channels in pairing.readers:
            weight.mul_(_along(scales[channels], weight, axis))
        yield
    finally:
        for parameter, value in zip(parameters, original, strict=True):
            parameter.copy_(value)


def _along(values: Tensor, tensor: Tensor, axis: int) -> Tensor:
    """Return values that broadcast along one axis of a tensor."""
    return values.to(tensor).reshape([-1 if k == axis % tensor.ndim else 1 for k in range(tensor.ndim)])


def _gain_offsets(model: nn.Module, batch: Batch, loss: Loss, layers: Sequence[str]) -> dict[str, float]:
    """Return 1 for the norms that compute with 1 + weight (Gemma): their output does not vanish at weight 0."""
    offsets: dict[str, float] = {}

    def probe(name: str, module: nn.Module, args: tuple, kwargs: dict[str, object]) -> None:
        if name not in offsets:
            offsets[name] = 0.0  # also ends the recursion: the call below runs this hook again
            zero = {key: torch.zeros_like(p) for key, p in module.named_parameters(recurse=False)}
            out = functional_call(module, zero, args, kwargs)
            offsets[name] = float(isinstance(out, Tensor) and bool(out.abs().max() > 0))

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name in layers and getattr(getattr(module, "weight", None), "ndim", 0) == 1:
                hook = lambda module, args, kwargs, name=name: probe(name, module, args, kwargs)
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        forward(model, batch, loss)
    return offsets


@dataclass(frozen=True, eq=False)
class _Layers:
    """The modules and parameters of a model by name."""

    modules: Mapping[str, nn.Module]
    params: Mapping[str, Tensor]

    def pair_channels(self, match: LayerMatch, offset: float) -> _Pairing | str:
        """Return the channels of a source with the inputs that read them, or why they cannot be paired."""
        for layer in (match.source, *match.readers):
            weight = self._weight(layer)
            if weight is None:
                return f"{layer} has no weight"
            if weight.ndim == 1 and layer != match.source:
                return f"{layer} has no input channels: its weight has one dimension"
        source, axis = self._with_axis(match.source, out=True)
        width, channels, readers = self._head_width(match.source), source.shape[axis], []
        for layer in match.readers:
            weight, read = self._with_axis(layer, out=False)
            channel = _channels_read(channels, weight.shape[read], width)
            if channel is None:
                return f"{match.source} has {channels} channels and {layer} has {weight.shape[read]} inputs"
            readers.append((weight, read, channel))
        return _Pairing(source, self._bias(match.source), axis, offset, tuple(readers))

    def _weight(self, layer: str) -> Tensor | None:
        return self.params.get(layer, self.params.get(f"{layer}.weight"))

    def _bias(self, layer: str) -> Tensor | None:
        names = [f"{layer}.bias", f"{layer}_bias", f"{layer.removesuffix('weight')}bias"]
        return next((self.params[name] for name in names if name in self.params), None)

    def _with_axis(self, layer: str, *, out: bool) -> tuple[Tensor, int]:
        """Return the weight of a layer, and the axis of its outputs or inputs."""
        weight = self._weight(layer)
        assert weight is not None
        owner = self.modules[layer if layer in self.modules else layer.rpartition(".")[0]]
        convolution = isinstance(owner, nn.modules.conv._ConvNd)
        if weight.ndim == 3 and not convolution:  # experts in one tensor
            return weight, -2 if out != _transposed(owner) else -1
        kinds = nn.modules.conv._ConvTransposeNd | nn.Embedding
        backwards = type(owner).__name__ == "Conv1D" or isinstance(owner, kinds)
        return weight, 0 if weight.ndim == 1 or out != backwards else 1

    def _head_width(self, layer: str) -> int | None:
        """Return the width of a head of the attention module around a layer, None if it has none."""
        parent = layer
        while parent:
            parent = parent.rpartition(".")[0]
            for name in HEAD_WIDTHS:
                width = getattr(self.modules[parent], name, None)
                if isinstance(width, int):
                    return width
        return None


def _transposed(experts: nn.Module) -> bool:
    """Return whether the weights of experts have the inputs before the outputs, by a flag or by their shapes."""
    gate_up, down = (getattr(experts, name, None) for name in ("gate_up_proj", "down_proj"))
    if hasattr(experts, "is_transposed") or not isinstance(gate_up, Tensor) or not isinstance(down, Tensor):
        return bool(getattr(experts, "is_transposed", False))
    return gate_up.shape[1] == down.shape[2] and gate_up.shape[2] == 2 * down.shape[1]


def _channels_read(channels: int, inputs: int, width: int | None) -> Tensor | None:
    """Return the channel of the source that each input of a reader reads; None if the numbers do not fit.

    With several heads per key-value head each channel is read once per head of the group; `width` is the width of a
    head. Of a layer with queries, keys and values the values are read, of a gate with values the last channels.
    """
    if inputs == channels or (inputs < channels and width is None):
        return torch.arange(channels - inputs, channels)
    read = (channels - inputs) // 2 if inputs < channels else channels
    if read == 0 or inputs % read:
        return None
    values = torch.arange(channels - read, channels)
    if width is None or read % width:  # channels of a convolution, flattened
        return values.repeat_interleave(inputs // read)
    return values.reshape(-1, 1, width).expand(-1, inputs // read, -1).reshape(-1)
