"""What SGD does, its SDE, and the end of gradient flow: the only place with long loops."""

from undertow.dynamics.descend import descend
from undertow.dynamics.diffuse import diffuse
from undertow.dynamics.settle import settle

__all__ = ["descend", "diffuse", "settle"]
