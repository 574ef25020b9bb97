"""Many independent runs of one network, trained in parallel as one program.

Every parameter has the runs as its first axis. Runs share nothing, so that the gradient of the sum of their losses
contains the gradient of each. On a GPU a step is captured once and replayed.
"""

import gc
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

__all__ = [
    "Adapted", "Recipe", "Repeated", "Text", "Transformer", "cross_entropy", "digits", "gradients", "grammar", "manual",
    "mlp", "repeat", "stacked", "train",
]  # fmt: skip

Params = dict[str, Tensor]
BEFORE_CAPTURE = 3
"""Steps that run without capture first, in which allocators and libraries are initialised."""
BETA, SQUARE_BETA, EPS = 0.9, 0.999, 1e-8
"""Constants of Adam."""


# networks


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """Attention and a ReLU network, each after a norm and added to the residual stream."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, tokens, width) to the same shape."""
        read = self.before(x)
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        q, k, v = split(self.query(read)), split(self.key(read)), split(self.value(read))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        future = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, -1e9).softmax(-1) @ v
        x = x + self.out(mixed.transpose(-2, -3).flatten(-2))
        return x + self.down(self.up(self.between(x)).relu())


class Transformer(nn.Module):
    """A decoder with learned positions, pre-norm layers and an untied head."""

    def __init__(self, words: int, width: int, heads: int, layers: int, tokens: int):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.3)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map integers (samples, tokens) to logits (samples, tokens, words)."""
        words = torch.arange(self.words.num_embeddings, device=ids.device)
        chosen = (ids[..., None] == words).to(
            self.words.weight
        )  # a matrix product, because every run has its own embedding
        x = chosen @ self.words.weight + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last(x))


class Adapted(nn.Module):
    """A frozen linear layer with a trainable product of rank r added: W x + B A x."""

    def __init__(self, layer: nn.Linear, rank: int):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer plus the product."""
        return self.layer(x) + self.lora_B(self.lora_A(x))


def cross_entropy(model: Callable[[Tensor], Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy over all predictions."""
    inputs, targets = batch
    return -model(inputs).log_softmax(-1).gather(-1, targets[..., None]).mean()


# data


def digits() -> tuple[Tensor, Tensor]:
    """Return the 1,797 digits of scikit-learn, with pixels in 0..1, and their classes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.as_tensor(data.data / 16, dtype=torch.float32), torch.as_tensor(data.target)


SINGULAR, PLURAL, ADJECTIVES, VERBS = 6, 6, 5, 5
"""Numbers of singular and plural nouns, of adjectives, and of verbs (each in singular and plural)."""


@dataclass(frozen=True)
class Text:
    """A text as indices of words."""

    words: int
    """Size of the vocabulary."""
    ids: Tensor

    def batch(self, starts: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Return the windows that start at `starts`, and the next word for each of their words."""
        windows = self.ids[starts[..., None] + torch.arange(tokens + 1, device=starts.device)]
        return windows[..., :-1], windows[..., 1:]


def grammar(sentences: int, seed: int, tilt: float = 1.0) -> Text:
    """Return sentences of a small probabilistic grammar.

    sentence -> phrase verb [phrase] stop; phrase -> article [adjective] noun [that verb phrase]; verbs agree with the
    noun before the clause, which may be several words earlier. Word k of a kind is drawn with weight
    (k + 1)^-tilt; a negative tilt gives other word frequencies.
    """
    rng = np.random.default_rng(seed)
    stop, that, articles = 0, 1, (2, 3)
    nouns = 4
    adjectives = nouns + SINGULAR + PLURAL
    verbs = adjectives + ADJECTIVES
    out: list[int] = []

    def pick(count: int) -> int:
        weights = np.arange(1, count + 1) ** -tilt
        return int(np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random()))

    def phrase(depth: int) -> int:
        plural = int(rng.random() < 0.5)
        out.append(articles[plural] if rng.random() < 0.7 else articles[0])
        if rng.random() < 0.3:
            out.append(adjectives + pick(ADJECTIVES))
        out.append(nouns + plural * SINGULAR + pick(PLURAL if plural else SINGULAR))
        if depth < 2 and rng.random() < 0.3:
            out.extend((that, verbs + plural * VERBS + pick(VERBS)))
            phrase(depth + 1)
        return plural

    for _ in range(sentences):
        plural = phrase(0)
        out.append(verbs + plural * VERBS + pick(VERBS))
        if rng.random() < 0.6:
            phrase(1)
        out.append(stop)
    return Text(verbs + 2 * VERBS, torch.as_tensor(out))


def manual() -> Text:
    """Return the manual of the Python language, which every Python carries for its `help()`, by characters."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    words = {character: place for place, character in enumerate(sorted(set(text)))}
    return Text(len(words), torch.tensor([words[character] for character in text]))


# training


def stacked(models: list[nn.Module]) -> Params:
    """Return the trainable parameters of all models, stacked along a new first axis."""
    each = [{name: p.detach() for name, p in model.named_parameters() if p.requires_grad} for model in models]
    return {name: torch.stack([values[name] for values in each]) for name in each[0]}


def gradients(model: nn.Module, loss: Callable, params: Mapping[str, Tensor], batch: Any) -> tuple[Tensor, Params]:
    """Return the loss of every run, (runs,), and its gradient. The batch has the runs as its first axis too."""
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}

    def one(params: Params, mine: Any) -> Tensor:
        return loss(lambda *inputs: functional_call(model, params, inputs), mine)

    losses = vmap(one)(leaves, batch)
    values = torch.autograd.grad(losses.sum(), list(leaves.values()))
    return losses.detach(), dict(zip(leaves, values, strict=True))


@dataclass(frozen=True)
class Recipe:
    """Settings of the optimiser for each run, (runs,), as in PyTorch."""

    step_size: Tensor
    momentum: Tensor
    weight_decay: Tensor
    adaptive: Tensor
    """Whether the run uses Adam."""
    warm_up: Tensor
    """Steps over which the step size rises linearly; 0 for none."""

    @staticmethod
    def of(rows: list[dict[str, float]], **to: Any) -> "Recipe":
        """Return the settings from one dict per run; missing entries are 0."""
        column = lambda name: torch.tensor([float(row.get(name, 0.0)) for row in rows], **to)
        return Recipe(
            column("step_size"), column("momentum"), column("weight_decay"), column("adaptive") > 0, column("warm_up")
        )


class Repeated:
    """A step that is run many times. On a GPU it is captured as a graph and may only use tensors at fixed addresses."""

    def __init__(self, step: Callable[[], None], device: torch.device):
        self.step, self.cuda = step, device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None
        self.before_capture = BEFORE_CAPTURE

    def run(self, count: int) -> None:
        """Run the step `count` times; the first few are not captured."""
        plain = min(count, self.before_capture) if self.cuda else count
        if self.cuda and plain:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(plain):
                    self.step()
            torch.cuda.current_stream().wait_stream(side)
            self.before_capture -= plain
        else:
            for _ in range(plain):
                self.step()
        if count == plain:
            return
        if self.graph is None:
            gc.collect()  # a graph of an earlier program that is freed during a capture would invalidate it
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.step()  # recorded, not run
        for _ in range(count - plain):
            self.graph.replay()
        torch.cuda.synchronize()


def repeat(step: Callable[[], None], count: int, device: torch.device) -> None:
    """Run a step `count` times."""
    Repeated(step, device).run(count)


def train(
    params: Params,
    recipe: Recipe,
    gradient: Callable[[Params, Tensor], Params],
    steps: int,
    callback: Callable[[Tensor, Params, Params], None] | None = None,
) -> None:
    """Train in place. `gradient(params, t)` returns the gradient of step t, an integer tensor (1,).

    `callback(t, before, params)` is called after each step with the parameters before it.
    """
    first = next(iter(params.values()))
    t = torch.zeros(1, dtype=torch.long, device=first.device)
    velocity = {name: torch.zeros_like(p) for name, p in params.items()}
    adaptive = bool(recipe.adaptive.any())
    squares = {name: torch.zeros_like(p) for name, p in params.items()} if adaptive else {}
    each = lambda numbers, p: numbers.reshape(-1, *(1,) * (p.ndim - 1))
    beta = torch.where(recipe.adaptive, torch.full_like(recipe.momentum, BETA), recipe.momentum)
    weight = torch.where(recipe.adaptive, torch.full_like(beta, 1 - BETA), torch.ones_like(beta))

    def step() -> None:
        current = gradient(params, t)
        before = {name: p.clone() for name, p in params.items()} if callback is not None else {}
        count = t.to(recipe.step_size) + 1
        size = recipe.step_size * (count / recipe.warm_up.clamp_min(1)).clamp_max(1)
        # Adam's bias correction
        size = torch.where(recipe.adaptive, size / (1 - BETA**count), size)
        second = 1 - SQUARE_BETA**count
        for name, p in params.items():
            g = current[name] + each(recipe.weight_decay, p) * p
            v = velocity[name]
            v.mul_(each(beta, p)).add_(each(weight, p) * g)
            direction = v
            if adaptive:
                s = squares[name]
                s.mul_(SQUARE_BETA).addcmul_(g, g, value=1 - SQUARE_BETA)
                scaled = v / ((s / second).sqrt() + EPS)
                direction = torch.where(each(recipe.adaptive, p), scaled, v)
            p.sub_(each(size, p) * direction)
        if callback is not None:
            callback(t, before, params)
        t.add_(1)

    repeat(step, steps, first.device)
