"""Atomic storage of results on disk, with provenance and checksums.

A dataset is a zarr folder that plain `xarray.open_zarr` reads. It is written to a temporary folder, flushed, and
renamed, so that a process killed at any time leaves the old result or none. A small file `.undertow.json` inside holds
the format version, the provenance, and the size and checksum of every other file, so that damage is detected. Nothing
is pickled.
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
from typing import TYPE_CHECKING

from undertow.execution import reading
from undertow.execution.reading import JSONObject

if TYPE_CHECKING:
    import xarray
    from zarr.abc.buffer import Buffer

__all__ = [
    "FORMAT",
    "FolderLockedError",
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
"""The format version; it increases whenever an older undertow could misread what a newer one writes."""

SEAL = ".undertow.json"


class StoreError(Exception):
    """A file or folder cannot be used; the message is for the user."""


class FolderLockedError(StoreError):
    """Another process is writing to the folder."""


class NewerFormatError(StoreError):
    """A result that only a newer undertow can read. It must not be replaced."""


def save(path: Path | str, dataset: "xarray.Dataset", provenance: JSONObject) -> Path:
    """Write a dataset and its provenance to the zarr folder `path`, and replace an earlier one atomically."""
    path = Path(path)
    for name, variable in dataset.variables.items():
        if variable.dtype.kind == "O":
            raise StoreError(f"`save`: variable {name!r} holds Python objects; store numbers, flags or plain text.")
    content = _encoded(dataset.assign_attrs(undertow_format=FORMAT, provenance=json.dumps(provenance, default=str)))
    checksums = {name: _checksum(data) for name, data in content.items()}
    seal = {"undertow_format": FORMAT, "provenance": provenance, "files": checksums}
    content[SEAL] = json.dumps(seal, indent=1, default=str).encode()
    with _readable_errors(path), _temporary_folder(path) as temporary:
        for name, data in content.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_bytes(data)
        os.chmod(temporary, 0o777 & ~_umask())
        _flush_tree(temporary)
        _put_in_place(temporary, path)
    return path


def load(path: Path | str) -> "xarray.Dataset":
    """Read a dataset that `save` wrote, after checking the checksum of every file."""
    path = Path(path)
    _seal(path)
    try:
        return reading.open_zarr(path).load()
    except Exception as error:  # zarr and its codecs have their own errors
        raise StoreError(f"{path}: damaged, it cannot be read ({error}); delete it and run again.") from error


def provenance_of(path: Path | str) -> JSONObject:
    """Return the provenance of a stored result, after checking the checksum of every file."""
    return _seal(Path(path))["provenance"]


def write_bytes(path: Path | str, content: bytes) -> Path:
    """Write one file atomically: to a temporary file, flushed, then renamed."""
    path = Path(path)
    with _readable_errors(path):
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
    """Return the folder, created if necessary, after checking that files can be written to it."""
    path = Path(path)
    with _readable_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".probe.", dir=path)
        os.close(handle)
        os.unlink(name)
    return path


@contextmanager
def folder_lock(path: Path | str) -> Generator[None]:
    """Lock a folder for one process; a second one raises an error at once. The lock ends with its process."""
    import filelock

    lock = filelock.FileLock(Path(path) / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise FolderLockedError(
            f"{path}: another run is writing to this folder; wait for it, or choose another with --out."
        ) from None
    except OSError as error:  # a folder, a link, the file of another user, a disk that cannot be written
        raise StoreError(
            f"{path}: the lock {lock.lock_file} cannot be opened ({error.strerror or error}); delete it if no run is "
            "writing to this folder, or choose another with --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _seal(path: Path) -> JSONObject:
    """Return the seal of a stored result, after checking it."""
    retired = _retired(path)
    if not path.exists() and retired.exists():  # killed between the two renames of a replacement
        retired.rename(path)
    if not path.is_dir():
        raise StoreError(f"{path}: there is no stored result here.")
    try:
        seal = reading.read_json(path / SEAL)
        newer, written, files = seal["undertow_format"] > FORMAT, seal["undertow_format"], dict(seal["files"])
        seal["provenance"].items()
    except reading.DAMAGE:
        raise StoreError(f"{path}: not a result of undertow, or damaged (no readable {SEAL}).") from None
    if newer:
        raise NewerFormatError(
            f"{path}: written by a newer undertow (format {written}, this one reads {FORMAT}); upgrade undertow."
        )
    for name, checksum in files.items():
        file = path / name
        inside = file.is_relative_to(path) and ".." not in file.parts
        if not inside or not file.is_file() or _checksum(file.read_bytes()) != checksum:
            raise StoreError(f"{path}: damaged, {name} is not as it was written; delete it and run again.")
    return seal


def _encoded(dataset: "xarray.Dataset") -> dict[str, bytes]:
    """Return the files of a zarr folder, made in memory: threads of zarr must not write to a temporary folder."""
    import zarr.storage

    files: "dict[str, Buffer]" = {}
    dataset.to_zarr(zarr.storage.MemoryStore(files), mode="w", zarr_format=2, consolidated=True)
    return {name: buffer.to_bytes() for name, buffer in sorted(files.items())}


def _checksum(content: bytes) -> list[int]:
    return [len(content), zlib.crc32(content)]


@contextmanager
def _temporary_folder(path: Path) -> Generator[Path]:
    """Yield a temporary folder next to `path`; it is removed unless it was renamed into place."""
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
    if path.is_symlink():
        raise StoreError(f"{path}: a symbolic link, which is not replaced; delete it and run again.")
    if path.exists():
        shutil.rmtree(retired, ignore_errors=True)
        path.rename(retired)
    temporary.rename(path)
    _flush(path.parent)
    shutil.rmtree(retired, ignore_errors=True)


def _umask() -> int:
    """Return the umask of the process; temporary files are created for their owner alone."""
    try:
        status = dict(
            line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
        )
        return int(status["Umask"], 8)
    except (OSError, KeyError, ValueError):  # elsewhere it can only be read by setting it, for all threads
        mask = os.umask(0)
        os.umask(mask)
        return mask


def _flush_tree(folder: Path) -> None:
    for item in [*folder.rglob("*"), folder]:
        _flush(item)


def _flush(item: Path) -> None:
    """Flush a file or a folder to the disk; folders cannot be opened on Windows and need no flush there."""
    try:
        handle = os.open(item, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _readable_errors(path: Path) -> Generator[None]:
    """Turn errors of the operating system into messages for the user."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreError(f"{path}: the disk is full; nothing was left half-written. Free some space.") from error
        if error.errno in (
            errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG,
            errno.ELOOP, errno.EINVAL,
        ):  # fmt: skip
            raise StoreError(f"{path}: cannot write here ({error.strerror}); choose another folder.") from error
        raise
