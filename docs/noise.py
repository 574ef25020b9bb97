"""The figure of docs/howto/watching-noise.md: `python -m docs.noise` trains a small Llama and writes docs/images."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from undertow.figures.export import to_svg
from undertow.torch import NoiseMonitor, census

IMAGE = Path(__file__).parent / "images" / "watching-noise.svg"
TOKENS = 40


def run(steps: int = 600, batch_size: int = 16) -> NoiseMonitor:
    """Return the monitor of a Llama with two layers, trained by SGD on sequences of a Markov chain."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=TOKENS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    chain = torch.rand(TOKENS, TOKENS) ** 8
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def draw() -> dict[str, torch.Tensor]:
        tokens = [torch.randint(0, TOKENS, (batch_size,))]
        while len(tokens) < 16:
            tokens.append(torch.multinomial(chain[tokens[-1]], 1)[:, 0])
        both = torch.stack(tokens, 1)
        return {"input_ids": both, "labels": both}

    loss = lambda model, batch: model(**batch).loss
    with NoiseMonitor(model, census(model, draw(), loss), every=10, window=20) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model, draw()).backward()
            optimizer.step()
    return monitor


if __name__ == "__main__":
    IMAGE.write_text(to_svg(run().plot()))
