"""Run time and memory of the census and of the move to noise equilibrium, for a Llama of 23 million parameters.

    python -m benchmarks.torch_census

Each runs in its own process, so that its peak memory can be measured.
"""

import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.harness import in_words, peak_mebibytes, save

SECONDS, GIBIBYTES = 15.0, 4.0
BATCHES = 16


def llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=9000, hidden_size=384, intermediate_size=1024, num_hidden_layers=10, num_attention_heads=6,
        num_key_value_heads=3, max_position_embeddings=256,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def measure(task: str) -> dict[str, Any]:
    import torch

    from undertow.torch import census, equilibrate

    model = llama()

    def draw(count: int, length: int) -> dict[str, Any]:
        tokens = torch.randint(0, 9000, (count, length))
        return {"input_ids": tokens, "labels": tokens}

    loss = lambda net, batch: net(**batch).loss
    facts: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__}
    batch = draw(1, 16)
    began, used = time.perf_counter(), time.process_time()
    symmetries = census(model, batch, loss)
    if task == "equilibrate":
        batches = [draw(2, 32) for _ in range(BATCHES)]
        began, used = time.perf_counter(), time.process_time()
        done = equilibrate(model, batches, loss, symmetries, step_size=0.1)
        facts |= {"change": done.change, "imbalance": done.imbalance, "noise": [e.value for e in done.noise]}
    else:
        facts |= {"symmetries": len(symmetries), "approximate": len(symmetries.approximate)}
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    return facts | {
        "seconds": wall, "cpu_seconds": cpu, "gibibytes": peak_mebibytes() / 2**10, "threads": torch.get_num_threads(),
    }  # fmt: skip


def main() -> list[tuple[str, str, str]]:
    facts = {}
    for task in ("census", "equilibrate"):
        command = [sys.executable, "-m", "benchmarks.torch_census", task]
        shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        facts[task] = json.loads(shown.splitlines()[-1])
    save("torch_census", facts)
    search, move = facts["census"], facts["equilibrate"]
    return [
        (
            f"census of a Llama with {search['parameters'] / 1e6:.0f}M parameters",
            in_words(search["seconds"]),
            f"< {SECONDS:g} s",
        ),
        ("census: CPU time", in_words(search["cpu_seconds"]), ""),
        ("census: peak memory", f"{search['gibibytes']:.2f} GiB", f"< {GIBIBYTES:g} GiB"),
        ("census: symmetries, exact", str(search["symmetries"]), "51"),
        ("census: symmetries, approximate", str(search["approximate"]), "1"),
        (f"equilibrium of the same Llama, {BATCHES} batches of 64 tokens", in_words(move["seconds"]), ""),
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
