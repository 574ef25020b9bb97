"""The study of scaling maps: its models, its page, and the lists of the tool where it is installed."""

import importlib.util

import pytest
import torch
import transformers

from studies import scaling_maps
from studies.results import ROOT, load
from studies.scaling_maps_models import ARCHITECTURES, COMMON, batch_of, build, language_loss, linearise_experts
from studies.scaling_maps_page import WRITTEN, page
from undertow.torch import ScalingEntry

pytestmark = pytest.mark.torch

ATTENTION = ScalingEntry("re:.*input_layernorm$", ("re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"))
NEEDED = ("llmcompressor", "compressed_tensors", "loguru")
EXPERTS = ("re:.*mlp.experts.*.gate_proj$", "re:.*mlp.experts.*.up_proj$")


def of_text(name):
    config = getattr(transformers, name).config_class(**COMMON | ARCHITECTURES[name])
    config._experts_implementation = config._attn_implementation = "eager"
    return getattr(transformers, name)(config)


@pytest.mark.parametrize("name", ["MixtralForCausalLM", "Qwen2MoeForCausalLM", "Cohere2MoeForCausalLM"])
def test_linear_experts_compute_what_fused_experts_compute(name):
    torch.manual_seed(0)
    model, batch = of_text(name).eval(), batch_of(name)
    with torch.no_grad():
        fused = model(**batch).logits
        linear = linearise_experts(model)(**batch).logits
    assert any("experts.3.up_proj" in key for key, _ in model.named_parameters())
    torch.testing.assert_close(linear, fused, rtol=1e-5, atol=1e-6)


def test_linear_experts_of_llama_4_compute_what_fused_experts_compute():
    from transformers.models.llama4.modeling_llama4 import Llama4TextMoe

    torch.manual_seed(0)
    facts = ARCHITECTURES["Llama4ForConditionalGeneration"]
    mixture = Llama4TextMoe(transformers.Llama4TextConfig(**COMMON | facts))
    for parameter in mixture.parameters():
        torch.nn.init.normal_(parameter)
    states = torch.randn(2, 5, 24)
    with torch.no_grad():
        fused = mixture(states)[0].clone()
        linear = linearise_experts(mixture)(states)[0]
    torch.testing.assert_close(linear, fused, rtol=1e-5, atol=1e-4)


def test_a_missing_router_is_found_and_a_full_list_is_right(monkeypatch):
    monkeypatch.setattr(scaling_maps, "listed", lambda algorithm, name: True)
    norm = "re:.*post_attention_layernorm$"
    lists = {"AWQ": lambda model: [ATTENTION, ScalingEntry(norm, EXPERTS), ScalingEntry(norm, ("mlp.gate", *EXPERTS))]}
    found = scaling_maps.study(["MixtralForCausalLM"], lists, lambda model, entry: None)["MixtralForCausalLM"]
    assert [entry["wrong"] for entry in found["AWQ"]] == [0, 2, 0]
    assert found["AWQ"][1]["missing"] == ["model.layers.*.mlp.gate"]
    assert found["AWQ"][1]["change"] > 0.01
    assert max(entry["change"] for entry in found[WRITTEN]) < 1e-12
    experts = [entry for entry in found[WRITTEN] if "experts" in entry["source"]]
    assert [entry["layers"] for entry in experts] == [8]


def test_the_page_is_that_of_the_stored_results():
    assert (ROOT / "docs" / "studies" / "scaling-maps.md").read_text() == page(load("scaling-maps"))


def test_other_pages_quote_the_stored_counts():
    found = load("scaling-maps")["architectures"]
    lists = [entries for own in found.values() for algorithm, entries in own.items() if algorithm != WRITTEN]
    written = [entry for own in found.values() for entry in own[WRITTEN]]
    wrong = sum(any(entry["wrong"] for entry in entries) for entries in lists)
    practice = (ROOT / "docs" / "practice.md").read_text()
    assert f"has {len(lists)} lists of such layers, for {len(found)} architectures. {wrong} of the lists" in practice
    assert f"None of the {len(written)} entries that undertow writes changes the function" in practice
    assert not any(entry["wrong"] for entry in written)
    assert f"the lists of a tool for {len(found)} architectures" in (ROOT / "docs/howto/scaling-maps.md").read_text()


@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "WhisperForConditionalGeneration"])
def test_models_have_a_loss_with_gradients(name):
    model = build(name)
    language_loss(model, batch_of(name)).backward()
    assert sum(parameter.grad is None for parameter in model.parameters()) <= 1


@pytest.mark.slow
@pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason="needs llm-compressor")
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma2ForCausalLM", "Qwen2MoeForCausalLM"])
def test_the_lists_of_the_tool_give_the_stored_verdicts(name):
    found = scaling_maps.study([name], scaling_maps.tool_lists(), scaling_maps.tool_matching())[name]
    stored = load("scaling-maps")["architectures"][name]
    for algorithm, entries in stored.items():
        for now, before in zip(found[algorithm], entries, strict=True):
            assert now["matching"] == "same"
            for key in ("source", "readers", "layers", "wrong", "missing", "extra", "instead", "matching"):
                assert now[key] == before[key]
