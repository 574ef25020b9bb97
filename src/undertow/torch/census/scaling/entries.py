"""Scaling maps as data and as files: a source pattern with the patterns of the layers that read it."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ScalingEntry", "ScalingMap", "load_scaling_map", "scaling_entry"]

NAMES = (("source", "readers"), ("smooth_layer", "balance_layers"), ("smooth_layers", "balance_layers"))
"""Keys of an entry: of undertow, of AWQ mappings, and of SmoothQuant mappings in tables."""
LISTS = ("mappings", "scaling")
"""Keys under which a file may hold its list of entries."""
FORMS = "`source` and `readers`, `smooth_layer` and `balance_layers`, or a pair [[readers], source]"


@dataclass(frozen=True)
class ScalingEntry:
    """A source pattern with the patterns of its readers.

    The outputs of the source are divided by one scale per channel; the inputs of the readers are multiplied by it.

    >>> from undertow.torch import ScalingEntry
    >>> print(ScalingEntry("re:.*up_proj$", ("re:.*down_proj$",)))
    re:.*up_proj$ against re:.*down_proj$
    """

    source: str
    readers: tuple[str, ...]
    note: str = ""
    """A remark on the scales, for example how many inputs of the readers share one scale."""

    def __str__(self) -> str:
        return f"{self.source} against {', '.join(self.readers)}"


@dataclass(frozen=True)
class ScalingMap:
    """Entries of a scaling map, in the forms that quantisation tools read.

    >>> from undertow.torch import ScalingEntry, ScalingMap
    >>> right = ScalingMap((ScalingEntry("re:.*up_proj$", ("re:.*down_proj$",)),))
    >>> print(right)
    re:.*up_proj$ against re:.*down_proj$
    >>> right.smoothquant()
    [[['re:.*down_proj$'], 're:.*up_proj$']]
    >>> right.awq()
    [{'smooth_layer': 're:.*up_proj$', 'balance_layers': ['re:.*down_proj$']}]
    """

    entries: tuple[ScalingEntry, ...]

    def __iter__(self) -> Iterator[ScalingEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return "\n".join(f"{entry}{f'  ({entry.note})' if entry.note else ''}" for entry in self.entries)

    def smoothquant(self) -> list[list[list[str] | str]]:
        """Return the entries as pairs [[readers], source], the mappings of `SmoothQuantModifier`."""
        return [[list(entry.readers), entry.source] for entry in self.entries]

    def awq(self) -> list[dict[str, str | list[str]]]:
        """Return the entries with the keys `smooth_layer` and `balance_layers`, the mappings of `AWQModifier`."""
        return [{"smooth_layer": entry.source, "balance_layers": list(entry.readers)} for entry in self.entries]

    def to_json(self) -> str:
        """Return the map as JSON text, in the form of AWQ."""
        return json.dumps({"mappings": self.awq()}, indent=2) + "\n"

    def to_toml(self) -> str:
        """Return the map as TOML text, in the form of AWQ, with the notes as comments."""
        quoted = lambda text: json.dumps(text) if "'" in text else f"'{text}'"
        return "\n".join(
            f"[[mappings]]{f'  # {entry.note}' if entry.note else ''}\n"
            f"smooth_layer = {quoted(entry.source)}\n"
            f"balance_layers = [{', '.join(map(quoted, entry.readers))}]\n"
            for entry in self.entries
        )


def load_scaling_map(path: str | Path) -> ScalingMap:
    """Return the scaling map of a TOML or JSON file.

    The file holds a list of entries: in JSON at the top, or in both under the key `mappings` or `scaling`. An entry has
    the keys `source` and `readers`, or `smooth_layer` and `balance_layers` as in AWQ, or is a pair [[readers], source]
    as in SmoothQuant. Other keys of an entry are ignored.

    >>> import pathlib, tempfile
    >>> from undertow.torch import load_scaling_map
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "map.toml"
    >>> _ = path.write_text('[[mappings]]\\nsource = "re:.*up_proj$"\\nreaders = ["re:.*down_proj$"]')
    >>> print(load_scaling_map(path))
    re:.*up_proj$ against re:.*down_proj$
    """
    path = Path(path)
    call = f"`load_scaling_map({str(path)!r})`"
    if path.suffix not in (".toml", ".json"):
        raise ValueError(f"{call}: `path` ends in {path.suffix!r}; give a .toml or .json file.")
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{call}: there is no such file.") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{call}: the file is not valid {path.suffix[1:].upper()}: {error}.") from error
    if isinstance(data, dict):
        key = next((name for name in LISTS if name in data), None)
        if key is None:
            raise ValueError(f"{call}: the file has the keys {sorted(data)}; put the entries under `mappings`.")
        data = data[key]
    if not isinstance(data, list) or not data:
        raise ValueError(f"{call}: the file holds no list of entries; give entries with {FORMS}.")
    try:
        return ScalingMap(tuple(map(scaling_entry, data)))
    except ValueError as error:
        raise ValueError(f"{call}: {error}") from error


def scaling_entry(value: object) -> ScalingEntry:
    """Return an entry from one of the three forms; raise a `ValueError` that shows the forms otherwise.

    >>> from undertow.torch.census.scaling.entries import scaling_entry
    >>> print(scaling_entry([["q_proj", "k_proj", "v_proj"], "input_layernorm"]))
    input_layernorm against q_proj, k_proj, v_proj
    """
    if isinstance(value, ScalingEntry):
        return value
    source, readers = None, None
    if isinstance(value, Mapping):
        for one, several in NAMES:
            if one in value and several in value:
                source, readers = value[one], value[several]
                break
    elif isinstance(value, Iterable) and not isinstance(value, str) and len(list(value)) == 2:
        readers, source = value
    if isinstance(readers, str):
        readers = [readers]
    if not isinstance(source, str) or not isinstance(readers, list | tuple) or not readers:
        raise ValueError(f"the entry {value!r} is not readable; give {FORMS}, each a string or a list of strings.")
    if not all(isinstance(reader, str) for reader in readers):
        raise ValueError(f"the entry {value!r} has a reader that is not a string; give names or patterns.")
    return ScalingEntry(source, tuple(str(reader) for reader in readers))
