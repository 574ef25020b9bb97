"""The statistics of per-sample gradients that the symmetries of a census need, each requested once."""

from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.census import Census
from undertow.torch.monitor.statistics import StatisticRequest

__all__ = ["Requests", "own_matrices"]

_RequestKey = tuple[str, int, int, int, bytes]
"""Parameter, axis, number of matrices with indices of their own, block size and the indices of a GL."""


class Requests:
    """The statistics for all axes of a census. Symmetries that share a moment share its request."""

    def __init__(self, census: Census, *, diagonal: bool = False):
        """Collect the requests; with `diagonal` a GL needs only the squares of its indices, as under Adam."""
        self.diagonal = diagonal
        self._by_key: dict[_RequestKey, StatisticRequest] = {}
        for symmetry in census:
            for axis in symmetry.axes:
                block = self._block(symmetry)
                index = axis.index.reshape(-1, block, axis.index.shape[1]) if block > 1 else None
                request = StatisticRequest(axis.parameter, axis.axis, index, own_matrices(axis))
                self._by_key.setdefault(_key(axis, block), request)

    def of(self, axis: Axis, symmetry: Symmetry) -> StatisticRequest:
        """Return the request for an axis of a symmetry."""
        return self._by_key[_key(axis, self._block(symmetry))]

    def _block(self, symmetry: Symmetry) -> int:
        return 1 if self.diagonal else symmetry.block

    def all(self) -> list[StatisticRequest]:
        """Return all requests."""
        return list(self._by_key.values())


def own_matrices(axis: Axis) -> int:
    """Return the number of matrices if each has indices of its own, else 1."""
    return axis.matrices if axis.by_matrix else 1


def _key(axis: Axis, block: int) -> _RequestKey:
    index = axis.index.tobytes() if block > 1 else b""
    return axis.parameter, axis.axis, own_matrices(axis), block, index
