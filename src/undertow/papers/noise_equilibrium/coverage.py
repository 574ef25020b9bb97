"""The claims that check each result of noise_equilibrium, and the reasons why some results have none."""

from undertow.verification.coverage import DEFINITION, TEXTBOOK, Addition, Entry

__all__ = ["BEYOND", "COVERAGE"]

_RESULTS = (
    ("Eq. (1)", "The SDE of SGD, with σ² = η/(2S).", ("sde-weak-order",)),
    (
        "Figure 1",
        "Under scale invariance SGD moves outward without limit.",
        ("equilibrium-at-infinity", "scale-growth"),
    ),
    ("Section 3", "The covariance of a batch gradient.", ("minibatch-covariance",)),
    (
        "Eq. (2)-(3)",
        "A symmetry, and the orthogonality of gradients to its orbit.",
        (),
        "a definition and its derivative",
    ),
    ("Eq. (4)", "Gradient flow conserves the charge.", ("charge-conserved",)),
    ("Eq. (5)", "Noise moves the charge.", ("expected-change", "charge-factor-two")),
    ("Definition 4.1 and Eq. (6)", "Exponential symmetries and their charge.", ("charge-factor-two",)),
    ("Definition 4.2 and Eq. (7)", "The flow of the charge with weight decay.", ("expected-change",)),
    ("Section 4.2, time scales", "The time to the noise equilibrium.", ("equilibration-time",)),
    ("Section 4.3, first paragraph", "The balance of weight decay and noise.", ("stationary-condition",)),
    ("Eq. (8)", "The orbit of an exponential symmetry.", (), "a definition; factors-balance moves along it"),
    (
        "Theorem 4.3 (1)-(3)",
        "Along an orbit the flow falls, the charge rises, and the flow has one zero.",
        ("one-fixed-point", "equilibrium-at-infinity"),
    ),
    ("Theorem 4.3 (4)", "The zero of the flow on an orbit depends smoothly on the point.", ("discrete-fixed-point",)),
    (
        "Remark 4.4",
        "Theorem 4.3 holds in expectation for SGD and gradient descent in discrete time.",
        ("discrete-fixed-point",),
    ),
    ("Theorem 4.5", "The charge converges to its equilibrium.", ("charge-relaxes", "charge-follows")),
    ("Eq. (9)", "The noise equilibrium.", ("stationary-condition",)),
    ("Definition 4.6", "A noise equilibrium is a stationary point of a function under SGD.", (), DEFINITION),
    ("Figure 2", "SGD aligns two linear layers, gradient descent does not.", ("two-layer-alignment",)),
    (
        "Eq. (10)-(11)",
        "The symmetry of a factorisation, and the quantity that gradient descent conserves.",
        ("charge-conserved",),
    ),
    (
        "Proposition 5.1",
        "The charge of a factorisation changes by the noise of rows minus that of columns.",
        ("rows-and-columns", "charge-factor-two"),
    ),
    ("Section 5.1, U a row and W a column", "The case with a closed-form solution.", ("vectors-decay",)),
    ("Eq. (12)", "The two-layer linear net.", (), DEFINITION),
    (
        "Theorem 5.2, Eq. (13)",
        "The balance of the noise of two layers.",
        ("factors-balance", "decay-in-the-balance", "two-layer-alignment", "start-forgotten"),
    ),
    ("Eq. (14)", "The balance of two layers at the global minimum.", ("start-forgotten", "norm-ratio")),
    ("Proposition 5.3", "The trace of the Hessian of two linear layers.", ("hessian-trace",)),
    ("Eq. (15)", "The sharpness of common initialisations, relative to the end of training.", ("sharpness-of-starts",)),
    ("Figure 3", "Norms and sharpness at the end of SGD on anisotropic data.", ("norm-ratio",)),
    ("Figure 4", "Warm-up prevents the divergence of an unbalanced start.", ("warmup",)),
    (
        "Theorem 5.4, Eq. (16)-(18)",
        "The noise equilibrium of a deep linear net.",
        ("deep-linear-norms", "deep-norms"),
    ),
    ("Eq. (19)", "The norms of the layers of that net.", ("deep-linear-norms", "deep-norms")),
    (
        "Figure 5",
        "SGD brings the middle layers to one norm.",
        ("deep-norms", "deep-norms-digits"),
    ),
    ("Eq. (20)", "The balance of the noise and a term that breaks the symmetry.", ("broken-charge",)),
    ("Eq. (21)", "The balance of Eq. (20) near a minimum.", ("broken-charge",)),
    ("Eq. (22)", "The case of a deviation along an eigenvector.", ("two-curvatures",)),
    ("Eq. (23)", "The distance of the charge from its value at the minimum.", ("broken-charge",)),
    (
        "Figure 6",
        "SGD aligns the latent matrices of nonlinear networks.",
        ("latent-alignment", "latent-fresh-data"),
    ),
    ("Figure 7", "Scale-invariant weights grow under SGD.", ("scale-growth",)),
    ("Eq. (24)", "The norm of scale-invariant weights with weight decay.", ("charge-factor-two",)),
    (
        "Figure 8",
        "The norms of the two layers hardly depend on step size, batch size and width.",
        ("norm-ratio-settings",),
    ),
    ("Figure 9", "Figure 6 for other activations.", ("latent-alignment", "latent-fresh-data")),
    ("Eq. (25)-(26)", "Ito's lemma.", (), TEXTBOOK),
    ("Eq. (27)-(31)", "The derivation of (5).", ("charge-factor-two",)),
    ("Lemma B.1, Eq. (32)-(39)", "The noise along an orbit.", ("one-fixed-point",)),
    ("Eq. (40)-(43)", "The proof of Theorem 4.3.", ("orbit-eigenvalues",)),
    ("Lemma B.2, Eq. (44)-(54)", "The flow of the charge is at least linear in λ*.", ("charge-relaxes",)),
    ("Lemma B.3, Eq. (55)-(61)", "The distance of the charge is at most linear in λ*.", ("charge-relaxes",)),
    ("Corollary B.4, Eq. (62)", "Hence the charge relaxes at a rate that is bounded below.", ("charge-relaxes",)),
    (
        "Lemma B.5, Eq. (63)-(72)",
        "The distance of the charge to a moving equilibrium.",
        ("charge-follows",),
    ),
    (
        "Theorem B.6, Eq. (73)-(78)",
        "For s = μ = 0 the mean-square distance to the equilibrium vanishes (checked: SGD on one neuron, over three "
        "relaxation times). Otherwise it vanishes relative to C*, in probability (checked: its size while C* drifts "
        "and diffuses, over two relaxation times; not the limit).",
        ("charge-follows",),
    ),
    ("Eq. (79)-(89)", "The proofs of Proposition 5.3 and Theorem 5.2.", ("rows-and-columns", "hessian-trace")),
    ("Eq. (90)-(92)", "The balanced factors of a product.", ("factors-balance",)),
    ("Eq. (93)-(98)", "The exact change of the charge in one step.", ("step-identity",)),
    ("Eq. (99)-(100)", "The expected change of the charge in one step.", ("expected-change",)),
    (
        "Theorem D.1, Eq. (101)-(108)",
        "Along an orbit the expected change falls and has one zero.",
        ("discrete-fixed-point", "orbit-eigenvalues"),
    ),
    (
        "Theorem E.1, Eq. (109)-(120)",
        "The balance of neighbouring layers of a deep linear net.",
        ("deep-linear-norms",),
    ),
    (
        "Eq. (121)-(132)",
        "The solution of the equations of Theorem E.1.",
        ("deep-linear-norms",),
    ),
)

COVERAGE: tuple[Entry, ...] = tuple(Entry("noise_equilibrium", *row) for row in _RESULTS)
"""The results in the order of the paper."""

BEYOND: tuple[Addition, ...] = ()
"""The claims that go beyond the paper."""
