"""Checks of right and wrong maps on known architectures, by the census alone and with the measured change."""

import functools

import pytest
import torch
import transformers

from tests.torch.zoo import build, gpt2, language, llama_like, tokens
from undertow.torch import census, check_scaling, check_scaling_map, load_scaling_map

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ATTENTION = ["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"]
MLP = ["re:.*gate_proj", "re:.*up_proj"]


def parallel(name):
    """Return a model whose attention and MLP read the same norm."""
    facts = {
        "vocab_size": 40, "hidden_size": 32, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 4,
    }  # fmt: skip
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**facts))


@functools.cache
def model_and_census(name):
    torch.manual_seed(0)
    builders = {"Cohere": lambda: parallel("Cohere"), "Phi": lambda: parallel("Phi"), "GPT-2": gpt2}
    model = builders.get(name, lambda: llama_like(name))()
    batch = tokens()
    return model, batch, census(model, batch, language)


RIGHT = [
    ("Llama", "re:.*input_layernorm", ATTENTION),
    ("Llama", "re:.*post_attention_layernorm", MLP),
    ("Llama", "re:.*v_proj$", ["re:.*o_proj$"]),
    ("Llama", "up_proj", ["down_proj"]),
    ("Llama", "model.norm.weight", ["lm_head"]),
    ("Gemma2", "re:.*pre_feedforward_layernorm", MLP),
    ("GPT-2", "ln_1", ["c_attn"]),
    ("GPT-2", "c_attn", ["attn.c_proj"]),
    ("Cohere", "re:.*input_layernorm", [*ATTENTION, *MLP]),
    ("Phi", "re:.*input_layernorm", [*ATTENTION, "re:.*fc1"]),
]


@pytest.mark.parametrize(("name", "source", "readers"), RIGHT)
def test_a_right_map_is_proved_by_the_census_and_by_the_move(name, source, readers):
    model, batch, symmetries = model_and_census(name)
    alone = symmetries.check_scaling(source, readers)
    assert alone
    assert alone.change is None
    measured = symmetries.check_scaling(source, readers, model=model, batch=batch, loss=language)
    assert measured
    assert measured.change < 1e-12
    assert len(alone) == len(measured) == (1 if source == "model.norm.weight" else 2)


WRONG = [
    ("Llama", "re:.*input_layernorm", ATTENTION[:2], {"missing": ("model.layers.*.self_attn.v_proj",)}),
    ("Llama", "re:.*input_layernorm", MLP, {"instead": ("model.layers.*.post_attention_layernorm",)}),
    ("Llama", "re:.*input_layernorm", [*ATTENTION, "re:.*up_proj"], {"extra": ("model.layers.*.mlp.up_proj",)}),
    ("Llama", "gate_proj", ["down_proj"], {"instead": ("model.layers.*.mlp.up_proj",)}),
    ("Gemma2", "re:.*post_attention_layernorm", MLP, {"instead": ("model.layers.*.pre_feedforward_layernorm",)}),
    ("Cohere", "re:.*input_layernorm", ATTENTION,
     {"missing": ("model.layers.*.mlp.gate_proj", "model.layers.*.mlp.up_proj")}),
    ("Phi", "re:.*input_layernorm", ATTENTION, {"missing": ("model.layers.*.mlp.fc1",)}),
    ("GPT-2", "ln_1", ["c_fc"], {"instead": ("transformer.h.*.ln_2",)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source", "readers", "explained"), WRONG)
def test_a_wrong_map_is_explained_and_measured(name, source, readers, explained):
    model, batch, symmetries = model_and_census(name)
    for options in ({}, {"model": model, "batch": batch, "loss": language}):
        check = symmetries.check_scaling(source, readers, **options)
        assert not check
        assert check.verdict == "changes"
        for kind in ("missing", "extra", "instead"):
            assert set(getattr(check, kind)) == set(explained.get(kind, ()))
    assert all(layer.change > 1e-3 for layer in check)


def test_an_mlp_with_gelu_is_unproved_by_the_census_and_refuted_by_the_move():
    model, batch, symmetries = model_and_census("GPT-2")
    assert symmetries.check_scaling("c_fc", "mlp.c_proj").verdict == "unproved"
    check = symmetries.check_scaling("c_fc", "mlp.c_proj", model=model, batch=batch, loss=language)
    assert check.verdict == "changes"
    assert check.change > 1e-3


def test_a_tied_head_is_named():
    model, batch, symmetries = model_and_census("Gemma2")
    check = symmetries.check_scaling("model.norm", "lm_head", model=model, batch=batch, loss=language)
    assert check.verdict == "changes"
    assert check.layers[0].reason == "lm_head shares its weight with model.embed_tokens"
    alone = symmetries.check_scaling("model.norm", "lm_head")
    assert (alone.verdict, alone.unmatched) == ("no match", ("lm_head",))
    assert "a tied weight has the name of its first layer" in str(alone)


def test_patterns_without_layers_make_a_check_false():
    _, _, symmetries = model_and_census("Llama")
    check = symmetries.check_scaling("input_layernorm", [*ATTENTION, "re:.*indexer"])
    assert check.verdict == "preserves"
    assert check.unmatched == ("re:.*indexer",)
    assert not check


def test_the_table_has_one_row_for_the_same_layer_of_all_blocks():
    model, batch, symmetries = model_and_census("Llama")
    options = {"model": model, "batch": batch, "loss": language}
    text = str(symmetries.check_scaling("re:.*input_layernorm", ATTENTION[:2], **options))
    lines = text.splitlines()
    assert lines[0] == "re:.*input_layernorm against re:.*q_proj, re:.*k_proj: changes the function"
    assert lines[1].split("  ")[0] == "source"
    assert lines[2].startswith("model.layers.*.input_layernorm       2  changes")
    assert lines[3] == "model.layers.*.self_attn.v_proj reads model.layers.*.input_layernorm too."
    assert len(lines) == 4
    html = symmetries.check_scaling("re:.*input_layernorm", ATTENTION[:2])._repr_html_()
    assert html.count("<tr>") == 2
    assert "too many" not in html


@pytest.mark.parametrize("given", [{"model": torch.nn.Linear(2, 2)}, {"batch": 1, "loss": language}])
def test_model_batch_and_loss_are_given_together(given):
    _, _, symmetries = model_and_census("Llama")
    with pytest.raises(ValueError, match=r"`check_scaling`: got .*give all of `model`, `batch` and `loss`"):
        symmetries.check_scaling("up_proj", "down_proj", **given)


def test_a_map_is_checked_entry_by_entry(tmp_path):
    _, _, symmetries = model_and_census("Llama")
    path = tmp_path / "map.toml"
    path.write_text(
        "[[mappings]]\nsmooth_layer = 're:.*up_proj$'\nbalance_layers = ['re:.*down_proj$']\n"
        "[[mappings]]\nsmooth_layer = 're:.*input_layernorm$'\nbalance_layers = ['re:.*q_proj$']\n"
    )
    report = check_scaling_map(symmetries, load_scaling_map(path))
    assert [check.verdict for check in report] == ["preserves", "changes"]
    assert not report
    assert str(report).startswith("1 of 2 entries preserve the function\n\nre:.*up_proj$ against")
    assert report._repr_html_().count("<table>") == 3
    assert check_scaling_map(symmetries, [["down_proj", "up_proj"]])
    with pytest.raises(ValueError, match="`entries` is empty"):
        check_scaling_map(symmetries, [])


def test_layers_that_do_not_train_are_decided_by_the_move():
    model, batch, loss = build("LoRA")
    symmetries = census(model, batch, loss)
    assert symmetries.check_scaling("re:.*v_proj", ["re:.*o_proj"]).verdict == "unproved"
    check = check_scaling(symmetries, "re:.*v_proj", ["re:.*o_proj"], model=model, batch=batch, loss=loss)
    assert check
    assert "double precision" in check.layers[0].reason
