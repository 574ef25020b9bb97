"""Weight decay in the two conventions: the only place where they are converted."""

__all__ = ["gamma_of", "lambda_of"]


def gamma_of(weight_decay: float) -> float:
    """undertow's gamma of PyTorch's `weight_decay` lambda: loss + gamma |params|^2 has the gradient 2 gamma params.

    >>> from undertow.torch import gamma_of
    >>> gamma_of(0.01)
    0.005
    """
    return weight_decay / 2


def lambda_of(gamma: float) -> float:
    """PyTorch's `weight_decay` for undertow's gamma.

    >>> from undertow.torch import lambda_of
    >>> lambda_of(0.005)
    0.01
    """
    return 2 * gamma
