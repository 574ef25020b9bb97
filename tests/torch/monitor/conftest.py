"""Fixtures for the tests of the monitor."""

import pytest


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Use tensors where the monitor uses arrays of NumPy on a CPU, as it does on a GPU."""
    arrays = pytest.importorskip("undertow.torch.monitor.arrays")
    batch_sums = pytest.importorskip("undertow.torch.monitor.batch_sums")
    for module in (arrays, batch_sums):
        monkeypatch.setattr(module, "NUMPY_DEVICES", frozenset())


@pytest.fixture(params=["arrays", "tensors"])
def arrays_and_tensors(request):
    """Run a test with arrays of NumPy and with tensors."""
    if request.param == "tensors":
        request.getfixturevalue("as_on_a_gpu")
