"""The zoo: its rows, what it does when something fails, and the whole of it."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from studies import zoo
from studies.results import ROOT, load
from studies.zoo_transformers import Example
from tests.torch.generator import square

pytestmark = pytest.mark.torch

IN_THE_TABLE = (
    "Mistral", "Phi-3", "OPT", "MPT", "BLOOM", "T5", "T5, gated", "BART", "RoBERTa", "DistilBERT", "DeBERTa-v2",
    "ALBERT", "ViT", "Swin", "ConvNeXt", "Whisper", "Gemma 2", "Gemma 3", "OLMo", "OLMo 2", "Cohere", "Granite",
    "GPT-Neo", "GPT-J", "GPT-NeoX", "ELECTRA", "GPTBigCode", "Mixtral", "Qwen3-MoE", "DeepSeek-V3",
    "Falcon, one key head", "Falcon, key heads", "CLIP", "Mamba", "Mamba 2", "RWKV", "Qwen2", "Qwen3", "Llama", "Phi",
    "StableLM", "Persimmon", "Gemma", "LSTM", "GRU", "RNN, relu, two layers", "nn.Transformer",
    "nn.TransformerEncoder", "nn.MultiheadAttention", "LeNet", "VAE", "U-Net", "DenseNet block",
)  # fmt: skip


def example() -> Example:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 3))
    return Example(model, torch.randn(6, 5), square)


def test_the_zoo_has_the_architectures():
    names = [name for builders in zoo.LIBRARIES.values() for name in builders]
    assert len(names) == len(set(names)) >= 60
    assert not set(IN_THE_TABLE) - set(names)


def test_a_row():
    row = zoo.measure("small", "torch.nn", example)
    assert (row.found, row.reference, row.false, row.missed, row.error) == (4, 4, 0, 0, "")
    assert row.matrices
    assert row.approximate == (1, 1)  # the scale of the first layer
    assert row.change < 1e-12


def test_references_are_computed_once(tmp_path, monkeypatch):
    first = zoo.measure("small", "torch.nn", example, folder=tmp_path)
    monkeypatch.setattr(zoo, "reference", lambda *args, **options: pytest.fail("the reference is stored"))
    second = zoo.measure("small", "torch.nn", example, folder=tmp_path)
    assert replace(second, seconds=0.0) == replace(first, seconds=0.0)


OF_THE_SECOND_EDITION = (
    "Mixtral", "Qwen3-MoE", "LeNet", "VAE", "U-Net", "DenseNet block", "DeepSeek-V3", "Falcon, key heads",
    "Falcon, head by head", "GPT-J", "CLIP", "nn.Transformer", "Mamba", "RWKV", "OLMo with clip_qkv",
    "torchvision EfficientNet",
)  # fmt: skip
"""Architectures on which an earlier census failed, found false symmetries or missed some."""


@pytest.mark.parametrize("name", OF_THE_SECOND_EDITION)
def test_the_stored_rows_of_the_second_edition_are_complete(name):
    (row,) = (row for row in load(zoo.NAME)["rows"] if row["name"] == name)
    assert (row["error"], row["false"], row["missed"]) == ("", 0, 0)
    assert row["reference"] > 0
    assert row["change"] <= zoo.MOVED_RTOL


def test_a_crash_of_the_census_is_a_row(monkeypatch):
    def crash(*args):
        raise RuntimeError("no kernel\nfor float64")

    monkeypatch.setattr(zoo, "census", crash)
    row = zoo.measure("small", "torch.nn", example)
    assert (row.reference, row.missed, row.error) == (4, 4, "census: RuntimeError: no kernel")


def test_an_architecture_that_cannot_be_built_is_a_row():
    def build():
        raise ImportError("no module timm")

    assert zoo.measure("timm", "timm", build).error == "not built: ImportError: no module timm"


def test_some_architectures_are_printed_and_nothing_is_written(monkeypatch, capsys):
    monkeypatch.setattr(zoo, "LIBRARIES", {"torch.nn": {"small": example, "other": example}})
    monkeypatch.setattr(zoo.results, "save", lambda *args: pytest.fail("nothing should be written"))
    monkeypatch.setattr(sys, "argv", ["zoo", "--only", "small"])
    zoo.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "small 4 4 0 0" in lines[0]


def test_the_page_counts_what_is_in_the_rows():
    crashed = zoo.asdict(zoo.Row("b", "timm", 9, reference=5, missed=5, error="census: RuntimeError: no"))
    rows = [
        zoo.asdict(zoo.Row("a", "torch.nn", 9, found=3, reference=4, missed=1, missed_vectors=("w@0{0: +1}",))),
        crashed,
    ]
    facts = {"rows": rows, "versions": {}, "seconds": 1.0, "device": "CPU", "torch": "2"}
    text = zoo.page(facts)
    assert "finds 3 of 9 charges. 0 of its charges are false. On 0 of 2 architectures" in text
    assert "fails with an error on 1" in text
    assert "change by at most 0e+00 of their size." in text
    assert "| a | 3 | 4 | 0 | 1 | 0 | 0 of 0 | 0.0 |  |" in text
    assert "`w@0{0: +1}`" in text


def test_the_stored_page_equals_that_of_the_stored_results():
    assert (ROOT / "docs" / "studies" / "zoo.md").read_text() == zoo.page(load(zoo.NAME))


@pytest.fixture(scope="module")
def rows():
    return [row for row in zoo.study()["rows"] if not row["error"].startswith("not ")]


@pytest.mark.slow
def test_no_symmetry_of_the_zoo_is_false(rows):
    assert len(rows) >= 60
    assert not [row["name"] for row in rows if row["false"] or row["change"] > zoo.MOVED_RTOL]


@pytest.mark.slow
def test_the_census_of_the_zoo_is_complete(rows):
    missed = {row["name"]: row["missed"] for row in rows if row["missed"]}
    assert sum(missed.values()) <= 0.01 * sum(row["reference"] for row in rows), missed


DRAWN = ("Llama", "Qwen3", "GPT-2", "T5", "Mixtral", "LeNet", "U-Net", "nn.Transformer", "GPT-NeoX", "VAE")


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_the_census_does_not_depend_on_its_random_weights(name):
    (build,) = (builders[name] for builders in zoo.LIBRARIES.values() if name in builders)
    torch.manual_seed(0)
    model, batch, loss = build()
    found = [zoo.census(model, batch, loss, seed=seed) for seed in range(6)]
    assert len({sum(symmetry.generators for symmetry in one) for one in found}) == 1
    changes = [max(zoo.moves_function(model, s, batch, loss, eps=zoo.EXACT_EPS)) for one in found[1:] for s in one]
    assert max(changes) <= zoo.MOVED_RTOL
