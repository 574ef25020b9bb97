"""Errata of the heterogeneity paper."""

from undertow.verification.errata import Erratum

__all__ = ["ERRATA"]

ERRATA: tuple[Erratum, ...] = (
    Erratum(
        paper="heterogeneity",
        place="Eq. (2) against Eq. (3)",
        printed="the update (3), U - η G U, is gradient descent on the loss (2), 1/(2m) ∑ r²",
        right="the gradient of (2) is 2 G U: the paper's η is twice the step size of its own loss, "
        "or the loss is 1/(4m) ∑ r²",
        claim="sensing-factor-two",
    ),
    Erratum(
        paper="heterogeneity",
        place="Section 5 against Eq. (1) and Definition 1",
        printed="the measurements X are symmetric, with i.i.d. N(0,1) elements",
        right="off the diagonal the variance is 1/2, or the isometry (8) fails by a factor of 2; the same law is full "
        "X with i.i.d. N(0,1) elements, symmetrised in the step",
        claim="symmetric-measurements",
    ),
    Erratum(
        paper="heterogeneity",
        place="Section 3.1, the parametrisation",
        printed="the fitted model is y = <A, UU'>",
        right="y = <X, UU'>, as in Eq. (2)",
        claim="fitted-model",
    ),
    Erratum(
        paper="heterogeneity",
        place="Section 5 and Appendix B.2 against Eq. (1)",
        printed="the environments are A(e) = A* + s vv'",
        right="A(e) = s vv': Eq. (1) adds A* itself, and would otherwise have it twice",
        claim="spurious-signal-alone",
    ),
    Erratum(
        paper="heterogeneity",
        place="Eq. (42)",
        printed="E(1 + η (S + 2η))^(2/3)",
        right="E(1 + η S + 2η)^(2/3), as in Definition 5 and in the line after",
        claim="controller-event",
    ),
    Erratum(
        paper="heterogeneity",
        place="Eq. (49)",
        printed="the event that some q_i is at most p^-1.5 r2^1.5 L has probability at most T2 p",
        right="the event that some q_i is at least that; the printed event is certain, since q_i starts at L",
        claim="controller-event",
    ),
    Erratum(
        paper="heterogeneity",
        place="Eq. (14)",
        printed="1'q(Ux) = <xx', UU'>",
        right="1'q(U'x) = <xx', UU'>: the neurons are the columns of U; 1'q(Ux) is <xx', U'U>",
        claim="quadratic-net-constants",
    ),
    Erratum(
        paper="heterogeneity",
        place="Proof of Theorem 4, after Eq. (83)",
        printed="by Lemma 14 the invariant part increases by at least 1 + 3/η per step",
        right="by 1 + η/3, as in (76) and in the sum that (83) takes",
        claim="invariant-grows-first",
    ),
    Erratum(
        paper="heterogeneity",
        place="Eq. (86)",
        printed="the singular values at step t + 1 lie between the recursions (31) at step t",
        right="between those at step t + 1, as in (75): they grow by more per step than the distance of the recursions",
        claim="invariant-grows-first",
    ),
    Erratum(
        paper="heterogeneity",
        place="Eq. (108)",
        printed="U1'U2 = R1⁻ᵀ M1'M2 R1⁻¹",
        right="R1⁻ᵀ M1'M2 R2⁻¹, as (106) gives and the next line of (108) uses",
        claim="random-overlap",
    ),
    Erratum(
        paper="heterogeneity",
        place="Algorithm 4, the step and the shrinkage",
        printed="a step η along the gradient 4 G U of the modified loss, then division by 1 - η (|U|² - τ)",
        right="(U - η/2 G U)/(1 - η/2 (|U|² - τ)): E G = 2 D + tr(D) I, so 4 G U moves 8η along D, and the "
        "division removes a quarter of the trace",
        claim="quadratic-net-constants",
    ),
    Erratum(
        paper="heterogeneity",
        place="Algorithm 4, τ",
        printed="τ = |A* + A(e)|, a norm",
        right="τ = tr(A* + A(e)), signed; the mean of y over the batch estimates it",
        claim="quadratic-net-constants",
    ),
    Erratum(
        paper="heterogeneity",
        place="Algorithm 4 against Theorem 7, the start",
        printed="U = α I in the algorithm, ∑_j u_j u_j' = α I in the theorem",
        right="the algorithm's start has ∑_j u_j u_j' = α² I",
        claim="quadratic-net-constants",
    ),
    Erratum(
        paper="heterogeneity",
        place="Proof of Theorem 7, last sentence",
        printed="the result follows from the proof of Theorem 9",
        right="the paper has eight theorems and no ninth. The sentences before apply Theorem 2 to a matrix with equal "
        "eigenvalues, so its proof is meant, or that of Theorem 8, which allows them to differ",
        claim=None,
    ),
)
