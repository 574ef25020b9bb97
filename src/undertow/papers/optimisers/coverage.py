"""The statements of the theory of the averaged flow and of optimisers, and the claims that check them."""

from undertow.verification.coverage import Addition, Entry

__all__ = ["BEYOND", "COVERAGE"]

_RESULTS = (
    (
        "Mean motion",
        "The mean of SGD moves with (1 + (η/2) H) F, F = -∇L - (η/2) d³L[X], at a finite step and from any start.",
        ("averaged-flow-trace",),
    ),
    (
        "Fluctuations",
        "The covariance of SGD around its mean is η X, H X + X H - η H X H = Σ + (η/2) Σ''[X].",
        ("batch-curvatures",),
    ),
    ("Observables", "The mean of f over seeds is f(θ) + (η/2) tr(f'' X).", ("excess-loss",)),
    (
        "Order in the step size",
        "Over a fixed slow time the first-order error of the flow for small steps is removed, for weak noise.",
        ("averaged-flow-order",),
    ),
    ("Small steps", "At zero loss the flow converges to the limiting flow on the manifold.", ("averaged-flow-limit",)),
    (
        "Problems that do not fit",
        "Minibatch noise at a minimum with a positive loss moves the mean along the minimisers.",
        ("averaged-flow-noisy-data",),
    ),
    (
        "Limit with a metric",
        "Adam moves on the manifold as SGD does in the coordinates S^(-1/2) θ; v follows the fluctuations in part.",
        ("adam-limit-metric",),
    ),
    (
        "Directions that have not relaxed",
        "The entry X_ab approaches its stationary value as 1 - exp(-(h_a + h_b - η h_a h_b) t).",
        (),
        "an interpolation between the start and the stationary state",
    ),
    (
        "Charges in a metric",
        "Gradient flow in a frozen diagonal metric S conserves C_S = ½ ∑ A_i θ_i²/S_i for diagonal generators.",
        ("metric-charge-conserved",),
    ),
    (
        "Change of a charge in one step of Adam",
        "The change of C_S is the sum of the parts of momentum, noise, decay and metric, exactly.",
        ("metric-charge-step",),
    ),
    (
        "Equilibrium of Adam",
        "Adam goes to the point of the orbit with the least sum of standard deviations.",
        ("adam-equilibrium",),
    ),
    (
        "Equilibrium of AdamW",
        "With decay, e^(2s) = (λ a₋ + (η/2) b₊)/(λ a₊ + (η/2) b₋) for a rescaling.",
        ("adamw-equilibrium",),
    ),
    (
        "Finite memory of v",
        "The metric term shifts the equilibrium, because v follows the fluctuations only in part.",
        ("metric-memory",),
    ),
    (
        "Order of the equilibrium in the step size",
        "The leading prediction has an error of first order in η, which the fluctuations explain.",
        ("adam-equilibrium-order",),
    ),
    (
        "SDE of Adam (arXiv 2205.10287)",
        "Adam without momentum follows an SDE in (θ, v) to weak order one in the step η² of its clock.",
        ("adam-weak-order",),
    ),
    (
        "Square-root scaling rule (arXiv 2205.10287)",
        "A batch k times as large, η times √k and 1 - b1 and 1 - b2 times k leave the distribution of Adam unchanged.",
        ("square-root-scaling",),
    ),
    (
        "Momentum (arXiv 2307.15196)",
        "SGD with step size η and momentum β has the distribution of SGD with η/(1 - β), to first order in η.",
        ("momentum-effective-step",),
    ),
    (
        "Rotational equilibrium (arXiv 2305.17212)",
        "Under AdamW a scale-invariant vector turns by √(2ηλ(1 - b1)/(1 + b1)) per step and has |θ|² = dη/(2λ).",
        ("adamw-rotation",),
    ),
    (
        "Schedules",
        "With a schedule η_k the clock of the motion along the manifold is ∑ η_k².",
        ("schedules-are-clocks",),
    ),
    (
        "Matrix factorisation (arXiv 2511.02773)",
        "On rank-one matrix sensing with label noise Adam ends with a smaller error than SGD, against the paper.",
        ("adam-factorisation",),
    ),
    (
        "Implicit regulariser of Adam (arXiv 2511.02773)",
        "With label noise Adam reduces tr diag(H)^½ where SGD reduces tr H; for dense solutions SGD is lower in both.",
        ("two-traces",),
    ),
    (
        "Sparse recovery (arXiv 2511.02773)",
        "With label noise Adam finds a sparse vector from fewer equations than SGD.",
        ("adam-sparse-recovery",),
    ),
)

COVERAGE: tuple[Entry, ...] = tuple(Entry("optimisers", *row) for row in _RESULTS)
"""The statements in the order of the derivation."""

BEYOND: tuple[Addition, ...] = ()
"""The claims that no statement above makes."""
