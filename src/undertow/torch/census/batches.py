"""Random batches for networks of `transformers`, and a loss that every network has."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["mean_square", "random_batch"]

SAMPLES, TOKENS = 2, 12


def random_batch(model: nn.Module, *, seed: int = 0) -> dict[str, Tensor]:
    """Return a small batch of random tokens or pixels for a network of `transformers`, on its device.

    >>> from transformers import GPT2Config
    >>> from undertow.torch import narrow_twin
    >>> from undertow.torch.census.batches import random_batch
    >>> print(random_batch(narrow_twin(GPT2Config()))["input_ids"].shape)
    torch.Size([2, 12])
    """
    generator = torch.Generator().manual_seed(seed)
    parameter = next(model.parameters())
    config, name = model.config, model.main_input_name
    if name == "input_ids":
        # the last tokens of a vocabulary are often special ones
        largest = max(2, config.get_text_config().vocab_size * 9 // 10)
        tokens = lambda: torch.randint(1, largest, (SAMPLES, TOKENS), generator=generator).to(parameter.device)
        batch = {"input_ids": tokens()}
        return batch | ({"decoder_input_ids": tokens()} if getattr(config, "is_encoder_decoder", False) else {})
    if name == "pixel_values":
        side = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
        pixels = torch.randn((SAMPLES, config.num_channels, *side), generator=generator)
        return {"pixel_values": pixels.to(parameter)}
    raise ValueError(
        f"a random batch for {type(model).__name__} is not known (its input is {name!r}): give your own batch and loss."
    )


def mean_square(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean square of the outputs of a network, a loss that needs no labels."""
    out = model(**batch)
    named = [out.get(name) for name in ("logits", "last_hidden_state")]
    tensors = [value for value in (*named, *out.values()) if isinstance(value, Tensor)]
    return tensors[0].square().mean()
