"""A census as plain JSON. Index arrays are stored as layouts where they are strided.

The fields of each dataclass are stored under their names, and read back by their types; nothing is executed.
"""

import dataclasses
import json
import math
import os
import types
import typing
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from undertow.torch.census.layout import Layout, layout_of

__all__ = ["FORMAT", "VERSION", "decode", "encode", "json_text", "load_record", "save_record"]

FORMAT, VERSION = "undertow census", 1

Json = object
"""What `json.loads` returns."""
T = TypeVar("T")


def encode(value: object) -> Json:
    """Return a value as JSON: dataclasses as objects, tuples as lists, index arrays as layouts."""
    if isinstance(value, np.ndarray):
        layout = layout_of(value)
        if layout is None:
            return {"list": value.tolist()}
        sides = {"generators": layout.generators, "members": layout.members}
        return {"offset": layout.offset, **{k: [list(pair) for pair in side] for k, side in sides.items()}}
    if dataclasses.is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a census with a {type(value).__name__} cannot be stored.")


def decode(record: Json, kind: type[T]) -> T:
    """Return the value of a type from what `encode` made of it; raise a `ValueError` where it does not fit."""
    return cast(T, _decoded(record, kind))


def _decoded(record: Json, kind: object) -> object:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (a for a in arguments if a is not type(None))
        return None if record is None else _decoded(record, inner)
    if origin is tuple and isinstance(record, list):
        if len(arguments) == 2 and arguments[1] is ...:
            return tuple(_decoded(item, arguments[0]) for item in record)
        return tuple(_decoded(item, inner) for item, inner in zip(record, arguments, strict=True))
    if kind is np.ndarray and isinstance(record, dict):
        return _index(record)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(record, dict):
        hints = typing.get_type_hints(kind)
        unknown = set(record) - {field.name for field in dataclasses.fields(kind)}
        if unknown:
            raise ValueError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}")
        try:
            return kind(**{name: _decoded(value, hints[name]) for name, value in record.items()})
        except TypeError as error:
            raise ValueError(str(error)) from error
    if kind is float and isinstance(record, str | int | float) and not isinstance(record, bool):
        return float(record)
    if isinstance(kind, type) and isinstance(record, kind) and isinstance(record, bool) == (kind is bool):
        return record
    raise ValueError(f"a {type(record).__name__} in place of {getattr(kind, '__name__', kind)}")


def _index(record: dict[str, Json]) -> np.ndarray:
    if "list" in record:
        index = np.array(record["list"], dtype=np.int64)
        if index.ndim != 2:
            raise ValueError("an index list that is not a matrix")
        return index
    return decode(record, Layout).index()


def json_text(record: Json) -> str:
    """Return a record with its format and version as JSON."""
    return json.dumps({"format": FORMAT, "version": VERSION, "census": record}, allow_nan=False)


def save_record(path: str | os.PathLike[str], record: Json) -> None:
    """Write a record with its format and version, beside its place first, so that no half of a file is left."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"`save({str(path)!r})`: there is no folder {target.parent}; create it first.")
    text = json_text(record)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def load_record(path: str | os.PathLike[str], kind: type[T]) -> T:
    """Return the value that a file holds; raise a `ValueError` that says why a file cannot be read."""
    call = f"`Census.load({str(path)!r})`"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"{call}: there is no such file.") from None
    except IsADirectoryError:
        raise ValueError(f"{call}: this is a folder; give the file that `census.save` wrote.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{call}: this is not a text file; give the file that `census.save` wrote.") from None
    try:
        record = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        what = "the file is truncated or damaged" if f'"{FORMAT}"' in text[:100] else "this is not JSON"
        raise ValueError(f"{call}: {what} ({error}); save the census again.") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f"{call}: this file holds no census; give the file that `census.save` wrote.")
    if record.get("version") != VERSION:
        raise ValueError(
            f"{call}: the file has version {record.get('version')!r} of the format, this undertow reads version "
            f"{VERSION}; read it with the undertow that wrote it, or take the census again."
        )
    try:
        return decode(record.get("census"), kind)
    except ValueError as error:
        raise ValueError(f"{call}: the file is damaged: {error}.") from None
