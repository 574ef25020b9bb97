"""`undertow equilibrate`: files and folders, dry runs, safetensors, and mistakes as sentences."""

import pytest
import torch
from safetensors.torch import load_file, load_model

from tests.cli.calls import call
from tests.torch.families import transformer

pytestmark = pytest.mark.torch

FILE = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
with torch.no_grad():
    model[0].weight *= 6
batches = [torch.randn(8, 3) for _ in range(6)]

def loss(model, batch):
    return (model(batch) - batch[:, :2].sin()).square().mean()

network = (model, batches, loss)
data = (model, torch.utils.data.StackDataset(torch.randn(64, 3)), lambda model, batch: loss(model, batch[0]))
half = (nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).half(), [b.half() for b in batches], loss)
def make():
    return network
def fails():
    raise RuntimeError("no data")
swapped = (model, loss, batches)
without_loss = (model, batches, batches)
pair = (model, (batches[0], batches[0][:, 0]), loss)
one = (model, batches[:1], loss)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(9, 4), nn.Linear(4, 5), nn.Linear(5, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(0.5))
    def forward(self, ids):
        return self.head(self.scale * self.down(self.up(self.embed(ids)).relu()))

tied = (Tied(), [torch.randint(0, 9, (8,)) for _ in range(6)],
        lambda model, ids: nn.functional.cross_entropy(model(ids), (ids + 1) % 9))

class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)), 0
    def forward(self, x):
        return self.net(x)

calls = iter(range(1, 10**6))
grows = (Drawn(), batches, lambda model, batch: loss(model, batch) * next(calls))
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def fresh(name, file):
    """Return an object of the file as it is before the move."""
    namespace = {}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    return namespace[name]


@pytest.mark.parametrize("name", ["network", "make", "swapped", "data"])
def test_a_file_of_ones_own(name, file, capsys):
    status, shown, progress = call(
        capsys, "equilibrate", f"{file}:{name}", "--step-size", 0.1, "--out", "w.safetensors"
    )
    assert status == 0
    assert "1 symmetry moved" in shown
    assert "0.weight[i, :], 0.bias against 2.weight[:, i]" in shown
    assert "noise power:" in shown
    assert "Weights: w.safetensors" in shown
    assert "searching symmetries ..." in progress
    model, batches, _ = fresh("network", file)
    before, old = model(batches[0]), model[0].weight.detach().clone()
    load_model(model, "w.safetensors")
    torch.testing.assert_close(model(batches[0]), before, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model[0].weight, old, rtol=0.1)
    assert sorted(p.name for p in file.parent.iterdir() if p.name != "__pycache__") == ["mine.py", "w.safetensors"]


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_dry_run_prints_what_would_be_moved_and_writes_nothing(optimiser, file, capsys):
    options = ("--step-size", 0.01, "--weight-decay", 0.1, "--optimiser", optimiser)
    status, shown, _ = call(capsys, "equilibrate", f"{file}:network", *options, "--dry-run")
    assert status == 0
    assert "1 symmetry would be moved" in shown
    assert "dry run: the model was not changed" in shown
    assert {"sgd": "noise plus", "adamw": "standard deviations plus"}[optimiser] + " weight penalty:" in shown
    assert not list(file.parent.glob("*.safetensors"))
    assert call(capsys, "equilibrate", f"{file}:network", *options, "--out", "w.safetensors")[0] == 0
    assert list(file.parent.glob("*.safetensors"))


def test_an_older_file_is_replaced_only_with_force(file, capsys):
    target = file.parent / "w.safetensors"
    target.write_text("old")
    arguments = ("equilibrate", f"{file}:network", "--step-size", 0.1, "--out", target)
    assert call(capsys, *arguments)[0] == 2
    assert target.read_text() == "old"
    assert call(capsys, *arguments, "--force")[0] == 0
    assert set(load_file(target)) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_tied_weights_are_written_once_and_buffers_too(file, capsys):
    status, _, _ = call(capsys, "equilibrate", f"{file}:tied", "--step-size", 0.1, "--out", "w.safetensors")
    assert status == 0
    saved = load_file("w.safetensors")
    assert len({"embed.weight", "head.weight"} & set(saved)) == 1
    assert "scale" in saved
    model, batches, _ = fresh("tied", file)
    before = model(batches[0])
    load_model(model, "w.safetensors")
    assert model.head.weight is model.embed.weight
    torch.testing.assert_close(model(batches[0]), before, rtol=1e-4, atol=1e-5)


def test_a_file_that_cannot_be_written_is_reported_and_nothing_is_left(file, capsys, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("undertow.analysis.equilibrate.save_model", full)
    status, _, complaint = call(capsys, "equilibrate", f"{file}:network", "--step-size", 0.1, "--out", "w.safetensors")
    assert status == 2
    assert "the weights cannot be written: [Errno 28] No space left" in complaint
    assert sorted(p.name for p in file.parent.iterdir() if p.name != "__pycache__") == ["mine.py"]


MISTAKES = {
    "no loss": ("without_loss", "let the object be (model, batches, loss)"),
    "inputs and targets of one batch": ("pair", "as inputs and targets of one batch do; give a list of batches"),
    "a model alone": ("model", "let the object be (model, batches, loss)"),
    "an error in the function": ("fails", "cannot be run: RuntimeError: no data"),
    "no such object": ("other", "has no object 'other'"),
    "one batch": ("one", "at least 2 are needed to measure noise"),
    "half precision": ("half", "call `model.float()` first"),
    "a loss that cannot be repeated": ("grows", "a forward pass must be deterministic"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_files_that_cannot_be_used(what, file, capsys):
    name, sentence = MISTAKES[what]
    status, _, complaint = call(capsys, "equilibrate", f"{file}:{name}", "--step-size", 0.1, "--dry-run")
    assert status == 2
    assert sentence in complaint
    assert "Traceback" not in complaint


DATA = """
import torch

torch.manual_seed(0)
def words():
    tokens = torch.randint(3, 40, (3, 6))
    return {"input_ids": tokens, "labels": tokens}
batches = [words() for _ in range(4)]
both = (batches, lambda model, batch: 2 * model(**batch).loss)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama with a tied head, in bfloat16."""
    path = tmp_path_factory.mktemp("llama") / "model"
    torch.manual_seed(0)
    options = {
        "vocab_size": 40, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": 16, "head_dim": 4, "tie_word_embeddings": True,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    transformer("Llama", options).bfloat16().save_pretrained(path)
    (path.parent / "data.py").write_text(DATA)
    return path


def test_a_folder_with_batches_of_ones_own(folder, capsys, tmp_path):
    import transformers

    data = folder.parent / "data.py"
    out = tmp_path / "model.safetensors"
    common = ("equilibrate", folder, "--step-size", 0.1)
    status, shown, progress = call(capsys, *common, "--batches", f"{data}:batches", "--out", out)
    assert status == 0
    assert "model.layers.*" in shown
    assert "narrow twin of llama" in progress
    saved = load_file(out)
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    assert "lm_head.weight" not in saved
    load = lambda path: transformers.LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
    before = load(folder)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    after = load(tmp_path)
    tokens = torch.randint(3, 40, (2, 6))
    torch.testing.assert_close(after(tokens).logits, before(tokens).logits, rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_folders_that_cannot_be_used(folder, capsys, tmp_path):
    data = folder.parent / "data.py"
    arguments = ("--step-size", 0.1, "--dry-run", "--batches")
    status, _, complaint = call(capsys, "equilibrate", folder, *arguments, f"{data}:nothing")
    assert (status, "has no object 'nothing'" in complaint) == (2, True)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    status, _, complaint = call(capsys, "equilibrate", tmp_path, *arguments, f"{data}:both")
    assert (status, "there are no weights, only the configuration" in complaint) == (2, True)
