"""`undertow census`: a user's own file and folders with models, as a table and as JSON, and mistakes as sentences."""

import json
import pickle

import pytest
import torch

from tests.cli.calls import call
from tests.torch.transfers import configuration, contents, network
from undertow.torch import Census, census
from undertow.torch.census.batches import mean_square, random_batch

pytestmark = pytest.mark.torch

FILE = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
batch = torch.randn(8, 3)

def loss(model, batch):
    return model(batch).square().mean()

network = (model, batch, loss)
def make():
    return network
def fails():
    raise RuntimeError("no data")
swapped = (model, loss, batch)
without_loss = (model, batch, batch)
several = (model, [batch, batch], loss)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model in bfloat16 with its weights in safetensors."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("llama")
    network("Llama", dtype="bfloat16").bfloat16().save_pretrained(path)
    return path


@pytest.mark.parametrize("name", ["network", "make", "swapped"])
def test_a_file_of_ones_own(name, file, capsys, tmp_path):
    status, shown, progress = call(capsys, "census", f"{file}:{name}", "--json", tmp_path / "c.json")
    assert status == 0
    assert "6 scales" in shown
    assert "searching the symmetries of Sequential with 31 parameters" in progress
    assert [str(s) for s in Census.load(tmp_path / "c.json")] == [
        "rescaling, 6 scales: 0.weight[i, :], 0.bias against 2.weight[:, i]"
    ]


MAP = """
[[mappings]]
smooth_layer = '0'
balance_layers = ['2']
"""


def test_a_scaling_map_is_checked(file, capsys, tmp_path):
    right, wrong = tmp_path / "right.toml", tmp_path / "wrong.toml"
    right.write_text(MAP)
    wrong.write_text(MAP.replace("'0'", "'2'").replace("['2']", "['0']"))
    status, shown, _ = call(capsys, "census", f"{file}:network", "--check", right)
    assert (status, "preserves" in shown) == (0, True)
    status, shown, _ = call(capsys, "census", f"{file}:network", "--check", wrong)
    assert status == 1
    status, _, complaint = call(capsys, "census", f"{file}:network", "--check", tmp_path / "none.toml")
    assert status == 2
    assert "none.toml" in complaint


def test_json_on_the_standard_output_is_alone(file, capsys, tmp_path):
    status, shown, _ = call(capsys, "census", f"{file}:network", "--json")
    assert status == 0
    assert json.loads(shown)["format"] == "undertow census"
    (tmp_path / "c.json").write_text(shown)
    assert len(Census.load(tmp_path / "c.json")) == 1


def test_a_folder_with_weights(folder, capsys, tmp_path):
    status, shown, progress = call(capsys, "census", folder, "--json", tmp_path / "c.json")
    assert status == 0
    assert "model.layers.*.self_attn" in shown
    assert "x 5 layers" in shown
    assert f"Proved on the weights of {folder}." in shown
    for stage in ("narrow twin of llama", "searching the symmetries of the twin", "loading the weights", "proving"):
        assert stage in progress
    model = network("Llama")
    direct = census(model, random_batch(model), mean_square)
    assert contents(Census.load(tmp_path / "c.json")) == contents(direct)


def test_a_folder_with_a_configuration_alone(capsys, tmp_path):
    configuration("Llama", hidden_size=4096, num_attention_heads=32, head_dim=128, num_hidden_layers=32,
                  intermediate_size=11008).save_pretrained(tmp_path)  # fmt: skip
    status, shown, _ = call(capsys, "census", tmp_path)
    assert status == 0
    assert "11008 scales" in shown
    assert "x 32 layers" in shown
    assert "Proved on a narrow twin; the folder has no weights." in shown


def test_weights_that_compute_something_else_are_refused(folder, capsys, monkeypatch):
    """A census of a twin that has more symmetries than the model is not carried over."""
    original = network("Llama").__class__.from_pretrained

    def broken(*args, **options):
        model, loading = original(*args, **options)
        model.model.layers[2].mlp.up_proj.register_forward_hook(lambda module, args, out: torch.tanh(4 * out))
        return model, loading

    monkeypatch.setattr(network("Llama").__class__, "from_pretrained", broken)
    status, _, complaint = call(capsys, "census", folder)
    assert status == 2
    assert "1 of 26 symmetries" in complaint
    assert "up against down" in complaint


class Trap:
    """An object that would leave a trace if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_pickled_weights_are_refused_and_not_read(capsys, tmp_path):
    configuration("Llama").save_pretrained(tmp_path / "model")
    trace = tmp_path / "trace"
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(trace)))
    status, _, complaint = call(capsys, "census", tmp_path / "model")
    assert status == 2
    assert "pytorch_model.bin only, which can execute code" in complaint
    assert not trace.exists()


BAD = {
    "no configuration": ({"readme.md": ""}, "there is no config.json"),
    "no JSON": ({"config.json": "hello"}, "not a configuration of transformers"),
    "no model type": ({"config.json": "{}"}, "it has no `model_type`"),
    "unknown architecture": (
        {"config.json": '{"model_type": "perpetuum"}'}, "has no architecture 'perpetuum'"
    ),
    "code in the folder": (
        {"config.json": '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}'}, "is not executed"
    ),
    "damaged weights": ({"model.safetensors": "nothing"}, "the weights cannot be loaded"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_folders_that_cannot_be_read(what, capsys, tmp_path):
    files, sentence = BAD[what]
    if "model.safetensors" in files:
        configuration("Llama").save_pretrained(tmp_path)
    for name, text in files.items():
        write(tmp_path / name, text)
    status, _, complaint = call(capsys, "census", tmp_path)
    assert status == 2
    assert sentence in complaint
    assert "Traceback" not in complaint


MISTAKES = {
    "no loss": ("mine.py:without_loss", "is (Sequential, Tensor, Tensor); let the object be (model, batch, loss)"),
    "a list of batches": ("mine.py:several", "give one batch, not a list of batches"),
    "a model alone": ("mine.py:model", "let the object be (model, batch, loss)"),
    "an error in the function": ("mine.py:fails", "cannot be run: RuntimeError: no data"),
    "no object": ("mine.py", "name an object of the file as well, such as mine.py:network"),
    "no such object": ("mine.py:other", "has no object 'other'"),
    "no such file": ("other.py:network", "there is no such file"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_files_that_cannot_be_used(what, file, capsys, monkeypatch):
    monkeypatch.chdir(file.parent)
    target, sentence = MISTAKES[what]
    status, _, complaint = call(capsys, "census", target)
    assert status == 2
    assert sentence in complaint


def test_weights_that_are_missing_are_named(capsys, tmp_path):
    from safetensors.torch import load_file, save_file

    network("Llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    status, _, complaint = call(capsys, "census", tmp_path)
    assert status == 2
    assert "the weights of model.norm.weight are missing" in complaint


def test_without_transformers_a_folder_is_refused(folder, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    status, _, complaint = call(capsys, "census", folder)
    assert status == 2
    assert "needs transformers; install it with" in complaint
