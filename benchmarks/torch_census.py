"""The census of a Llama of 23 million parameters: seconds and memory, on one thread.

python -m benchmarks.torch_census
"""

import resource
import time
from typing import Any

from benchmarks.harness import in_words, save

SECONDS, GIBIBYTES = 15.0, 4.0


def llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=9000, hidden_size=384, intermediate_size=1024, num_hidden_layers=10, num_attention_heads=6,
        num_key_value_heads=3, max_position_embeddings=256,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def main() -> list[tuple[str, str, str]]:
    import torch

    from undertow.torch import census

    torch.set_num_threads(1)  # two threads wait for each other on a busy machine
    model = llama()
    tokens = torch.randint(0, 9000, (1, 16))
    batch = {"input_ids": tokens, "labels": tokens}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    began, used = time.perf_counter(), time.process_time()
    found = census(model, batch, lambda net, b: net(**b).loss)
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    count = sum(p.numel() for p in model.parameters())
    save("torch_census", {
        "parameters": count, "relations": len(found), "approximate": len(found.approximate), "seconds": wall,
        "cpu_seconds": cpu, "gibibytes": peak, "gibibytes_before": before, "torch": torch.__version__,
    })  # fmt: skip
    return [
        (f"census of a Llama with {count / 1e6:.0f}M parameters", in_words(wall), f"< {SECONDS:g} s"),
        ("census: CPU time", in_words(cpu), ""),
        ("census: peak memory", f"{peak:.2f} GiB", f"< {GIBIBYTES:g} GiB"),
        ("census: symmetries, exact", str(len(found)), "51"),
        ("census: symmetries, approximate", str(len(found.approximate)), "1"),
    ]


if __name__ == "__main__":
    for row in main():
        print("  ".join(row))
