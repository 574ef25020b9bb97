"""Results are there whole or not at all, and every trouble is a sentence."""

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import undertow as ut
from undertow.execution import store
from undertow.execution.provenance import provenance

DATA = xarray.Dataset(
    {"a": (("seed", "step"), np.arange(6.0).reshape(2, 3)), "flag": (("seed",), np.array([True, False]))},
    coords={"step": [0, 5, 10]},
    attrs={"note": "x"},
)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_round_trip(tmp_path):
    path = store.save(tmp_path / "r.zarr", DATA, {"seeds": 2, "parameters": {"eta": 0.1}})
    back = store.load(path)
    xarray.testing.assert_equal(back, DATA)
    assert store.provenance_of(path) == {"seeds": 2, "parameters": {"eta": 0.1}}
    plain = xarray.open_zarr(path)
    xarray.testing.assert_equal(plain.load(), DATA)
    assert json.loads(plain.attrs["provenance"])["seeds"] == 2
    assert plain.attrs["undertow_format"] == store.FORMAT
    assert names(tmp_path) == ["r.zarr"]


def test_a_trajectory_is_stored(tmp_path):
    task = ut.Problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.arange(3.0))
    run = ut.descend(ut.Minibatch(task, 1), jnp.zeros(2), step_size=0.1, steps=20, key=0, every=5, seeds=3,
                     observe={"w": lambda w: w})  # fmt: skip
    facts = provenance({"step_size": 0.1}, 3, 0.2).to_json()
    back = store.load(store.save(tmp_path / "t.zarr", run.to_xarray(), facts))
    np.testing.assert_array_equal(back.w, run.observed["w"])
    np.testing.assert_allclose(back.slow_time, run.slow_time)
    assert store.provenance_of(tmp_path / "t.zarr")["versions"]["jax"]


def test_results_can_be_read_by_whoever_may(tmp_path):
    before = os.umask(0o022)
    try:
        file = store.write_bytes(tmp_path / "f.json", b"{}")
        folder = store.save(tmp_path / "r.zarr", DATA, {})
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o644
    assert folder.stat().st_mode & 0o777 == 0o755


def test_replacing_leaves_only_the_new(tmp_path):
    path = tmp_path / "r.zarr"
    store.save(path, DATA, {"n": 1})
    store.save(path, DATA * 2, {"n": 2})
    assert float(store.load(path).a[1, 2]) == 10
    assert names(tmp_path) == ["r.zarr"]


def test_a_failed_write_keeps_the_old(tmp_path, monkeypatch):
    path = store.save(tmp_path / "r.zarr", DATA, {"n": 1})
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(full))
    with pytest.raises(store.StoreError, match="disk is full; nothing was left half-written"):
        store.save(path, DATA * 2, {"n": 2})
    with pytest.raises(store.StoreError, match="disk is full"):
        store.write_bytes(tmp_path / "f.json", b"x")
    monkeypatch.undo()
    xarray.testing.assert_equal(store.load(path), DATA)
    assert names(tmp_path) == ["r.zarr"]


def test_a_really_full_disk(tmp_path):
    """A limit on the size of files stands in for the disk: the kernel refuses the write, not a mock."""
    code = """
import resource, sys, numpy as np, xarray
from undertow.execution import store
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
big = xarray.Dataset({"a": (("x",), np.random.default_rng(0).normal(size=100_000))})
try:
    store.save(sys.argv[1] + "/r.zarr", big, {})
except store.StoreError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "the disk is full" in out.stdout, out.stdout + out.stderr
    assert names(tmp_path) == []


def test_killed_between_the_two_renames_the_old_comes_back(tmp_path):
    path = store.save(tmp_path / "r.zarr", DATA, {"n": 1})
    path.rename(tmp_path / ".r.zarr.retired")
    xarray.testing.assert_equal(store.load(path), DATA)


def test_what_killed_processes_left_is_removed(tmp_path):
    """An earlier result is kept only where nothing has taken its place yet."""
    store.save(tmp_path / "r.zarr", DATA, {})
    store.save(tmp_path / ".r.zarr.retired", DATA, {})
    store.save(tmp_path / ".s.zarr.retired", DATA, {})
    (tmp_path / ".r.zarr.abc.partial").mkdir()
    (tmp_path / ".t.json.abc.partial").write_text("{")
    store.remove_partial(tmp_path)
    assert names(tmp_path) == [".s.zarr.retired", "r.zarr"]
    xarray.testing.assert_equal(store.load(tmp_path / "s.zarr"), DATA)


@pytest.mark.parametrize("exchange", [True, False])
def test_another_result_takes_the_place_in_one_rename(tmp_path, monkeypatch, exchange):
    """With the exchange of folders there is no moment without a result."""
    path = store.save(tmp_path / "r.zarr", DATA, {"n": 1})
    if not exchange:
        monkeypatch.setattr(store, "_exchange", lambda one, other: False)
    missing, rename = [], os.rename
    monkeypatch.setattr(os, "rename", lambda *names: (rename(*names), missing.append(not path.exists()))[0])
    store.save(path, DATA * 2, {"n": 2})
    assert missing == ([] if exchange else [True, False])
    assert store.provenance_of(path) == {"n": 2}
    assert names(tmp_path) == ["r.zarr"]


def test_a_file_system_that_cannot_exchange_folders(tmp_path, monkeypatch):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    with pytest.raises(FileNotFoundError):
        store._exchange(one, other)
    for library in (
        type("", (), {}),
        type("", (), {"renameat2": lambda *arguments: ctypes.set_errno(errno.EINVAL) or -1}),
    ):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno, library=library: library)
        assert not store._exchange(one, other)


def test_a_flipped_byte_of_the_seal_is_found(tmp_path):
    """Also one in the provenance, and one that makes the format another."""
    path = store.save(tmp_path / "r.zarr", DATA, {"seconds": 1.5, "name": "größe"})
    seal = path / store.SEAL
    content = seal.read_bytes()
    for index in range(len(content)):
        flipped = bytearray(content)
        flipped[index] ^= 1 << index % 8
        seal.write_bytes(flipped)
        with pytest.raises(store.StoreError, match="damaged"):
            store.provenance_of(path)
    unsigned = {name: value for name, value in json.loads(content).items() if name != "checksum"}
    seal.write_text(json.dumps(unsigned))  # as earlier versions wrote it
    assert store.provenance_of(path) == {"seconds": 1.5, "name": "größe"}


def test_the_lock_of_a_removed_folder_is_lost(tmp_path):
    folder = tmp_path / "f"
    folder.mkdir()
    with store.folder_lock(folder) as check:
        check()
        shutil.rmtree(folder)
        with pytest.raises(store.StoreError, match="the folder was removed while this run was writing"):
            check()
        folder.mkdir()
        with store.folder_lock(folder) as other:
            other()
            with pytest.raises(store.StoreError, match="the folder was removed"):
                check()


def test_damage_is_told(tmp_path):
    path = store.save(tmp_path / "r.zarr", DATA, {})
    chunk = path / "a" / "0.0"
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-3])
    with pytest.raises(store.StoreError, match=r"damaged, a/0\.0 is not as it was written"):
        store.load(path)
    chunk.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(store.StoreError, match="damaged"):
        store.load(path)
    chunk.unlink()
    with pytest.raises(store.StoreError, match="damaged"):
        store.load(path)
    (path / store.SEAL).unlink()
    with pytest.raises(store.StoreError, match="not a result of undertow"):
        store.load(path)
    with pytest.raises(store.StoreError, match="no stored result"):
        store.load(tmp_path / "none.zarr")


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FORMAT", store.FORMAT + 1)
    path = store.save(tmp_path / "r.zarr", DATA, {})
    monkeypatch.undo()
    with pytest.raises(store.StoreError, match=r"written by a newer undertow .* upgrade"):
        store.load(path)


def test_nothing_is_pickled(tmp_path):
    objects = xarray.Dataset({"o": (("x",), np.array([{}, None], dtype=object))})
    with pytest.raises(store.StoreError, match="'o' holds Python objects"):
        store.save(tmp_path / "r.zarr", objects, {})


def test_an_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(store.StoreError, match="cannot write here"):
        store.writable_folder(tmp_path / "file" / "inner")
    with pytest.raises(store.StoreError, match="cannot write here"):
        store.save(tmp_path / "file" / "r.zarr", DATA, {})


def test_one_run_a_folder(tmp_path):
    with store.folder_lock(tmp_path):
        failures = []

        def second():
            try:
                with store.folder_lock(tmp_path):
                    pass
            except store.StoreError as error:
                failures.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert "another run is writing" in failures[0]
    with store.folder_lock(tmp_path):
        pass


def test_kill_at_twenty_random_times(tmp_path):
    command = [sys.executable, "-m", "tests.execution.kill_store", str(tmp_path), "20", "1"]
    root = Path(__file__).parents[2]
    out = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=root)
    assert out.stdout.strip().endswith("20 kills, all results whole"), out.stdout + out.stderr
