"""The claims that check each result of zero_loss, and the reasons why some results have none."""

from undertow.verification.coverage import ALGEBRA, DEFINITION, TEXTBOOK, TOOL, Addition, Entry

__all__ = ["BEYOND", "COVERAGE"]

_RESULTS = (
    ("Eq. (1)", "SGD with a noise σ(x) that depends on the point.", ("additive-covariance",)),
    (
        "Section 1.1 and Figure 1",
        "Around the manifold SGD fluctuates like an Ornstein-Uhlenbeck process, which causes the drift along it.",
        ("fluctuations",),
    ),
    ("Eq. (2)-(3)", "The SDE of SGD, on two clocks.", ("sde-weak-order",)),
    ("Eq. (4)-(5)", "Ito's lemma applied to Φ.", (), "a sketch of Theorem 4.6"),
    ("Assumptions 3.1 and 3.2", "The minimisers are a manifold to which gradient flow converges.", (), "assumptions"),
    ("Theorem 4.1, Eq. (6)-(7)", "Katzenberger's theorem.", (), "quoted; SGD is covered by Theorem 4.6"),
    ("Lemma 4.2, Eq. (8)", "SGD is one of Katzenberger's processes.", (), ALGEBRA),
    ("Lemma 4.3", "On the manifold the derivative of Φ is the projector on the tangent space.", ("dphi-projector",)),
    ("Definition 4.4", "The Lyapunov operator.", (), DEFINITION),
    ("Lemma 4.5, Eq. (9)", "The second derivative of Φ, in three parts.", ("d2phi-signs",)),
    (
        "Theorem 4.6, Eq. (10)",
        "After T/η² steps SGD is close to a diffusion on the manifold at time T.",
        ("limit-starts-at-phi", "network-follows-limit", "mixed-circle", "two-phases", "motor-speed"),
    ),
    ("Remark 4.7", "Whole paths converge too.", (), "a mode of convergence; the claims check single times"),
    (
        "Corollary 5.1, Eq. (11)",
        "Isotropic noise: Brownian motion on the manifold and a flow down the gradient of ln |H|_+.",
        ("isotropic-quarter", "isotropic-ellipse", "isotropic-covariance"),
    ),
    ("Eq. (12)", "Label noise has the covariance δ² H at zero loss.", ("label-noise-covariance",)),
    (
        "Corollary 5.2, Eq. (13)",
        "Label noise: a flow along minus a quarter of the gradient of the trace of the Hessian.",
        ("label-noise-quarter", "network-follows-limit"),
    ),
    (
        "Theorem 6.1",
        "From any start label-noise SGD finds a sparse vector from O(k ln d) equations.",
        ("label-noise-escapes", "recovery"),
    ),
    ("Eq. (14)-(15)", "The overparametrised linear model and its manifold.", (), DEFINITION),
    ("Lemma 6.2", "The minimisers of the linear model are a manifold, with a Hessian of rank n.", (), "linear algebra"),
    (
        "Lemma 6.3",
        "Gradient flow of the linear model converges from every start without zero entries.",
        (),
        "proved by Lemma D.2, which pl-constant checks; uv-conserved settles from random starts",
    ),
    ("Remark 6.4", "Earlier work assumed the convergence of Lemma 6.3.", (), "a remark on the literature"),
    ("Eq. (16)-(17)", "The regulariser and its flow.", ("uv-rate",)),
    ("Lemma 6.5", "The flow ends at the minimiser of the regulariser.", ("flow-minimises-l1",)),
    (
        "Eq. (18) and Lemma 6.6",
        "The minimiser of the regulariser is the sparse vector.",
        ("equations-needed", "recovery"),
    ),
    ("Section 6.3", "The gradient of the model in the kernel regime.", ("kernel-gradient",)),
    (
        "Theorem 6.7",
        "On the linearised model the error of gradient descent is at least 1 - n/d at every step.",
        ("kernel-regime-bound", "recovery", "label-noise-escapes"),
    ),
    ("Definitions A.1 to A.8, Eq. (19)", "Paths with jumps, martingales.", (), TEXTBOOK),
    ("Lemma A.9", "Ito's lemma.", (), TEXTBOOK),
    ("Definitions A.10 to A.12, Theorem A.13, Eq. (20)", "Weak convergence.", (), TEXTBOOK),
    ("Definition A.14, Lemma A.15, Remark A.16", "The uniform metric.", (), TEXTBOOK),
    ("Lemma B.1", "Φ is twice differentiable.", (), "quoted"),
    ("Conditions B.2 to B.5 and Lemma B.6", "SGD meets Katzenberger's conditions.", (), TOOL),
    ("Theorems B.7, B.8 and B.9, Eq. (21)-(24)", "Convergence up to the time of leaving a compact set.", (), TOOL),
    ("Remark B.10 and Figure 2", "The two phases: towards the manifold, then along it.", ("two-phases",)),
    ("Lemmas C.1 and C.3", "The Hessian vanishes along the manifold.", (), "proofs of two lines"),
    ("Lemma C.2", "Φ does not change along the gradient, to second order.", ("dphi-projector",)),
    ("Lemma C.4, Eq. (25)-(28)", "The second derivative of Φ with one tangent direction.", ("d2phi-signs",)),
    ("Lemmas C.5 and C.6, Eq. (29)-(31)", "The second derivative of Φ in two normal directions.", ("d2phi-signs",)),
    (
        "Lemma C.7",
        "The compensation of tangent noise depends on the manifold only.",
        ("manifold-only", "second-fundamental-form"),
    ),
    ("Eq. (32)", "The gradient of the trace, in the proof of Corollary 5.2.", (), ALGEBRA),
    (
        "Lemma C.8, Eq. (33)-(34)",
        "A motor: a drift by noise that is not the gradient of a potential.",
        ("motor-speed",),
    ),
    ("Lemma C.9", "The exponential of a rotation's generator.", (), TEXTBOOK),
    ("Lemma D.1 and Eq. (35)", "The kernel matrix and the Hessian of the linear model.", (), "linear algebra"),
    ("Lemma D.2", "The gradient of the linear model dominates its loss.", ("pl-constant",)),
    ("Lemma D.3", "Gradient flow conserves u_j v_j.", ("uv-conserved",)),
    ("Lemma D.4", "Stationary points without zero entries are minimisers.", (), "linear algebra"),
    (
        "Definition D.5 and Lemma D.6, Eq. (36)-(39)",
        "The regulariser on the manifold is a weighted l1 norm of w.",
        ("flow-minimises-l1",),
    ),
    (
        "Lemma D.7, Eq. (40)",
        "Recovery from k ln(d/k) + k equations with random signs as coefficients.",
        ("equations-needed",),
    ),
    (
        "Lemma D.8, Eq. (41)-(45)",
        "Recovery from k ln d equations with Gaussian coefficients.",
        ("equations-needed", "recovery"),
    ),
    ("Lemma D.9", "The mean of the largest of d Gaussians.", (), TEXTBOOK),
    (
        "Lemmas D.10 to D.12, Eq. (46)-(56)",
        "The flow extends continuously to the boundary, where it rests at zeros of u or v.",
        (),
        TOOL,
    ),
    (
        "Lemma D.13",
        "Along the flow u_j v_j decays at the rate s_j, so that the flow exists for all times.",
        ("uv-rate",),
    ),
    ("Lemmas D.14 and D.15", "Domination in the positive orthant.", (), TOOL),
    (
        "Lemmas D.16 and D.17, Eq. (57)-(60)",
        "The flow has finite length.",
        (),
        "a bound with unnamed constants; where the flow ends is checked in flow-minimises-l1",
    ),
    ("Eq. (61)-(69)", "The proofs of Lemma 6.5 and Theorem 6.7.", ("kernel-regime-bound",)),
)

COVERAGE: tuple[Entry, ...] = tuple(Entry("zero_loss", *row) for row in _RESULTS)
"""The results in the order of the paper."""

BEYOND: tuple[Addition, ...] = (
    Addition("minibatch-null", "that plain SGD stops at zero loss, and that contradictory labels act as label noise"),
    Addition("heavy-ball", "momentum, which the paper leaves to future work"),
)
"""The claims that go beyond the paper."""
