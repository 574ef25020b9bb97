"""The paper of this pack: its title, corrections, and the claims that check its results."""

from undertow.verification import Entry, Erratum

TITLE = "Law of Balance and Stationary Distribution of SGD"
PAPER = "law_of_balance"

ERRATA = (
    Erratum(
        PAPER,
        "law of balance, for SGD",
        "SGD changes |u|^2 - |w|^2 by the covariances C1 and C2 of A.",
        "That is the law of the SDE. A step of SGD has the second moments E A'A and E AA', equal to them at a minimum.",
        "balance-of-sgd",
    ),
    Erratum(
        PAPER,
        "phase transition, for SGD",
        "The critical step size is b2/a3 (one sample per step).",
        "That is the threshold of the SDE. SGD has E log|1 + 2 η xy| = 0, which is b2/(a3 - b2^2) for two labels.",
        "threshold-of-sgd",
    ),
)
COVERAGE = (
    Entry(PAPER, "Law of balance", "The rate of |u|^2 - |w|^2 under the SDE.", ("law-of-balance", "balance-of-sgd")),
    Entry(PAPER, "Exponential decay", "Two layers balance exponentially.", ("balance-decays", "deep-balance")),
    Entry(PAPER, "One layer", "The stationary distribution of linear regression.", ("regression-variance",)),
    Entry(PAPER, "Two layers", "The stationary distribution of v.", ("two-layers", "density")),
    Entry(PAPER, "Phase transition", "Two layers learn nothing above T_c.",
          ("critical-temperature", "decay-and-threshold", "threshold-of-sgd")),
    Entry(PAPER, "Deeper chains", "Three layers have no transition. The tail of v.", ("no-transition", "tail")),
    Entry(PAPER, "Broken ergodicity", "v keeps its sign.", ("broken-ergodicity",)),
)  # fmt: skip
