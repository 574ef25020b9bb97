"""Lists of bounded length."""

import pytest

from undertow.torch.monitor.thinned import Thinned

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("most", [2, 3, 4, 100])
def test_items_are_evenly_spread_and_few(most):
    items = Thinned(most)
    for number in range(1000):
        items.append(number)
        kept = list(items)
        assert len(kept) == len(items) <= most + 1
        assert kept[0] == 0
        assert kept[-1] == number
        assert kept[:-1] == list(range(0, kept[-1], items.stride))[: len(kept) - 1]
