"""Many runs of AdamW as one program, with the distance of every generator from the noise equilibrium of AdamW.

A generator multiplies its plus side by e^s and its minus side by e^-s. With b = sum sqrt(v) and a = sum sqrt(v) theta^2
over each side, AdamW's equilibrium is at e^(2s) = (lambda a_minus + eta/2 b_plus)/(lambda a_plus + eta/2 b_minus).
SGD's is at e^(4s) = (lambda w_minus + eta/2 n_plus)/(lambda w_plus + eta/2 n_minus), with w = sum theta^2 and n = sum
v.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from studies.adamw_networks import Generators, Task
from studies.training import Params, Repeated, gradients

__all__ = ["SCHEDULES", "Amounts", "Program", "Run", "Sides", "schedule", "start"]

SCHEDULES = ("constant", "cosine", "warm-up-stable-decay")
BETA, EPS = 0.9, 1e-8
ALIVE = 1e-6
"""A generator is dead if a side has less |m| than this, relative to sqrt(v): no gradient in the last 130 steps."""


@dataclass(frozen=True)
class Run:
    """Settings of one run."""

    seed: int
    step_size: float
    weight_decay: float
    b2: float
    schedule: str = "constant"
    adaptive: bool = True
    """AdamW; otherwise SGD."""
    warm_up: float = 0.0
    """Fraction of the steps over which the step size rises, in addition to that of the schedule."""


def schedule(name: str, steps: int, warm_up: float = 0.0) -> Tensor:
    """Return the factors of the step size, (steps,).

    The cosine falls to zero. Warm-up-stable-decay rises over 5 % of the steps and falls linearly over the last 20 %.
    """
    if name not in SCHEDULES:
        raise ValueError(f"`schedule({name!r})`: give one of {', '.join(SCHEDULES)}.")
    done = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    shape = torch.ones(steps, dtype=torch.float64)
    if name == "cosine":
        shape = (1 + torch.cos(math.pi * done)) / 2
    if name == "warm-up-stable-decay":
        shape = torch.minimum(done / 0.05, (1 - done) / 0.2).clamp_max(1)
    return shape * (done / warm_up).clamp_max(1) if warm_up else shape


class Sides:
    """Sums over both sides of every generator, of tensors that have the runs as their first axis."""

    def __init__(self, generators: Generators, device: torch.device):
        self.keys = generators.keys
        self.families = list(dict.fromkeys(generators.families))
        of = torch.tensor([self.families.index(family) for family in generators.families])
        self.family = of.to(device)
        self.plus, self.minus = (torch.as_tensor(side, device=device) for side in (generators.plus, generators.minus))

    def sums(self, values: Params) -> tuple[Tensor, Tensor]:
        """Return the sums over the plus and over the minus side, (runs, generators) each."""
        columns = []
        for name, axis, _ in self.keys:
            others = [k for k in range(1, values[name].ndim) if k != axis + 1]
            columns.append(values[name].sum(others) if others else values[name])
        rows = torch.cat(columns, -1)
        return rows @ self.plus.T.to(rows), rows @ self.minus.T.to(rows)

    def move(self, values: Params, amount: Tensor, power: float = 1.0) -> Params:
        """Return the values multiplied by e^(power s) on the plus and e^(-power s) on the minus side."""
        factor = torch.exp(power * amount @ (self.plus - self.minus).to(amount))
        moved, start = dict(values), 0
        for name, axis, length in self.keys:
            shape = [-1 if k == 0 else length if k == axis + 1 else 1 for k in range(moved[name].ndim)]
            moved[name] = moved[name] * factor[:, start : start + length].reshape(shape)
            start += length
        return moved


@dataclass(frozen=True)
class Amounts:
    """Log factors s to equilibria, (runs, generators) each."""

    adamw: Tensor
    lagged: Tensor
    """To AdamW's equilibrium for the average of past step sizes that the charge remembers."""
    sgd: Tensor
    ratio: Tensor
    """log |theta_plus|/|theta_minus|, measured."""
    alive: Tensor

    @staticmethod
    def of(
        sides: Sides, params: Params, squares: Params, recent: Params, eta: Tensor, lagged: Tensor, decay: Tensor
    ) -> "Amounts":  # fmt: skip
        """Return the amounts at these parameters and mean squared gradients; eta and decay are (runs, 1).

        `recent` are sizes of recent gradients, which are zero for generators that have died.
        """
        root = _roots(squares)
        b = sides.sums(root)
        a = sides.sums({name: root[name] * params[name].square() for name in root})
        n = sides.sums({name: squares[name] for name in root})
        w = sides.sums({name: params[name].square() for name in root})
        amount = lambda step: ((decay * a[1] + step / 2 * b[0]) / (decay * a[0] + step / 2 * b[1])).log() / 2
        sgd = ((decay * w[1] + eta / 2 * n[0]) / (decay * w[0] + eta / 2 * n[1])).log() / 4
        alive = (w[0] > 0) & (w[1] > 0)
        for noise, gradient in zip(b, sides.sums(recent), strict=True):
            alive &= gradient > ALIVE * noise
        clean = lambda x: torch.where(alive, x, torch.zeros_like(x))
        ratio = (w[0] / w[1]).log() / 2
        return Amounts(clean(amount(eta)), clean(amount(lagged)), clean(sgd), clean(ratio), alive)


def _roots(squares: Params) -> Params:
    return {name: v.sqrt() for name, v in squares.items()}


class Program:
    """Runs of one network that are trained together. All parameters of a run are one row of a matrix."""

    def __init__(self, mine: Task, params: Params, runs: list[Run], steps: int, device: torch.device):
        self.net, self.mine, self.runs, self.steps = mine.nets[0].to(device), mine, runs, steps
        self.shapes = {name: p.shape[1:] for name, p in params.items()}
        self.flat = torch.cat([p.to(device).flatten(1) for p in params.values()], 1)
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        column = lambda values: torch.tensor(values, dtype=torch.float32, device=device)[:, None]
        self.size, self.decay = column([r.step_size for r in runs]), column([r.weight_decay for r in runs])
        self.b2, self.adaptive = column([r.b2 for r in runs]), column([float(r.adaptive) for r in runs]) > 0
        self.seed = torch.tensor([r.seed for r in runs], device=device)
        kinds = list(dict.fromkeys((r.schedule, r.warm_up) for r in runs))
        table = torch.stack([schedule(name, steps, warm_up) for name, warm_up in kinds], 1)
        self.table = table.to(torch.float32).to(device)
        self.kind = torch.tensor([kinds.index((r.schedule, r.warm_up)) for r in runs], device=device)
        self.t = torch.zeros(1, dtype=torch.long, device=device)
        self.eta = self.size * self.table[0][self.kind][:, None]
        self.lagged = self.eta.clone()
        self.losses = torch.zeros(len(runs), device=device)
        self.repeated = Repeated(self._step, device)

    def views(self, flat: Tensor) -> Params:
        """Return the rows of a matrix as parameters."""
        parts = flat.split([math.prod(shape) for shape in self.shapes.values()], 1)
        return {name: part.unflatten(1, shape) if len(shape) else part[:, 0]
                for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}  # fmt: skip

    def gradient(self) -> tuple[Tensor, Tensor]:
        """Return the losses and gradients on a new minibatch, which runs of the same seed share."""
        shape = (int(self.seeds), self.mine.samples)
        index = torch.randint(0, self.mine.indices, shape, device=self.flat.device)
        inputs, targets = self.mine.batch(index)
        batch = inputs.index_select(0, self.seed), targets.index_select(0, self.seed)
        losses, slopes = gradients(self.net, self.mine.loss, self.views(self.flat), batch)
        return losses, torch.cat([slopes[name].flatten(1) for name in self.shapes], 1)

    @property
    def seeds(self) -> int:
        """Number of different seeds."""
        return 1 + max(run.seed for run in self.runs)

    def _step(self) -> None:
        losses, g = self.gradient()
        self.losses.add_(losses)
        count = (self.t + 1).to(g)
        factor = self.table.index_select(0, self.t)[0].index_select(0, self.kind)[:, None]
        torch.mul(self.size, factor, out=self.eta)
        # the charge is a mean of past eta with weights exp(-2 lambda sum eta)
        self.lagged.add_(2 * self.eta * self.decay * (self.eta - self.lagged))
        self.first.mul_(BETA).add_(g, alpha=1 - BETA)
        self.second.mul_(self.b2).add_((1 - self.b2) * g * g)
        scaled = (self.first / (1 - BETA**count)) / ((self.second / (1 - self.b2**count)).sqrt() + EPS)
        self.flat.mul_(1 - self.eta * self.decay).sub_(self.eta * torch.where(self.adaptive, scaled, g))
        self.t.add_(1)

    def run(self, steps: int) -> Tensor:
        """Train for a number of steps and return the mean loss over them, (runs,)."""
        self.losses.zero_()
        self.repeated.run(steps)
        return self.losses / steps

    def amounts(self, sides: Sides) -> Amounts:
        """Return the log factors to the equilibria at the present parameters."""
        squares = self.second / (1 - self.b2 ** self.t.to(self.b2))
        params, v, recent = map(self.views, (self.flat, squares, self.first.abs()))
        return Amounts.of(sides, params, v, recent, self.eta, self.lagged, self.decay)

    def moved(self, sides: Sides, batches: int, sweeps: int = 60, damping: float = 0.4) -> Tensor:
        """Return the parameters at AdamW's equilibrium for the peak step size.

        Mean squared gradients of minibatches at the present parameters replace v. Generators that share weights are
        moved together by damped steps. Generators without a finite equilibrium stay.
        """
        squares = torch.zeros_like(self.flat)
        for _ in range(batches):
            squares += self.gradient()[1].square() / batches
        params, v = self.views(self.flat.double()), self.views(squares.double())
        eta, decay = self.size.double(), self.decay.double()
        for _ in range(sweeps):
            amount = damping * Amounts.of(sides, params, v, _roots(v), eta, eta, decay).adamw
            params, v = sides.move(params, amount), sides.move(v, amount, -2.0)
        return torch.cat([params[name].flatten(1) for name in self.shapes], 1).to(self.flat)


def start(nets: list[nn.Module], runs: list[Run]) -> Params:
    """Return the parameters of all runs, those of the network of their seed, on the CPU."""
    each: list[Params] = [{k: p.detach().cpu() for k, p in n.named_parameters() if p.requires_grad} for n in nets]
    return {name: torch.stack([each[run.seed][name] for run in runs]) for name in each[0]}
