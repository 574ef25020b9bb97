"""Plants of the claims on the averaged flow and on optimisers."""

from dataclasses import replace

from undertow.noise.label import LabelNoise
from undertow.optimisers.sgd import SGD
from undertow.papers.optimisers.models.adam_probe import predict_adam
from undertow.verification.claim import Plant
from undertow.verification.plant import replaced

__all__ = ["PLANTS"]

HERE = "undertow.papers.optimisers.claims"


def _closure(rival: str):
    """Solve the averaged flow with the equation for X that the alternative states."""

    def wrap(right):
        def run(*args, closure: str = "averaged_noise", **settings):
            return right(*args, closure=rival if closure == "averaged_noise" else closure, **settings)

        return run

    return wrap


def _stronger_labels(right):
    """Give the averaged flow label noise of twice the variance."""
    return lambda noise, *args, **settings: right(LabelNoise(noise.problem, 2**0.5 * noise.strength), *args, **settings)


def _without_excess(right):
    """Predict the mean loss by the loss at the mean."""

    def run(*args, **settings):
        flow = right(*args, **settings)
        flow.observed["mean_loss"] = flow.observed["loss"]
        return flow

    return run


def _time_for_slow_time(right):
    """Read the sum of the step sizes where the claim reads the sum of their squares."""

    def run(*args, **settings):
        plain = right(*args, **settings)
        return replace(plain, slow_time=plain.time)

    return run


def _without_correlation(right):
    """End the runs of Adam around the flow without corrections."""

    def run(probe, *settings):
        ends = right(probe, *settings)
        plain = predict_adam(probe, *settings[:4], False)
        return ends._replace(points=ends.points + (plain - ends.mean)[None])

    return run


def _equilibrium_of_sgd(right):
    """Predict the equilibrium of SGD with the weight decay of the optimiser."""
    return lambda problem, start, optimiser, **settings: right(
        problem, start, SGD(weight_decay=optimiser.weight_decay), **settings
    )


def _leading(right):
    """Predict without fluctuations."""
    return lambda *args, **settings: right(*args, **settings | {"corrected": False})


def _without_metric(right):
    """Leave the change of the metric out of the change of a charge."""

    def changed(*args, **settings):
        change = right(*args, **settings)
        return change._replace(metric=0 * change.metric)

    return changed


def _flow_of_sgd(right):
    """Let Adam follow the flow of SGD."""
    return lambda data: dict.fromkeys(("SGD", "Adam"), right(data)["SGD"])


PLANTS: dict[str, Plant] = {
    "averaged-flow-trace": replaced(f"{HERE}.network.average", _closure("small_step")),
    "excess-loss": replaced(f"{HERE}.network.average", _without_excess),
    "batch-curvatures": replaced(f"{HERE}.curvatures.average", _closure("finite_step")),
    "averaged-flow-order": replaced(f"{HERE}.order.average", _closure("small_step")),
    "averaged-flow-limit": replaced(f"{HERE}.limit.average", _stronger_labels),
    "metric-charge-conserved": replaced(
        f"{HERE}.metric_charge.metric_charge", lambda right: lambda symmetry, params, metric: symmetry.charge(params)
    ),
    "metric-charge-step": replaced(f"{HERE}.metric_charge.charge_change", _without_metric),
    "adam-equilibrium": replaced(f"{HERE}.adam_equilibrium.predicted", _equilibrium_of_sgd),
    "adamw-equilibrium": replaced(f"{HERE}.adam_equilibrium.predicted", _equilibrium_of_sgd),
    "metric-memory": replaced(f"{HERE}.adam_equilibrium.predicted", _leading),
    "adam-equilibrium-order": replaced(f"{HERE}.adam_equilibrium.predicted", _leading),
    "adam-limit-metric": replaced(f"{HERE}.adam.run_adam", _without_correlation),
    "averaged-flow-noisy-data": replaced(f"{HERE}.noisy_data.average", _closure("small_step")),
    "adam-weak-order": replaced(
        "undertow.dynamics.diffuse.AbstractEulerStep._relaxed",
        lambda right: lambda self, params, state, start_up: state,
    ),
    "square-root-scaling": replaced(
        f"{HERE}.scaling.square_root", lambda right: lambda step_size, factor: step_size * factor
    ),
    "momentum-effective-step": replaced(
        f"{HERE}.momentum.effective_step", lambda right: lambda step_size, beta: step_size
    ),
    "adamw-rotation": replaced(
        f"{HERE}.rotation.predicted_angle", lambda right: lambda step_size, decay, b1: (2 * step_size * decay) ** 0.5
    ),
    "schedules-are-clocks": replaced(f"{HERE}.schedules.descend", _time_for_slow_time),
    "two-traces": replaced(f"{HERE}.sparsity._flows", _flow_of_sgd),
    "adam-sparse-recovery": replaced(f"{HERE}.sparsity._flows", _flow_of_sgd),
    "adam-factorisation": replaced(f"{HERE}.sensing.Adam", lambda right: lambda **settings: SGD()),
}
