"""Which claims check which results of the papers, and why some results have none.

`COVERAGE` goes through the three papers in their order: theorems, lemmas, figures, algorithms, equations. Runs of
definitions and of tools of one proof share an entry. `BEYOND` holds the claims that no sentence of a paper makes.
"""

from dataclasses import dataclass

from undertow.verification.claim import Paper

__all__ = ["BEYOND", "COVERAGE", "Addition", "Entry", "of"]


@dataclass(frozen=True)
class Entry:
    """One result of a paper, what it says, and the claims that check it or the reason why there are none."""

    paper: Paper
    result: str
    says: str
    claims: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Addition:
    """A claim beyond the papers, and what it adds to them."""

    claim: str
    adds: str


def of(claim: str) -> tuple[Entry, ...]:
    """The results that a claim checks.

    >>> from undertow.verification.coverage import of
    >>> [entry.result for entry in of("dphi-projector")]
    ['Lemma 4.3', 'Lemma C.2']
    """
    return tuple(entry for entry in COVERAGE if claim in entry.claims)


TOOL = "a tool of the proof, used nowhere else"
CONSTANTS = "a bound with unnamed constants"
TEXTBOOK = "textbook"
DEFINITION = "a definition"
ALGEBRA = "algebra of the proof; its result is checked"

_HETEROGENEITY = (
    ("Algorithm 1", "Pooled SGD takes every batch from all the data.", ("environment-covariance", "exact-law")),
    ("Algorithm 2", "HeteroSGD takes every batch from one environment.", ("environment-covariance", "exact-law")),
    ("Figure 1", "A changing spurious signal contracts where a constant one is fitted.", (), "a drawing"),
    (
        "Theorem 1",
        "In short: HeteroSGD finds the invariant matrix, pooled SGD the invariant plus the mean spurious one.",
        ("invariant-or-mean",),
    ),
    (
        "Eq. (1)",
        "A measurement is y = <X, A* + A(e)>, X symmetric.",
        ("symmetric-measurements", "spurious-signal-alone"),
    ),
    ("Section 3.1, the parametrisation", "The fitted model is linear in UU'.", ("fitted-model",)),
    ("Section 3.1, UU' - VV'", "A signed signal is fitted by UU' - VV' in the same way.", ("indefinite-signal",)),
    ("Eq. (2)-(3)", "HeteroSGD is gradient descent on half the mean square.", ("sensing-factor-two",)),
    ("Algorithm 3", "HeteroSGD on matrix sensing from U = alpha I.", ("exact-law", "sensing-factor-two")),
    ("Eq. (4)", "Pooled SGD draws the environment of every measurement.", ("exact-law",)),
    ("Assumption 1 (a)-(c)", "Ranks against the dimension, and the form of both signals.", (), CONSTANTS),
    ("Assumption 1 (d)", "The two subspaces hardly overlap.", ("random-overlap",)),
    ("Proposition 1, Eq. (5)", "Random subspaces overlap by sqrt((r1 + r2)/d).", ("random-overlap",)),
    (
        "Assumption 2, Eq. (6)",
        "The spurious signal is bounded by M1, and its variance exceeds M2 times its mean.",
        ("paper-window-empty",),
    ),
    (
        "Assumption 2, Eq. (7)",
        "The spurious signal is nearly diagonal; with large entries off the diagonal filtering fails.",
        ("off-diagonal-signal",),
    ),
    ("Definition 1, Eq. (8)", "The restricted isometry of the measurements.", ("symmetric-measurements",)),
    ("Assumption 3", "How small the isometry's constant must be.", (), CONSTANTS),
    (
        "Theorem 2, Eq. (9)",
        "With a step in a window HeteroSGD finds the invariant matrix in log(1/alpha)/eta steps.",
        ("paper-window-empty", "filtering-by-spread", "invariant-or-mean"),
    ),
    ("Eq. (10)", "The error is of the order sqrt(d/m).", ("recovery-rate",)),
    ("Eq. (11)", "The invariant part ends at one and the spurious part at zero.", ("invariant-grows-first",)),
    (
        "Theorem 3, Eq. (12)-(13)",
        "Pooled SGD approaches the mean solution and is never near the invariant one.",
        ("pooled-stays-away", "invariant-or-mean"),
    ),
    ("Eq. (14)", "A sum of squares of linear forms is a measurement by xx'.", ("quadratic-net-constants",)),
    ("Example 1, Eq. (15)-(16)", "A net with quadratic activations is such a problem.", ("quadratic-net",)),
    (
        "Eq. (17)-(18)",
        "U splits into an invariant part, a spurious part and an error.",
        (),
        "a definition; the parts are measured in invariant-grows-first and recovery-rate",
    ),
    (
        "Eq. (19)-(24)",
        "How the three parts move in a step.",
        (),
        "algebra of the step; the motion of the parts is measured in invariant-grows-first and recovery-rate",
    ),
    ("Eq. (25)", "The singular values of the invariant part follow one recursion.", ("invariant-grows-first",)),
    ("Eq. (26)", "The spurious part stays below a level that follows that recursion.", (), CONSTANTS),
    (
        "Figure 2",
        "The mean of the spurious component grows while its moment 0.1 falls. The paper does not name the law; checked "
        "for q (1 + eta s), s = 1 - M or 1 + M, eta = 0.05, where the moment falls from M = 7 on.",
        ("typical-growth",),
    ),
    (
        "Figure 3",
        "From some heterogeneity on the spurious signal is filtered out.",
        ("filtering-by-spread", "finite-time-transition"),
    ),
    ("Figure 4", "From some step size on the spurious signal is filtered out.", ("filtering-by-step",)),
    ("Figure 5", "HeteroSGD against pooled SGD.", ("invariant-or-mean",)),
    ("Lemmas 1 to 4, Eq. (27)-(30)", "What the restricted isometry implies for products of matrices.", (), TEXTBOOK),
    ("Definition 2, Eq. (31)", "Two recursions that bracket (25).", ("invariant-grows-first",)),
    (
        "Lemma 5, Eq. (32)-(37)",
        "In the first phase the singular values stay within a sixth of (25).",
        ("invariant-grows-first",),
    ),
    ("Definition 3, Eq. (38)", "The level below which the spurious part is not followed.", (), DEFINITION),
    ("Definition 4", "The controller sequence that dominates the spurious part.", ("controller-event",)),
    ("Lemma 6, Eq. (39)", "The controller stays below its level, probably.", ("controller-event",)),
    (
        "Definition 5, Eq. (40)-(41)",
        "The family of products behind the controller.",
        ("controller-event",),
    ),
    ("Lemma 7, Eq. (42)-(46)", "Their power 2/3 is a supermartingale.", ("controller-event",)),
    ("Eq. (47)-(50)", "Hence the controller crosses its level rarely.", ("controller-event",)),
    ("Lemma 8, Eq. (51)-(54)", "U'U is the sum over the parts, up to the overlap.", (), TOOL),
    ("Lemmas 9 and 10, Eq. (55)-(60)", "The error of the isometry is below the level.", (), TOOL),
    (
        "Lemma 11 and Corollary 1, Eq. (61)-(64)",
        "The controller dominates the spurious part.",
        (),
        "a tool of the proof; that the spurious part stays small is measured in invariant-grows-first",
    ),
    (
        "Lemmas 12 and 13, Eq. (65)-(74)",
        "The error part grows slowly.",
        (),
        "a bound with unnamed constants; the size the error part has is measured in recovery-rate",
    ),
    (
        "Theorem 4",
        "In the first phase the invariant part grows by more than 1 + eta/3 a step, to between 1/4 and 7/18.",
        ("invariant-grows-first",),
    ),
    (
        "Lemma 14, Eq. (75)-(87)",
        "One step of that growth, between the recursions (31).",
        ("invariant-grows-first",),
    ),
    ("Lemma 15, Eq. (88)-(93)", "Near one the singular values stay between 1 - 5g and 1 + g.", (), TOOL),
    ("Theorem 5, Eq. (94)-(96)", "In the second phase the invariant part approaches one.", ("invariant-grows-first",)),
    ("Definition 6, Lemmas 16 to 19, Eq. (97)-(102)", "Nets, Gaussian matrices, concentration.", (), TEXTBOOK),
    ("Eq. (103)-(108)", "The proof of Proposition 1.", ("random-overlap",)),
    (
        "Theorem 6, Eq. (109)-(114)",
        "Theorem 3 for gradient descent on the pooled data.",
        (),
        "Theorem 3 with many measurements, which pooled-stays-away checks",
    ),
    ("Eq. (115)-(118)", "The noise of pooled SGD is small with many measurements.", (), CONSTANTS),
    ("Figure 6", "With few measurements a step pooled SGD is near neither solution.", ("pooled-near-neither",)),
    ("Eq. (119)-(120)", "The quadratic net again.", ("quadratic-net",)),
    (
        "Lemma 20, Eq. (121)-(122)",
        "Measurements by xx' give 2 A + tr(A) I.",
        ("quadratic-net-constants",),
    ),
    ("Algorithm 4", "HeteroSGD for quadratic nets, the trace taken out.", ("quadratic-net-constants", "quadratic-net")),
    ("Remark 1", "The trace may be estimated from the labels.", ("quadratic-net",)),
    (
        "Theorem 7, Eq. (123)-(125)",
        "Algorithm 4 finds the invariant neurons.",
        ("quadratic-net", "quadratic-net-constants"),
    ),
    (
        "Theorem 8, Eq. (126)",
        "An invariant matrix with unequal eigenvalues is found as well. Checked for rank 2 with the eigenvalues 1 and "
        "1/kappa, kappa = 2 and 4 (and 8 beyond the smoke scale), with step sizes outside the theorem's window.",
        ("condition-number",),
    ),
    ("Eq. (127)", "The parts in a subspace that turns.", (), TOOL),
)

_ZERO_LOSS = (
    ("Eq. (1)", "SGD with a noise sigma(x) that depends on the point.", ("additive-covariance",)),
    (
        "Section 1.1 and Figure 1",
        "About the manifold SGD fluctuates like an Ornstein-Uhlenbeck process, and that makes the drift along it.",
        ("fluctuations",),
    ),
    ("Eq. (2)-(3)", "The SDE of SGD, on two clocks.", ("sde-weak-order",)),
    ("Eq. (4)-(5)", "What Ito's lemma makes of Phi.", (), "a sketch of Theorem 4.6"),
    ("Assumptions 3.1 and 3.2", "The minimisers are a manifold to which gradient flow converges.", (), "assumptions"),
    ("Theorem 4.1, Eq. (6)-(7)", "Katzenberger's theorem.", (), "quoted; SGD is covered by Theorem 4.6"),
    ("Lemma 4.2, Eq. (8)", "SGD is one of Katzenberger's processes.", (), ALGEBRA),
    ("Lemma 4.3", "On the manifold the derivative of Phi is the projector on the tangent space.", ("dphi-projector",)),
    ("Definition 4.4", "The Lyapunov operator.", (), DEFINITION),
    ("Lemma 4.5, Eq. (9)", "The second derivative of Phi, in three parts.", ("d2phi-signs",)),
    (
        "Theorem 4.6, Eq. (10)",
        "After T/eta^2 steps SGD is where a diffusion on the manifold is at time T.",
        ("limit-starts-at-phi", "network-follows-limit", "mixed-circle", "two-phases", "motor-speed"),
    ),
    ("Remark 4.7", "Whole paths converge too.", (), "a mode of convergence; the claims look at single times"),
    (
        "Corollary 5.1, Eq. (11)",
        "Isotropic noise: Brownian motion on the manifold and a flow against ln |H|_+.",
        ("isotropic-quarter", "isotropic-ellipse", "isotropic-covariance"),
    ),
    ("Eq. (12)", "Label noise has the covariance delta^2 H at zero loss.", ("label-noise-covariance",)),
    (
        "Corollary 5.2, Eq. (13)",
        "Label noise: a flow against the trace of the Hessian, at a quarter.",
        ("label-noise-quarter", "network-follows-limit"),
    ),
    (
        "Theorem 6.1",
        "From any start label-noise SGD finds a sparse vector from O(k ln d) equations.",
        ("label-noise-escapes", "recovery"),
    ),
    ("Eq. (14)-(15)", "The overparametrised linear model and its manifold.", (), DEFINITION),
    ("Lemma 6.2", "That manifold is one, with a Hessian of rank n.", (), "linear algebra"),
    (
        "Lemma 6.3",
        "Gradient flow of the linear model converges from every start without zeros.",
        (),
        "proved by Lemma D.2, which pl-constant checks; uv-conserved settles from random starts",
    ),
    ("Remark 6.4", "Earlier work assumed it.", (), "a remark on the literature"),
    ("Eq. (16)-(17)", "The regulariser and its flow.", ("uv-rate",)),
    ("Lemma 6.5", "The flow ends at the minimiser of the regulariser.", ("flow-minimises-l1",)),
    ("Eq. (18) and Lemma 6.6", "That minimiser is the sparse vector.", ("equations-needed", "recovery")),
    ("Section 6.3", "The gradient of the model in the kernel regime.", ("kernel-gradient",)),
    (
        "Theorem 6.7",
        "On the linearised model gradient descent errs by 1 - n/d at least, whenever it stops.",
        ("kernel-regime-bound", "recovery", "label-noise-escapes"),
    ),
    ("Definitions A.1 to A.8, Eq. (19)", "Paths with jumps, martingales.", (), TEXTBOOK),
    ("Lemma A.9", "Ito's lemma.", (), TEXTBOOK),
    ("Definitions A.10 to A.12, Theorem A.13, Eq. (20)", "Weak convergence.", (), TEXTBOOK),
    ("Definition A.14, Lemma A.15, Remark A.16", "The uniform metric.", (), TEXTBOOK),
    ("Lemma B.1", "Phi is twice differentiable.", (), "quoted"),
    ("Conditions B.2 to B.5 and Lemma B.6", "SGD meets Katzenberger's conditions.", (), TOOL),
    ("Theorems B.7, B.8 and B.9, Eq. (21)-(24)", "Convergence up to the time of leaving a compact set.", (), TOOL),
    ("Remark B.10 and Figure 2", "First down to the manifold, then along it.", ("two-phases",)),
    ("Lemmas C.1 and C.3", "The Hessian vanishes along the manifold.", (), "two lines"),
    ("Lemma C.2", "Phi does not change along the gradient, to second order.", ("dphi-projector",)),
    ("Lemma C.4, Eq. (25)-(28)", "The second derivative of Phi with one direction along.", ("d2phi-signs",)),
    ("Lemmas C.5 and C.6, Eq. (29)-(31)", "The second derivative of Phi across.", ("d2phi-signs",)),
    (
        "Lemma C.7",
        "The compensation of tangent noise depends on the manifold only.",
        ("manifold-only", "second-fundamental-form"),
    ),
    ("Eq. (32)", "The gradient of the trace, in the proof of Corollary 5.2.", (), ALGEBRA),
    ("Lemma C.8, Eq. (33)-(34)", "A motor: noise that no potential describes.", ("motor-speed",)),
    ("Lemma C.9", "The exponential of a rotation's generator.", (), TEXTBOOK),
    ("Lemma D.1 and Eq. (35)", "The kernel matrix and the Hessian of the linear model.", (), "linear algebra"),
    ("Lemma D.2", "The gradient of the linear model dominates its loss.", ("pl-constant",)),
    ("Lemma D.3", "Gradient flow conserves u_j v_j.", ("uv-conserved",)),
    ("Lemma D.4", "Stationary points without zeros are minimisers.", (), "linear algebra"),
    (
        "Definition D.5 and Lemma D.6, Eq. (36)-(39)",
        "The regulariser on the manifold is a weighted l1 norm of w.",
        ("flow-minimises-l1",),
    ),
    (
        "Lemma D.7, Eq. (40)",
        "Recovery from k ln(d/k) + k equations of signs.",
        ("equations-needed",),
    ),
    ("Lemma D.8, Eq. (41)-(45)", "Recovery from k ln d Gaussian equations.", ("equations-needed", "recovery")),
    ("Lemma D.9", "The mean of the largest of d Gaussians.", (), TEXTBOOK),
    (
        "Lemmas D.10 to D.12, Eq. (46)-(56)",
        "The flow extends continuously to the boundary, where it rests at zeros of u or v.",
        (),
        TOOL,
    ),
    ("Lemma D.13", "Along the flow u_j v_j decays at the rate s_j, so that it lasts for ever.", ("uv-rate",)),
    ("Lemmas D.14 and D.15", "Domination in the positive orthant.", (), TOOL),
    (
        "Lemmas D.16 and D.17, Eq. (57)-(60)",
        "The flow has finite length.",
        (),
        "a bound with unnamed constants; where the flow ends is checked in flow-minimises-l1",
    ),
    ("Eq. (61)-(69)", "The proofs of Lemma 6.5 and Theorem 6.7.", ("kernel-regime-bound",)),
)

_NOISE_EQUILIBRIUM = (
    ("Eq. (1)", "The SDE of SGD, with sigma^2 = eta/(2S).", ("sde-weak-order",)),
    (
        "Figure 1",
        "Under scale invariance SGD moves outward for ever.",
        ("equilibrium-at-infinity", "scale-growth"),
    ),
    ("Section 3", "The covariance of a batch gradient.", ("minibatch-covariance",)),
    ("Eq. (2)-(3)", "A symmetry, and that gradients are orthogonal to it.", (), "a definition and its derivative"),
    ("Eq. (4)", "Gradient flow conserves the charge.", ("charge-conserved",)),
    ("Eq. (5)", "Noise moves the charge.", ("expected-change", "charge-factor-two")),
    ("Definition 4.1 and Eq. (6)", "Exponential symmetries and their charge.", ("charge-factor-two",)),
    ("Definition 4.2 and Eq. (7)", "The flow of the charge with weight decay.", ("expected-change",)),
    ("Section 4.2, time scales", "How long noise takes to its equilibrium.", ("equilibration-time",)),
    ("Section 4.3, first paragraph", "Where weight decay and noise balance.", ("stationary-condition",)),
    ("Eq. (8)", "The orbit of an exponential symmetry.", (), "a definition; factors-balance moves along it"),
    (
        "Theorem 4.3 (1)-(3)",
        "Along an orbit the flow falls, the charge rises, and the flow has one zero.",
        ("one-fixed-point", "equilibrium-at-infinity"),
    ),
    ("Theorem 4.3 (4)", "That zero depends smoothly on the point.", ("discrete-fixed-point",)),
    (
        "Remark 4.4",
        "The same holds in expectation for SGD and gradient descent in discrete time.",
        ("discrete-fixed-point",),
    ),
    ("Theorem 4.5", "The charge converges to its equilibrium.", ("charge-relaxes", "charge-follows")),
    ("Eq. (9)", "The noise equilibrium.", ("stationary-condition",)),
    ("Definition 4.6", "A noise equilibrium is where a function stays under SGD.", (), DEFINITION),
    ("Figure 2", "SGD aligns two linear layers, gradient descent does not.", ("two-layer-alignment",)),
    ("Eq. (10)-(11)", "The symmetry of a factorisation, and what gradient descent conserves.", ("charge-conserved",)),
    (
        "Proposition 5.1",
        "The charge of a factorisation moves by the noise of rows less that of columns.",
        ("rows-and-columns", "charge-factor-two"),
    ),
    ("Section 5.1, U a row and W a column", "The case that is solved.", ("vectors-decay",)),
    ("Eq. (12)", "The two-layer linear net.", (), DEFINITION),
    (
        "Theorem 5.2, Eq. (13)",
        "Where the noise of two layers balances.",
        ("factors-balance", "decay-in-the-balance", "two-layer-alignment", "start-forgotten"),
    ),
    ("Eq. (14)", "The same at the global minimum.", ("start-forgotten", "norm-ratio")),
    ("Proposition 5.3", "The trace of the Hessian of two linear layers.", ("hessian-trace",)),
    ("Eq. (15)", "The sharpness of usual starts against that of the end.", ("sharpness-of-starts",)),
    ("Figure 3", "Norms and sharpness that SGD ends with on anisotropic data.", ("norm-ratio",)),
    ("Figure 4", "Warm-up keeps a badly balanced start alive.", ("warmup",)),
    (
        "Theorem 5.4, Eq. (16)-(18)",
        "The noise equilibrium of a deep linear net.",
        ("deep-linear-norms", "deep-norms"),
    ),
    ("Eq. (19)", "The norms of its layers.", ("deep-linear-norms", "deep-norms")),
    (
        "Figure 5",
        "SGD brings the middle layers to one norm.",
        ("deep-norms", "deep-norms-digits"),
    ),
    ("Eq. (20)", "Where a term that breaks the symmetry balances the noise.", ("broken-charge",)),
    ("Eq. (21)", "The same near a minimum.", ("broken-charge",)),
    ("Eq. (22)", "The case of a deviation along an eigenvector.", ("two-curvatures",)),
    ("Eq. (23)", "How far the charge is from the minimum's.", ("broken-charge",)),
    (
        "Figure 6",
        "SGD makes the latent matrices of nonlinear nets alike.",
        ("latent-alignment", "latent-fresh-data"),
    ),
    ("Figure 7", "Scale-invariant weights grow under SGD.", ("scale-growth",)),
    ("Eq. (24)", "Their norm with weight decay.", ("charge-factor-two",)),
    ("Figure 8", "The norms hardly depend on step, batch and width.", ("norm-ratio-settings",)),
    ("Figure 9", "Figure 6 for other activations.", ("latent-alignment", "latent-fresh-data")),
    ("Eq. (25)-(26)", "Ito's lemma.", (), TEXTBOOK),
    ("Eq. (27)-(31)", "The derivation of (5).", ("charge-factor-two",)),
    ("Lemma B.1, Eq. (32)-(39)", "The noise along an orbit.", ("one-fixed-point",)),
    ("Eq. (40)-(43)", "The proof of Theorem 4.3.", ("orbit-eigenvalues",)),
    ("Lemma B.2, Eq. (44)-(54)", "The flow of the charge is at least linear in lambda*.", ("charge-relaxes",)),
    ("Lemma B.3, Eq. (55)-(61)", "The distance of the charge is at most linear in lambda*.", ("charge-relaxes",)),
    ("Corollary B.4, Eq. (62)", "Hence the charge relaxes at a rate that is bounded below.", ("charge-relaxes",)),
    (
        "Lemma B.5, Eq. (63)-(72)",
        "How closely the charge follows an equilibrium that moves.",
        ("charge-follows",),
    ),
    (
        "Theorem B.6, Eq. (73)-(78)",
        "For s = mu = 0 the mean-square distance to the equilibrium vanishes (checked: SGD on one neuron, over three "
        "relaxation times). Else it vanishes beside C*, in probability (checked: its size while C* drifts and "
        "diffuses, over two relaxation times; not the limit).",
        ("charge-follows",),
    ),
    ("Eq. (79)-(89)", "The proofs of Proposition 5.3 and Theorem 5.2.", ("rows-and-columns", "hessian-trace")),
    ("Eq. (90)-(92)", "The balanced factors of a product.", ("factors-balance",)),
    ("Eq. (93)-(98)", "The change of the charge in one step, on every path.", ("step-identity",)),
    ("Eq. (99)-(100)", "Its expectation.", ("expected-change",)),
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
        "The solution of those equations.",
        ("deep-linear-norms",),
    ),
)

COVERAGE: tuple[Entry, ...] = (
    *(Entry("heterogeneity", *row) for row in _HETEROGENEITY),
    *(Entry("zero_loss", *row) for row in _ZERO_LOSS),
    *(Entry("noise_equilibrium", *row) for row in _NOISE_EQUILIBRIUM),
)
"""Every result of the papers, in their order."""

BEYOND: tuple[Addition, ...] = (
    Addition("bursts-return", "that HeteroSGD does not converge: without its early stop the spurious signal returns"),
    Addition("burst-tail", "the power law of those returns"),
    Addition("two-phase-law", "the growth of variables on grouped data, in phases"),
    Addition("invariant-regressor", "an estimator for grouped data that is built on it"),
    Addition("minibatch-null", "that plain SGD rests at zero loss, and that contradictory labels act as label noise"),
    Addition("heavy-ball", "momentum, which the paper leaves to future work"),
)
"""The claims beyond the papers."""
