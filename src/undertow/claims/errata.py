"""What the papers print and what is right. Expected verdicts follow from this list alone."""

from dataclasses import dataclass

from undertow.claims.claim import Paper
from undertow.claims.criterion import Verdict

__all__ = ["ERRATA", "Erratum", "expected"]


@dataclass(frozen=True)
class Erratum:
    """One correction, with the claim whose measurement decides it."""

    paper: Paper
    place: str
    printed: str
    right: str
    claim: str


ERRATA: tuple[Erratum, ...] = (
    Erratum(
        paper="heterogeneity",
        place="Eq. (2) against Eq. (3)",
        printed="the update (3), U - eta G U, is gradient descent on the loss (2), 1/(2m) sum r^2",
        right="the gradient of (2) is 2 G U: the paper's eta is twice the step size of its own loss, "
        "or the loss is 1/(4m) sum r^2",
        claim="sensing-factor-two",
    ),
    Erratum(
        paper="zero_loss",
        place="Lemma 4.5, Eq. (9), and Eq. (10)",
        printed="plus signs before the tangent and the mixed part of the second derivative of Phi",
        right="all three parts have a minus sign",
        claim="d2phi-signs",
    ),
    Erratum(
        paper="zero_loss",
        place="Corollary 5.1, Eq. (11)",
        printed="isotropic noise regularises by -1/2 P grad ln |H|_+ (the proof loses a factor 1/2)",
        right="-1/4 P grad ln |H|_+, and ln |H|_+, not |H|_+, is the sum of the logarithms of the nonzero eigenvalues",
        claim="isotropic-quarter",
    ),
    Erratum(
        paper="zero_loss",
        place="Lemma C.8",
        printed="the motor turns at the speed (D - 2)/2",
        right="(D - 2)/8, with alpha = 2 pi/(D - 2) and 1/8 in the first term of the loss",
        claim="motor-speed",
    ),
    Erratum(
        paper="zero_loss",
        place="Theorem 4.6",
        printed="the limiting diffusion starts at Y(0) = x(0), which need not be a minimiser",
        right="Y(0) = Phi(x(0)), where gradient flow from x(0) ends",
        claim="limit-starts-at-phi",
    ),
    Erratum(
        paper="zero_loss",
        place="Lemma C.7, proof",
        printed="H^+ H = dPhi, so that the tangent compensation is -dPhi c'', called the second fundamental form",
        right="H^+ H = I - dPhi, and the second fundamental form is (I - dPhi) c''",
        claim="second-fundamental-form",
    ),
    Erratum(
        paper="zero_loss",
        place="Section 6.3",
        printed="grad f_i = [alpha z_i, -alpha z_i] at u = v = alpha",
        right="2 alpha [z_i, -z_i]",
        claim="kernel-gradient",
    ),
    Erratum(
        paper="zero_loss",
        place="Lemma D.2",
        printed="|grad L|^2 >= 16 lambda_min(ZZ') min_j |u_j v_j| L along gradient flow",
        right="16/n in place of 16: the proof's own lines give it",
        claim="pl-constant",
    ),
)


def expected(claim_id: str) -> Verdict:
    """`corrected` for the claims that decide an erratum, `holds` for all others."""
    return "corrected" if any(erratum.claim == claim_id for erratum in ERRATA) else "holds"
