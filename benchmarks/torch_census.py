"""Run time and memory of the census and of the move to noise equilibrium, for a Llama of 23 million parameters.

    python -m benchmarks.torch_census

Also the census of a Llama of 24 layers, for its number of passes, and of one of 100 million parameters, for its time
and memory per parameter. Each runs in its own process, so that its peak memory can be measured.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.harness import in_words, peak_mebibytes, save

SECONDS, BYTES, PASSES = 4.0, 14.0, 60
"""Bars: seconds at 23 million parameters, bytes per parameter beyond the model, forward passes at 24 layers."""
BATCHES = 16
SIZES = {
    "census": (9000, 384, 1024, 10, 6, 3),
    "equilibrate": (9000, 384, 1024, 10, 6, 3),
    "deep": (9000, 256, 688, 24, 4, 2),
    "large": (16000, 768, 2048, 12, 12, 6),
}
"""Vocabulary, width, width of the MLP, layers, heads and key heads of each Llama."""


def llama(task: str = "census") -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    vocabulary, width, hidden, layers, heads, key_heads = SIZES[task]
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, max_position_embeddings=256,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def resident_bytes() -> int:
    """Return the memory that this process holds now (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(task: str) -> dict[str, Any]:
    import torch

    from undertow.torch import census, equilibrate

    model = llama(task)
    passes = 0

    def draw(count: int, length: int) -> dict[str, Any]:
        tokens = torch.randint(0, 9000, (count, length))
        return {"input_ids": tokens, "labels": tokens}

    def loss(net: Any, batch: Any) -> Any:
        nonlocal passes
        passes += 1
        return net(**batch).loss

    facts: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__}
    batch = draw(1, 16)
    with torch.no_grad():
        loss(model, batch)  # loads what a forward pass needs
    passes, held = 0, resident_bytes()
    began, used = time.perf_counter(), time.process_time()
    symmetries = census(model, batch, loss)
    if task == "equilibrate":
        batches = [draw(2, 32) for _ in range(BATCHES)]
        began, used = time.perf_counter(), time.process_time()
        done = equilibrate(model, batches, loss, symmetries, step_size=0.1)
        facts |= {"change": done.change, "imbalance": done.imbalance, "noise": [e.value for e in done.noise]}
    else:
        facts |= {"symmetries": len(symmetries), "approximate": len(symmetries.approximate), "passes": passes}
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    facts["bytes_per_parameter"] = (peak_mebibytes() * 2**20 - held) / facts["parameters"]
    return facts | {
        "seconds": wall, "cpu_seconds": cpu, "gibibytes": peak_mebibytes() / 2**10, "threads": torch.get_num_threads(),
    }  # fmt: skip


def main() -> list[tuple[str, str, str]]:
    facts = {}
    for task in SIZES:
        command = [sys.executable, "-m", "benchmarks.torch_census", task]
        shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        facts[task] = json.loads(shown.splitlines()[-1])
    save("torch_census", facts)
    search, move, deep, large = (facts[task] for task in SIZES)
    per_million = lambda fact: in_words(fact["cpu_seconds"] / fact["parameters"] * 1e6)
    memory = lambda fact: f"{fact['bytes_per_parameter']:.1f} bytes"
    return [
        (
            f"census of a Llama with {search['parameters'] / 1e6:.0f}M parameters",
            in_words(search["seconds"]),
            f"< {SECONDS:g} s",
        ),
        ("census: CPU time", in_words(search["cpu_seconds"]), ""),
        ("census: forward passes", str(search["passes"]), ""),
        ("census: memory per parameter beyond the model", memory(search), f"< {BYTES:g} bytes"),
        ("census: symmetries, exact", str(search["symmetries"]), "51"),
        ("census: symmetries, approximate", str(search["approximate"]), "1"),
        ("census of 24 layers: forward passes", str(deep["passes"]), f"<= {PASSES}"),
        ("census: CPU time per million parameters", per_million(search), ""),
        (f"the same at {large['parameters'] / 1e6:.0f}M parameters", per_million(large), "falls"),
        ("the same: memory per parameter beyond the model", memory(large), f"< {BYTES:g} bytes"),
        (f"equilibrium at 23M parameters, {BATCHES} batches of 64 tokens", in_words(move["seconds"]), ""),
        ("equilibrium: CPU time", in_words(move["cpu_seconds"]), ""),
        ("equilibrium: peak memory", f"{move['gibibytes']:.2f} GiB", ""),
        ("equilibrium: change of outputs", f"{move['change']:.0e}", "< 1e-5"),
    ]


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measure(sys.argv[1])))
    else:
        for row in main():
            print("  ".join(row))
