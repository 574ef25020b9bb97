"""Lists of bounded length."""

import pytest

from undertow.torch.monitor.thinned import Thinned

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("most", [2, 4, 100])
def test_items_are_evenly_spread_and_few(most):
    items = Thinned(most)
    for number in range(1000):
        items.append(number)
        kept = list(items)
        assert len(kept) == len(items) <= most + 1
        assert kept[0] == 0
        assert kept[-1] == number
        gaps = {b - a for a, b in zip(kept[:-1], kept[1:-1], strict=False)}
        assert gaps <= {items.stride}
