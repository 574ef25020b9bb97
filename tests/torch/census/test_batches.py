"""Random batches fit their networks."""

import pytest
import torch

from tests.torch.transfers import network
from undertow.torch.census.batches import mean_square, random_batch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["GPT2", "T5", "ViT", "Bert"])
def test_a_random_batch_fits_the_network(name):
    model = network(name).eval()  # without dropout
    batch = random_batch(model)
    value = mean_square(model, batch)
    assert value.requires_grad
    out = model(**batch)
    assert value.item() == pytest.approx(out.logits.square().mean().item(), rel=1e-5)
    again, other = random_batch(model), random_batch(model, seed=1)
    assert all(torch.equal(again[key], batch[key]) for key in batch)
    assert not all(torch.equal(other[key], batch[key]) for key in batch)
    if "input_ids" in batch:
        assert batch["input_ids"].max() < model.config.vocab_size


def test_pixels_have_the_precision_of_the_network():
    model = network("ViT").bfloat16()
    assert random_batch(model)["pixel_values"].dtype == torch.bfloat16


def test_another_input_is_refused():
    import transformers

    config = transformers.Wav2Vec2Config(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, conv_dim=(4, 4),
        conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="random batch for Wav2Vec2Model is not known"):
        random_batch(transformers.Wav2Vec2Model(config))
