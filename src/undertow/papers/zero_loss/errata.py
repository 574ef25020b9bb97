"""Errata of the zero_loss paper."""

from undertow.verification.errata import Erratum

__all__ = ["ERRATA"]

ERRATA: tuple[Erratum, ...] = (
    Erratum(
        paper="zero_loss",
        place="Lemma 4.5, Eq. (9), and Eq. (10)",
        printed="plus signs before the tangent and the mixed part of the second derivative of Φ; Lemma C.4, from "
        "which (9) is said to follow, prints the right minus signs",
        right="all three parts have a minus sign",
        claim="d2phi-signs",
    ),
    Erratum(
        paper="zero_loss",
        place="Corollary 5.1, Eq. (11) and its proof",
        printed="|H|_+ is the sum of the logarithms of the nonzero eigenvalues. The fraction before P ∇ ln |H|_+ "
        "in (11) is illegible in the text that was used; -1/2 is inferred from the proof, which shows P ∇ ln |H|_+ "
        "= P d³L[H⁺] for use in (10) and never says that L_H⁻¹(I - P) is H⁺/2",
        right="ln |H|_+ is that sum, and the coefficient is -1/4",
        claim="isotropic-quarter",
    ),
    Erratum(
        paper="zero_loss",
        place="Lemma C.8",
        printed="the motor turns at the speed (D - 2)/2",
        right="(D - 2)/8, with α = 2π/(D - 2) and 1/8 in the first term of the loss",
        claim="motor-speed",
    ),
    Erratum(
        paper="zero_loss",
        place="Theorem 4.6",
        printed="the limiting diffusion starts at Y(0) = x(0), which need not be a minimiser",
        right="Y(0) = Φ(x(0)), where gradient flow from x(0) ends",
        claim="limit-starts-at-phi",
    ),
    Erratum(
        paper="zero_loss",
        place="Lemma C.7, proof",
        printed="H⁺ H = dΦ, so that the tangent compensation is -dΦ c'', called the second fundamental form",
        right="H⁺ H = I - dΦ, and the second fundamental form is (I - dΦ) c''",
        claim="second-fundamental-form",
    ),
    Erratum(
        paper="zero_loss",
        place="Section 6.3",
        printed="∇f_i = [α z_i, -α z_i] at u = v = α",
        right="2α [z_i, -z_i]",
        claim="kernel-gradient",
    ),
    Erratum(
        paper="zero_loss",
        place="Lemma D.2",
        printed="|∇L|² ≥ 16 λ_min(ZZ') min_j |u_j v_j| L along gradient flow",
        right="16/n in place of 16, as the lines of the proof give",
        claim="pl-constant",
    ),
)
