"""Results on disk that are there whole or not at all.

A dataset is a zarr folder that plain `xarray.open_zarr` reads. It is written beside its place, flushed, and renamed
into it, so that a process killed at any time leaves the old result or none. A small file `.undertow.json` inside says
the format version, where the result comes from, and the size and checksum of every other file, so that damage is told
from data. Nothing is pickled.
"""

import errno
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray

__all__ = [
    "FORMAT",
    "JSONObject",
    "NewerFormatError",
    "StoreError",
    "folder_lock",
    "load",
    "provenance_of",
    "save",
    "writable_folder",
    "write_bytes",
]

FORMAT = 1
"""Raised whenever an older undertow could misread what a newer one writes."""

SEAL = ".undertow.json"

JSONObject = dict[str, Any]
"""A JSON object as Python reads it: plain values of any kind by name."""


class StoreError(Exception):
    """What is wrong with a file or folder, in a sentence for the person who asked for it."""


class NewerFormatError(StoreError):
    """A result that only a newer undertow can read: never to be replaced by this one."""


def save(path: Path | str, dataset: "xarray.Dataset", provenance: JSONObject) -> Path:
    """Writes a dataset and its provenance to the zarr folder `path`, replacing what was there, all or nothing."""
    path = Path(path)
    for name, variable in dataset.variables.items():
        if variable.dtype.kind == "O":
            raise StoreError(f"`save`: variable {name!r} holds Python objects; store numbers, flags or plain text.")
    content = _encoded(dataset.assign_attrs(undertow_format=FORMAT, provenance=json.dumps(provenance, default=str)))
    marks = {name: _mark(data) for name, data in content.items()}
    seal = {"undertow_format": FORMAT, "provenance": provenance, "files": marks}
    content[SEAL] = json.dumps(seal, indent=1, default=str).encode()
    with _sentences(path), _beside(path) as temporary:
        for name, data in content.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_bytes(data)
        os.chmod(temporary, 0o777 & ~_umask())
        _flush_tree(temporary)
        _put_in_place(temporary, path)
    return path


def load(path: Path | str) -> "xarray.Dataset":
    """Reads a dataset that `save` wrote, after checking that every file of it is as it was written."""
    import xarray

    path = Path(path)
    _seal(path)
    try:
        return xarray.open_zarr(path, consolidated=True).load()
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path}: damaged, it cannot be read ({error}); delete it and run again.") from error


def provenance_of(path: Path | str) -> JSONObject:
    """Where a stored result comes from: parameters, seeds, versions, device, seconds."""
    return _seal(Path(path))["provenance"]


def write_bytes(path: Path | str, content: bytes) -> Path:
    """Writes one file, all or nothing: beside its place, flushed, renamed."""
    path = Path(path)
    with _sentences(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
            _flush(path.parent)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return path


def writable_folder(path: Path | str) -> Path:
    """The folder, made if need be, proven writable by writing."""
    path = Path(path)
    with _sentences(path):
        path.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".probe.", dir=path)
        os.close(handle)
        os.unlink(name)
    return path


@contextmanager
def folder_lock(path: Path | str) -> Generator[None]:
    """Holds a folder for one process; a second one is refused at once. The lock ends with its process, however."""
    import filelock

    lock = filelock.FileLock(Path(path) / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise StoreError(
            f"{path}: another run is writing to this folder; wait for it, or choose another with --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _seal(path: Path) -> JSONObject:
    """The checked seal of a stored result."""
    retired = _retired(path)
    if not path.exists() and retired.exists():  # killed between the two renames of a replacement
        retired.rename(path)
    if not path.is_dir():
        raise StoreError(f"{path}: there is no stored result here.")
    try:
        seal = json.loads((path / SEAL).read_text())
        written, files = seal["undertow_format"], seal["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise StoreError(f"{path}: not a result of undertow, or damaged (no readable {SEAL}).") from None
    if written > FORMAT:
        raise NewerFormatError(
            f"{path}: written by a newer undertow (format {written}, this one reads {FORMAT}); upgrade undertow."
        )
    for name, mark in files.items():
        file = path / name
        if not file.is_file() or _mark(file.read_bytes()) != mark:
            raise StoreError(f"{path}: damaged, {name} is not as it was written; delete it and run again.")
    return seal


def _encoded(dataset: "xarray.Dataset") -> dict[str, bytes]:
    """The files of a zarr folder, made in memory: zarr has threads, and they must not write where we may give up."""
    import zarr.storage

    files: dict[str, Any] = {}
    dataset.to_zarr(zarr.storage.MemoryStore(files), mode="w", zarr_format=2, consolidated=True)
    return {name: buffer.to_bytes() for name, buffer in sorted(files.items())}


def _mark(content: bytes) -> list[int]:
    return [len(content), zlib.crc32(content)]


@contextmanager
def _beside(path: Path) -> Generator[Path]:
    """A fresh folder next to `path`; gone afterwards unless it was renamed into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _retired(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _put_in_place(temporary: Path, path: Path) -> None:
    retired = _retired(path)
    if path.exists():
        shutil.rmtree(retired, ignore_errors=True)
        path.rename(retired)
    temporary.rename(path)
    _flush(path.parent)
    shutil.rmtree(retired, ignore_errors=True)


def _umask() -> int:
    """What the user keeps from others; temporary files are made for their owner alone."""
    try:
        facts = dict(
            line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
        )
        return int(facts["Umask"], 8)
    except (OSError, KeyError, ValueError):  # elsewhere it can only be read by setting it, for all threads
        mask = os.umask(0)
        os.umask(mask)
        return mask


def _flush_tree(folder: Path) -> None:
    for item in [*folder.rglob("*"), folder]:
        _flush(item)


def _flush(item: Path) -> None:
    """fsync of a file or a folder; folders cannot be opened on Windows, and need not."""
    try:
        handle = os.open(item, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _sentences(path: Path) -> Generator[None]:
    """What the operating system refuses, in a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreError(f"{path}: the disk is full; nothing was left half-written. Free some space.") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise StoreError(f"{path}: cannot write here ({error.strerror}); choose another folder.") from error
        raise
