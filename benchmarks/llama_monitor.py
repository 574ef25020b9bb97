"""Cost of one measurement of the noise monitor on a GPU, in plain training steps, for Llamas of four sizes.

    python -m benchmarks.llama_monitor

Batches of 8 sequences of 512 tokens under bfloat16 autocast, with SGD and with AdamW. The monitor measures at every 20
steps, and every step is timed until the device has finished it. A plain step is the median of the last 15 steps of all
rounds; a measurement costs the sum, over the first five steps of a round, of the difference between the median at that
place and a plain step. It thus includes what the monitor completes after the measured step. Between measurements there
are no hooks. The standard error of the cost is that of rounds drawn with replacement. Memory is the peak of allocations
on the GPU: that of a measured step beyond that of a plain step, relative to the latter. PyTorch counts the operations
of a measured step for which the host waits for the GPU, outside the thread of the monitor.
"""

import gc
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import in_words, save

SIZES = {
    "22M": (9000, 384, 1024, 10, 6, 3),
    "88M": (8000, 768, 2048, 12, 12, 4),
    "316M": (16000, 1024, 2816, 24, 16, 8),
    "1.1e9": (32000, 2048, 5632, 22, 32, 4),
    "tiny": (64, 32, 48, 2, 4, 2),
}
"""Vocabulary, width, width of the MLP, layers, heads and key heads of each Llama."""
STEPS, MEMORY, EVERY_50 = 1.5, 0.4, 0.03
"""Bars: a measurement in plain steps, its memory relative to the peak of a plain step, its share at every 50 steps."""
EVERY, AFTER = 20, 5
"""Steps between measurements, and those of them that may contain work of the monitor."""
OPTIMISERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 1e-3}),
    "AdamW": ("AdamW", {"lr": 1e-4, "weight_decay": 0.1, "fused": True}),
}


def build(torch: Any, size: str, device: str) -> tuple[Any, Any, Callable]:
    """Return a Llama, a batch and its loss under autocast."""
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary, width, hidden, layers, heads, key_heads = SIZES[size]
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(config)
        tokens = torch.randint(0, vocabulary, (8, 512 if device == "cuda" else 16))

    def loss(net: Any, ids: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return net(input_ids=ids, labels=ids, use_cache=False).loss

    return model, tokens, loss


def symmetries_of(torch: Any, model: Any) -> Any:
    """Return the symmetries of a Llama, found on a narrow twin and proved on the model."""
    from undertow.torch import census, narrow_twin

    plain = lambda net, batch: net(**batch, use_cache=False).loss

    def draw(limit: int, device: Any) -> dict[str, Any]:
        tokens = torch.randint(0, limit, (2, 12), device=device)
        return {"input_ids": tokens, "labels": tokens}

    twin = narrow_twin(model.config)
    found = census(twin, draw(twin.config.vocab_size, "cpu"), plain)
    return found.transfer(model, draw(model.config.vocab_size, model.device), plain)


class Training:
    """A model in training."""

    def __init__(self, torch: Any, model: Any, batch: Any, loss: Callable, optimiser: str):
        kind, settings = OPTIMISERS[optimiser]
        self.torch, self.model, self.batch, self.loss = torch, model, batch, loss
        self.cuda = batch.is_cuda
        self.optimizer = getattr(torch.optim, kind)(model.parameters(), **settings)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model, self.batch).backward()
        self.optimizer.step()

    def seconds(self) -> float:
        """Return the time of a step on the device."""
        self._wait()
        began = time.perf_counter()
        self.step()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def waits(self) -> int:
        """Return for how many operations of a step the host waits for the GPU, except in threads of the monitor."""
        places: list[str] = []

        def show(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
            own = threading.current_thread().name.startswith("undertow")
            if "synchronizing CUDA operation" in str(message) and not own:
                places.append(f"{filename}:{lineno}")

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            self.torch.cuda.set_sync_debug_mode("warn")
            try:
                self.step()
            finally:
                self.torch.cuda.set_sync_debug_mode("default")
        for place in places:
            print("waits for the GPU:", place, flush=True)
        return len(places)

    def peak(self) -> int:
        """Return the largest number of bytes allocated in one step."""
        if not self.cuda:
            return 1
        gc.collect()
        self.torch.cuda.reset_peak_memory_stats()
        self.seconds()
        return self.torch.cuda.max_memory_allocated()


def cost_of(rounds: np.ndarray) -> tuple[float, float]:
    """Return the seconds of a plain step, and the cost of a measurement in plain steps, from (rounds, `EVERY`)."""
    plain = float(np.median(rounds[:, AFTER:]))
    return plain, float((np.median(rounds[:, :AFTER], 0) - plain).sum() / plain)


def measure(torch: Any, size: str, optimiser: str, device: str = "cuda", rounds: int = 20) -> dict[str, Any]:
    """Return the cost of a measurement in seconds, plain steps and memory."""
    from undertow.torch import NoiseMonitor

    model, batch, loss = build(torch, size, device)
    symmetries = symmetries_of(torch, model)
    run = Training(torch, model, batch, loss, optimiser)
    for _ in range(3):
        run.step()
    plain_peak = run.peak()
    plain_waits = run.waits() if run.cuda else 0
    with NoiseMonitor(model, symmetries, every=1):
        for _ in range(2):
            run.step()
        peak = run.peak()
        waits = run.waits() if run.cuda else 0
    with NoiseMonitor(model, symmetries, every=EVERY) as monitor:
        for _ in range(EVERY):  # chooses algorithms and statistics
            run.step()
        times = np.array([[run.seconds() for _ in range(EVERY)] for _ in range(rounds)])
    plain, cost = cost_of(times)
    draws = np.random.default_rng(0).integers(rounds, size=(200, rounds))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "symmetries": len(symmetries),
        "plain_seconds": plain,
        "measured_seconds": float(np.median(times[:, 0])),
        "steps": cost,
        "standard_error": float(np.std([cost_of(times[own])[1] for own in draws])),
        "every_50": cost / 50,
        "memory": peak / plain_peak - 1,
        "waits": waits,
        "plain_waits": plain_waits,
        "plain_gibibytes": plain_peak / 2**30,
        "noise_scale": monitor.noise_scale.total.value,
    }


def main(*sizes: str, device: str = "cuda") -> list[tuple[str, str, str]]:
    import torch

    facts: dict[str, Any] = {"torch": torch.__version__}
    rows = []
    for size in sizes or [name for name in SIZES if name != "tiny"]:
        for optimiser in OPTIMISERS:
            result = measure(torch, size, optimiser, device)
            facts[f"{size}, {optimiser}"] = result
            print(size, optimiser, json.dumps(result), flush=True)
            cost = f"{result['steps']:.2f} +- {result['standard_error']:.2f}"
            rows += [
                (f"Llama {size}, {optimiser}: plain step", in_words(result["plain_seconds"]), ""),
                ("one measurement, in plain steps", cost, f"<= {STEPS:g}"),
                ("memory beyond a plain step", f"{result['memory']:.0%}", f"< {MEMORY:.0%}"),
                ("measured at every 50 steps", f"{result['every_50']:+.1%}", f"< {EVERY_50:.0%}"),
            ]
    if device == "cuda" and not sizes:
        facts["kind"] = torch.cuda.get_device_name()
        save("llama_monitor_gpu", facts)
    return rows


if __name__ == "__main__":
    for row in main(*sys.argv[1:]):
        print("  ".join(row))
