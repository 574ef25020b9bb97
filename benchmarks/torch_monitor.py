"""Cost of the noise monitor relative to a plain training step and to per-sample gradients by vmap.

python -m benchmarks.torch_monitor

Measured on one thread, in CPU seconds. Monitored and unmonitored copies of a model train in alternating rounds, and
ratios are medians over rounds.
"""

import copy
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.harness import in_words, save

MLP_RATIO, TRANSFORMER_RATIO, IDLE, CHEAPER, EXACT = 1.5, 1.8, 0.03, 100.0, 1e-5
EVERY = 50


def mlp(torch: Any) -> tuple[Any, Any, Callable]:
    """Return an MLP 784-512-10 with a batch of 1,024 and its loss."""
    nn = torch.nn
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    batch = torch.randn(1024, 784), torch.randint(0, 10, (1024,))
    return net, batch, lambda model, b: nn.functional.cross_entropy(model(b[0]), b[1])


def transformer(torch: Any, *, smooth: bool = False) -> tuple[Any, Any, Callable]:
    """Return 4 layers of width 256 with 4 heads, and 16 sequences of 128 tokens; `smooth` replaces ReLU by GELU."""
    nn, F = torch.nn, torch.nn.functional
    activation = F.gelu if smooth else F.relu

    class Block(nn.Module):
        def __init__(self, width: int, heads: int):
            super().__init__()
            self.heads = heads
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            n, t, width = x.shape
            h = self.before(x)
            q, k, v = (f(h).view(n, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(mixed.transpose(1, 2).reshape(n, t, width))
            return x + self.down(activation(self.up(self.between(x))))

    class Model(nn.Module):
        def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    torch.manual_seed(0)
    net = Model(256, 256, 4, 4, 128)
    batch = torch.randint(0, 256, (16, 129))

    def loss(model: Any, ids: Any) -> Any:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return net, batch, loss


def clock(torch: Any, device: Any) -> Callable[[], float]:
    """Return CPU seconds; on a GPU, wall-clock seconds after synchronisation."""
    if device.type == "cpu":
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


class Trained:
    """A copy of a model in training, with or without a monitor; `steps(n)` continues it."""

    def __init__(self, torch: Any, model: Any, batch: Any, loss: Callable, symmetries: Any, every: int | None):
        from undertow.torch import NoiseMonitor

        self.model, self.batch, self.loss = copy.deepcopy(model), batch, loss
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.monitor = None if every is None else NoiseMonitor(self.model, symmetries, every=every)
        self.clock = clock(torch, next(model.parameters()).device)

    def steps(self, count: int) -> float:
        """Return the seconds per step."""
        began = self.clock()
        for _ in range(count):
            self.optimizer.zero_grad()
            self.loss(self.model, self.batch).backward()
            self.optimizer.step()
        return (self.clock() - began) / count


def ratios(runs: dict[str, Trained], count: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per step by round. Each round runs all copies, so that other load affects them equally."""
    for run in runs.values():
        run.steps(2)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(run.steps(count))
    return times


def against(times: dict[str, list[float]], name: str) -> float:
    """Return the median over rounds of the time relative to the plain run of the same round."""
    return statistics.median(a / b for a, b in zip(times[name], times["plain"], strict=True))


def oracle(torch: Any, model: Any, batch: Any, loss: Callable) -> Callable[[], dict]:
    """Return per-sample gradients by vmap(grad), 64 samples at a time."""
    params = {name: p.detach() for name, p in model.named_parameters()}

    def one(p: dict, sample: Any) -> Any:
        batch_of_one = tuple(x[None] for x in sample) if isinstance(sample, tuple) else sample[None]
        return loss(lambda x: torch.func.functional_call(model, p, (x,)), batch_of_one)

    return lambda: torch.vmap(torch.func.grad(one), in_dims=(None, 0), chunk_size=64)(params, batch)


def worst(torch: Any, model: Any, batch: Any, loss: Callable, symmetries: Any, *, exact: bool = False) -> float:
    """Return the largest error of the noise of a generator, relative to the largest noise on its side.

    The reference is vmap(grad) in the precision of the model, or in double precision (`exact`).
    """
    run = Trained(torch, model, batch, loss, symmetries, 1)
    run.steps(1)
    run.monitor.close()
    with warnings.catch_warnings():  # attention has no rule for vmap
        warnings.simplefilter("ignore")
        judge = (copy.deepcopy(model).double(), double(batch)) if exact else (model, batch)
        gradients = oracle(torch, *judge, loss)()
    errors = []
    for reading in run.monitor.last:
        for side, noise in ((reading.symmetry.plus, reading.noise_plus), (reading.symmetry.minus, reading.noise_minus)):
            right = sum(_noise(gradients[axis.parameter].double(), axis, reading.symmetry.block) for axis in side)
            errors.append(float(abs(noise - right.cpu().numpy()).max() / right.abs().max()))
    return max(errors)


def double(batch: Any) -> Any:
    """Return a batch in double precision; integers are unchanged."""
    return tuple(x.double() if x.is_floating_point() else x for x in batch) if isinstance(batch, tuple) else batch


def _noise(gradients: Any, axis: Any, block: int) -> Any:
    """Return the covariance of the mean of N gradients, along an axis."""
    count = len(gradients)
    centred = gradients - gradients.mean(0)
    rows = centred.movedim(axis.axis + 1, 1).reshape(count, axis.length, -1)[:, axis.index]
    rows = rows.permute(1, 0, 2, 3).reshape(axis.size // block, block, -1)
    total = rows @ rows.mT / (count * (count - 1))
    return total[:, 0, 0] if block == 1 else total


def llama(torch: Any) -> tuple[Any, Any, Callable]:
    """Return a Llama of 12 layers and width 128 with 4 sequences of 64 tokens, and its loss."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=12, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    loss = lambda model, ids: model(input_ids=ids, labels=ids, use_cache=False).loss
    return LlamaForCausalLM(config), torch.randint(0, 256, (4, 64)), loss


def readings(torch: Any, rounds: int = 9) -> dict[str, float]:
    """Return the CPU seconds of a plain step and of what a measurement does in `optimizer.step()`, by optimiser."""
    from undertow.torch import NoiseMonitor, census

    net, batch, loss = llama(torch)
    symmetries = census(net, batch[:2, :12], loss)
    result: dict[str, float] = {"symmetries": len(symmetries)}
    kinds = {"SGD": {"lr": 1e-3, "momentum": 0.9}, "AdamW": {"lr": 1e-3, "weight_decay": 0.1}}
    for kind, options in kinds.items():
        model = copy.deepcopy(net)
        optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
        spent: dict[bool, list[float]] = {False: [], True: []}
        with NoiseMonitor(model, symmetries, every=2):
            for step in range(2 * rounds + 4):
                optimizer.zero_grad()
                loss(model, batch).backward()
                began = time.process_time()
                optimizer.step()
                spent[step % 2 == 0].append(time.process_time() - began)
        result[kind] = statistics.median(spent[True][2:]) - statistics.median(spent[False][2:])
    return result


def idle(build: Callable, count: int, rounds: int) -> float:
    """Return the relative cost of a monitor that measures every 50 steps, with 50 steps per round."""
    times = ratios({"plain": build(None), "monitored": build(EVERY)}, count, rounds)
    return against(times, "monitored") - 1


def cost_between_measurements(build: Callable, count: int, rounds: int) -> float:
    """Return the relative cost of a monitor between measurements."""
    times = ratios({"plain": build(None), "monitored": build(10**9)}, count, rounds)
    return against(times, "monitored") - 1


def main() -> list[tuple[str, str, str]]:
    import torch

    from undertow.torch import census

    torch.set_num_threads(1)  # two threads wait for each other if other processes run
    rows, facts = [], {"torch": torch.__version__}
    for make, bar, count, rounds in ((mlp, MLP_RATIO, 20, 15), (transformer, TRANSFORMER_RATIO, 2, 9)):
        name, (net, batch, loss) = make.__name__, make(torch)
        small = tuple(x[:4] for x in batch) if isinstance(batch, tuple) else batch[:2, :9]
        symmetries = census(net, small, loss)
        build = lambda every, net=net, batch=batch, loss=loss, symmetries=symmetries: Trained(
            torch, net, batch, loss, symmetries, every
        )
        runs = {"plain": build(None), "every step": build(1)}
        times = ratios(runs, count, rounds)
        ratio, plain = against(times, "every step"), statistics.median(times["plain"])
        algorithms = [f"{name}: {key[0]} x {key[1]}" for key, name in runs["every step"].monitor.algorithms.items()]
        between = cost_between_measurements(build, count, rounds)
        share = idle(build, EVERY, 9 if make is mlp else 3)
        exact = worst(torch, copy.deepcopy(net).double(), double(batch), loss, symmetries)
        single = worst(torch, net, batch, loss, symmetries)
        rounded = worst(torch, net, batch, loss, symmetries, exact=True)
        rows += [
            (f"{name}: plain step", in_words(plain), ""),
            (f"{name}: monitored at every step, {len(symmetries)} symmetries", f"{ratio:.2f} x", f"<= {bar:g} x"),
            (f"{name}: between measurements", f"{between:+.1%}", ""),
            (f"{name}: monitored at every {EVERY} steps", f"{share:+.1%}", f"< {IDLE:.0%}"),
            (f"{name}: error of the noise, in double precision", f"{exact:.1e}", f"<= {EXACT:g}"),
            (f"{name}: error of the noise, in single precision", f"{single:.1e}", f"<= {EXACT:g}"),
            (f"{name}: single precision against double", f"{rounded:.1e}", ""),
        ]
        facts[name] = {
            "plain": plain, "ratio": ratio, "between": between, "every_50": share, "error": exact,
            "error_single": single, "single_against_double": rounded, "symmetries": len(symmetries),
            "algorithms": algorithms,
        }  # fmt: skip
        if make is mlp:
            slow, spent = oracle(torch, net, batch, loss), []
            for _ in range(4):
                began = time.process_time()
                slow()
                spent.append(time.process_time() - began)
            extra = plain * (ratio - 1)
            cost_ratio = statistics.median(spent[1:]) / extra
            rows.append(
                ("mlp: time of vmap(grad) / extra time of the monitor", f"{cost_ratio:.0f} x", f">= {CHEAPER:g} x")
            )
            facts[name] |= {"vmap": statistics.median(spent[1:]), "extra": extra}
    net, batch, loss = transformer(torch, smooth=True)
    rounded = worst(torch, net, batch, loss, census(net, batch[:2, :9], loss), exact=True)
    rows.append(("transformer with GELU: single precision against double", f"{rounded:.1e}", ""))
    facts["smooth transformer"] = {"single_against_double": rounded}
    facts["llama"] = readings(torch)
    for kind in ("SGD", "AdamW"):
        name = f"Llama, 12 layers, {facts['llama']['symmetries']} symmetries: reading under {kind}"
        rows.append((name, in_words(facts["llama"][kind]), ""))
    save("torch_monitor", facts)
    return rows


if __name__ == "__main__":
    for row in main():
        print("  ".join(row))
