"""Phase diagrams: experiments over two parameters, with the boundaries that theory draws through them.

They are imported when one is asked for.
"""

import importlib
from collections.abc import Iterator, Mapping

from undertow.execution.sweeps.diagram import Diagram

__all__ = ["diagrams"]


class _Diagrams(Mapping[str, Diagram]):
    names = ("hetero", "recovery", "stability")

    def __getitem__(self, name: str) -> Diagram:
        if name not in self.names:
            raise KeyError(name)
        return importlib.import_module(f"undertow.diagrams.{name}").DIAGRAM

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


diagrams = _Diagrams()
"""By name."""
