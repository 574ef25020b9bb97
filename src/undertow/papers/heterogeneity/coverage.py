"""The claims that check each result of heterogeneity, and the reasons why some results have none."""

from undertow.verification.coverage import CONSTANTS, DEFINITION, TEXTBOOK, TOOL, Addition, Entry

__all__ = ["BEYOND", "COVERAGE"]

_RESULTS = (
    ("Algorithm 1", "Pooled SGD takes every batch from all the data.", ("environment-covariance", "exact-law")),
    ("Algorithm 2", "HeteroSGD takes every batch from one environment.", ("environment-covariance", "exact-law")),
    ("Figure 1", "A changing spurious signal decays, and a constant one is fitted.", (), "a drawing"),
    (
        "Theorem 1",
        "Informally: HeteroSGD finds the invariant matrix, pooled SGD the invariant plus the mean spurious one.",
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
    ("Algorithm 3", "HeteroSGD on matrix sensing from U = α I.", ("exact-law", "sensing-factor-two")),
    ("Eq. (4)", "Pooled SGD draws the environment of every measurement.", ("exact-law",)),
    ("Assumption 1 (a)-(c)", "Bounds on the ranks by the dimension, and the form of both signals.", (), CONSTANTS),
    ("Assumption 1 (d)", "The two subspaces hardly overlap.", ("random-overlap",)),
    ("Proposition 1, Eq. (5)", "Random subspaces overlap by √((r1 + r2)/d).", ("random-overlap",)),
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
    ("Assumption 3", "The bound on the constant of the isometry.", (), CONSTANTS),
    (
        "Theorem 2, Eq. (9)",
        "With a step size in a window HeteroSGD finds the invariant matrix in log(1/α)/η steps.",
        ("paper-window-empty", "filtering-by-spread", "invariant-or-mean"),
    ),
    ("Eq. (10)", "The error is of the order √(d/m).", ("recovery-rate",)),
    ("Eq. (11)", "The invariant part ends at one and the spurious part at zero.", ("invariant-grows-first",)),
    (
        "Theorem 3, Eq. (12)-(13)",
        "Pooled SGD approaches the mean solution and is never near the invariant one.",
        ("pooled-stays-away", "invariant-or-mean"),
    ),
    ("Eq. (14)", "A sum of squares of linear forms is a measurement by xx'.", ("quadratic-net-constants",)),
    (
        "Example 1, Eq. (15)-(16)",
        "Training a network with quadratic activations is matrix sensing.",
        ("quadratic-net",),
    ),
    (
        "Eq. (17)-(18)",
        "U splits into an invariant part, a spurious part and an error.",
        (),
        "a definition; the parts are measured in invariant-grows-first and recovery-rate",
    ),
    (
        "Eq. (19)-(24)",
        "The change of the three parts of U in one step.",
        (),
        "algebra of the step; the motion of the parts is measured in invariant-grows-first and recovery-rate",
    ),
    ("Eq. (25)", "The singular values of the invariant part follow one recursion.", ("invariant-grows-first",)),
    ("Eq. (26)", "The spurious part stays below a level that follows the recursion (25).", (), CONSTANTS),
    (
        "Figure 2",
        "The mean of the spurious component grows while its moment of order 0.1 falls. The paper does not name the "
        "law; checked for q (1 + η s), s = 1 - M or 1 + M, η = 0.05, where the moment falls for M ≥ 7.",
        ("typical-growth",),
    ),
    (
        "Figure 3",
        "From some heterogeneity on the spurious signal is filtered out.",
        ("filtering-by-spread", "finite-time-transition"),
    ),
    ("Figure 4", "From some step size on the spurious signal is filtered out.", ("filtering-by-step",)),
    ("Figure 5", "HeteroSGD against pooled SGD.", ("invariant-or-mean",)),
    ("Lemmas 1 to 4, Eq. (27)-(30)", "Consequences of the restricted isometry for products of matrices.", (), TEXTBOOK),
    ("Definition 2, Eq. (31)", "Two recursions, below and above the recursion (25).", ("invariant-grows-first",)),
    (
        "Lemma 5, Eq. (32)-(37)",
        "In the first phase the singular values stay within a sixth of the recursion (25).",
        ("invariant-grows-first",),
    ),
    ("Definition 3, Eq. (38)", "The level below which the proof does not follow the spurious part.", (), DEFINITION),
    ("Definition 4", "The controller sequence that dominates the spurious part.", ("controller-event",)),
    ("Lemma 6, Eq. (39)", "The controller stays below its level with high probability.", ("controller-event",)),
    (
        "Definition 5, Eq. (40)-(41)",
        "The family of products that defines the controller.",
        ("controller-event",),
    ),
    ("Lemma 7, Eq. (42)-(46)", "The power 2/3 of these products is a supermartingale.", ("controller-event",)),
    ("Eq. (47)-(50)", "Hence the controller rarely crosses its level.", ("controller-event",)),
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
        "In the first phase the invariant part grows by a factor above 1 + η/3 per step, to between 1/4 and 7/18.",
        ("invariant-grows-first",),
    ),
    (
        "Lemma 14, Eq. (75)-(87)",
        "One step of the growth of the invariant part, between the recursions (31).",
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
    ("Figure 6", "With few measurements per step pooled SGD is near neither solution.", ("pooled-near-neither",)),
    ("Eq. (119)-(120)", "The quadratic network of Example 1.", ("quadratic-net",)),
    (
        "Lemma 20, Eq. (121)-(122)",
        "Measurements by xx' give 2 A + tr(A) I.",
        ("quadratic-net-constants",),
    ),
    (
        "Algorithm 4",
        "HeteroSGD for quadratic networks, without the trace.",
        ("quadratic-net-constants", "quadratic-net"),
    ),
    ("Remark 1", "The trace may be estimated from the labels.", ("quadratic-net",)),
    (
        "Theorem 7, Eq. (123)-(125)",
        "Algorithm 4 finds the invariant neurons.",
        ("quadratic-net", "quadratic-net-constants"),
    ),
    (
        "Theorem 8, Eq. (126)",
        "An invariant matrix with unequal eigenvalues is found as well. Checked for rank 2 with the eigenvalues 1 and "
        "1/κ, κ = 2 and 4 (and 8 beyond the smoke scale), with step sizes outside the theorem's window.",
        ("condition-number",),
    ),
    ("Eq. (127)", "The parts of U in a subspace that rotates.", (), TOOL),
)

COVERAGE: tuple[Entry, ...] = tuple(Entry("heterogeneity", *row) for row in _RESULTS)
"""The results in the order of the paper."""

BEYOND: tuple[Addition, ...] = (
    Addition("bursts-return", "that HeteroSGD does not converge: without early stopping the spurious signal returns"),
    Addition("burst-tail", "the power law of those bursts"),
    Addition("two-phase-law", "the growth of variables on grouped data, in phases"),
    Addition("invariant-regressor", "an estimator for grouped data that uses this growth"),
)
"""The claims that go beyond the paper."""
