"""The model and the census that a monitor is given."""

from torch import nn

from undertow.torch._copies import trainable
from undertow.torch.census.census import Census, check_census

__all__ = ["validate_census", "validate_wrapper"]


def validate_wrapper(model: nn.Module) -> None:
    """Raise an error for a wrapper that hides samples or parameters from hooks."""
    if isinstance(model, nn.DataParallel):
        raise ValueError(
            "`NoiseMonitor`: a DataParallel spreads the samples over replicas, where hooks do not see them; use "
            "DistributedDataParallel."
        )
    if type(model).__name__ == "FullyShardedDataParallel":
        raise ValueError(
            "`NoiseMonitor`: FullyShardedDataParallel (FSDP1) flattens the parameters, so that those of a layer cannot "
            "be told apart; use FSDP2 (`torch.distributed.fsdp.fully_shard`)."
        )


def validate_census(model: nn.Module, census: object) -> None:
    """Raise an error for a census of another model."""
    if census is None:
        return
    if not isinstance(census, Census):
        raise TypeError(
            f"`NoiseMonitor(model, census)`: `census` is a {type(census).__name__}; give `census(model, ...)`."
        )
    check_census("NoiseMonitor", census, trainable(model))
