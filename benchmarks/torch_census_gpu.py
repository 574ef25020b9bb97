"""The census of a Llama of 1.1e9 parameters on a GPU, and the transfer of a twin's census to one of 7e9 parameters.

    python -m benchmarks.torch_census_gpu

Not part of `make bench`: it needs a GPU of 40 GiB or more. Each network has a process of its own. `tiny` measures small
networks on the CPU, without memory, to test this file. `profile` prints where the time of the census goes.
"""

import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from typing import Any

from benchmarks.harness import RESULTS, in_words

SECONDS, GIBIBYTES, TRANSFER_SECONDS = 20.0, 16.0, 90.0
"""Bars: census of 1.1e9 parameters, peak memory with the model in it, transfer to 7e9 parameters."""
SIZES = {
    "census": (32000, 2048, 5632, 22, 32, 4),
    "transfer": (32000, 4096, 14336, 32, 32, 8),
    "tiny census": (500, 64, 160, 3, 4, 2),
    "tiny transfer": (500, 128, 320, 5, 8, 4),
}
"""Vocabulary, width, width of the MLP, layers, heads and key heads of each Llama."""
LIMIT = 170
"""Seconds after which a process is stopped."""


def llama(task: str, device: str, dtype: Any) -> Any:
    """Return a Llama with random weights, made on the device: in main memory the initialisation takes minutes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    vocabulary, width, hidden, layers, heads, key_heads = SIZES[task]
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, max_position_embeddings=256,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model


class Measured:
    """Seconds and peak memory of the device inside the context."""

    def __init__(self, device: str):
        import torch

        self._cuda = torch.cuda if device == "cuda" else None

    def __enter__(self) -> "Measured":
        self.held = self.peak = self.reserved = 0
        if self._cuda:
            self._cuda.synchronize()
            self._cuda.empty_cache()
            self._cuda.reset_peak_memory_stats()
            self.held = self._cuda.memory_allocated()
        self.began = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._cuda:
            self._cuda.synchronize()
            self.peak, self.reserved = self._cuda.max_memory_allocated(), self._cuda.max_memory_reserved()
        self.seconds = time.perf_counter() - self.began

    def facts(self) -> dict[str, float]:
        gibibytes = {"peak": self.peak, "reserved": self.reserved, "before": self.held, "beyond": self.peak - self.held}
        return {"seconds": self.seconds, **{f"gibibytes_{key}": n / 2**30 for key, n in gibibytes.items()}}


def measure(task: str, device: str, profile: bool = False) -> dict[str, Any]:
    """Return seconds, memory, passes and symmetries of a census or of a transfer."""
    import torch

    from undertow.torch import census, narrow_twin
    from undertow.torch.census.batches import mean_square, random_batch

    transfer = task.endswith("transfer")
    began = time.perf_counter()
    model = llama(task, device, torch.bfloat16 if transfer else torch.float32)
    tokens = torch.randint(0, SIZES[task][0], (1, 16), device=device)
    batch, passes = {"input_ids": tokens, "labels": tokens}, 0

    def loss(net: Any, batch: Any) -> Any:
        nonlocal passes
        passes += 1
        return net(**batch).loss

    with torch.no_grad():
        loss(model, batch)  # loads what a forward pass needs
    facts: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "seconds_to_build": time.perf_counter() - began,
    }
    passes, profiler = 0, cProfile.Profile()
    with Measured(device) as measured:
        if profile:
            profiler.enable()
        if transfer:
            twin = narrow_twin(model.config)
            narrow = census(twin, random_batch(twin), mean_square)
            facts["seconds_of_the_twin"] = time.perf_counter() - measured.began
            symmetries = narrow.transfer(model, batch, loss)
        else:
            symmetries = census(model, batch, loss)
        profiler.disable()
    if profile:
        for order in ("cumulative", "tottime"):
            pstats.Stats(profiler).sort_stats(order).print_stats(35)
    change = max(symmetry.change for symmetry in symmetries)
    facts |= {"symmetries": len(symmetries), "approximate": len(symmetries.approximate), "passes": passes}
    kind = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return facts | measured.facts() | {"worst_change": change, "kind": kind, "torch": torch.__version__}


def in_a_process(task: str, device: str, *options: str) -> dict[str, Any]:
    """Return what `measure` returns in a new process, or the end of its error."""
    command = [sys.executable, "-m", "benchmarks.torch_census_gpu", "--alone", task, device, *options]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}  # JAX would take most of the memory of the GPU
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {LIMIT} s"}
    if done.returncode:
        return {"error": done.stderr[-2000:]}
    print(*done.stdout.splitlines()[:-1], sep="\n", flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(*arguments: str) -> list[tuple[str, str, str]]:
    tiny = "tiny" in arguments
    device, prefix = ("cpu", "tiny ") if tiny else ("cuda", "")
    facts = {}
    for task in ("census", "transfer"):
        facts[task] = in_a_process(prefix + task, device, *(option for option in arguments if option == "profile"))
        print(task, json.dumps(facts[task], indent=2), flush=True)
        if not tiny:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / "torch_census_gpu.json").write_text(json.dumps(facts, indent=2) + "\n")
    rows = []
    for task, bar in (("census", SECONDS), ("transfer", TRANSFER_SECONDS)):
        fact = facts[task]
        if "error" in fact:
            rows.append((task, "failed", fact["error"].splitlines()[-1]))
            continue
        label = f"{task}, Llama of {fact['parameters'] / 1e6:,.0f}M parameters in {fact['dtype']}"
        rows += [
            (label, in_words(fact["seconds"]), f"< {bar:g} s"),
            (f"{task}: peak memory in all", f"{fact['gibibytes_peak']:.1f} GiB",
             f"< {GIBIBYTES:g} GiB" if task == "census" else ""),
            (f"{task}: beyond the model", f"{fact['gibibytes_beyond']:.1f} GiB", ""),
            (f"{task}: symmetries", str(fact["symmetries"]), f"{fact['passes']} passes"),
        ]  # fmt: skip
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        print(json.dumps(measure(*sys.argv[2:4], profile="profile" in sys.argv[4:])))
    else:
        for row in main(*sys.argv[1:]):
            print("  ".join(row))
