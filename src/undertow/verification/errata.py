"""What the papers print and what is right. Expected verdicts follow from this list alone."""

from dataclasses import dataclass

from undertow.verification.claim import Paper
from undertow.verification.criterion import Verdict

__all__ = ["ERRATA", "Erratum", "expected"]


@dataclass(frozen=True)
class Erratum:
    """One correction, with the claim whose measurement decides it; None where reading the paper decides it."""

    paper: Paper
    place: str
    printed: str
    right: str
    claim: str | None


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
        printed="E(1 + eta (S + 2 eta))^(2/3)",
        right="E(1 + eta S + 2 eta)^(2/3), as in Definition 5 and in the line after",
        claim="controller-event",
    ),
    Erratum(
        paper="heterogeneity",
        place="Eq. (49)",
        printed="the event that some q_i is at most p^-1.5 r2^1.5 L has probability at most T2 p",
        right="the event that some q_i is at least that; the one printed is certain, since q_i starts at L",
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
        printed="by Lemma 14 the invariant part increases by 1 + 3/eta a step at least",
        right="by 1 + eta/3, as in (76) and in the sum that (83) takes",
        claim="invariant-grows-first",
    ),
    Erratum(
        paper="heterogeneity",
        place="Eq. (86)",
        printed="the singular values at step t + 1 lie between the recursions (31) at step t",
        right="between those at step t + 1, as in (75): they grow by more in a step than the recursions are apart",
        claim="invariant-grows-first",
    ),
    Erratum(
        paper="heterogeneity",
        place="Eq. (108)",
        printed="U1'U2 = R1^-T M1'M2 R1^-1",
        right="R1^-T M1'M2 R2^-1, as (106) gives and the next line of (108) uses",
        claim="random-overlap",
    ),
    Erratum(
        paper="heterogeneity",
        place="Algorithm 4, the step and the shrinkage",
        printed="a step eta along the gradient 4 G U of the modified loss, then division by 1 - eta (|U|^2 - tau)",
        right="(U - eta/2 G U)/(1 - eta/2 (|U|^2 - tau)): E G = 2 D + tr(D) I, so 4 G U moves 8 eta along D, and the "
        "division takes a quarter of the trace out",
        claim="quadratic-net-constants",
    ),
    Erratum(
        paper="heterogeneity",
        place="Algorithm 4, tau",
        printed="tau = |A* + A(e)|, a norm",
        right="tau = tr(A* + A(e)), signed; the mean of y over the batch estimates it",
        claim="quadratic-net-constants",
    ),
    Erratum(
        paper="heterogeneity",
        place="Algorithm 4 against Theorem 7, the start",
        printed="U = alpha I in the algorithm, sum_j u_j u_j' = alpha I in the theorem",
        right="the algorithm's start has sum_j u_j u_j' = alpha^2 I",
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
    Erratum(
        paper="zero_loss",
        place="Lemma 4.5, Eq. (9), and Eq. (10)",
        printed="plus signs before the tangent and the mixed part of the second derivative of Phi; Lemma C.4, from "
        "which (9) is said to follow, prints the right minus signs",
        right="all three parts have a minus sign",
        claim="d2phi-signs",
    ),
    Erratum(
        paper="zero_loss",
        place="Corollary 5.1, Eq. (11) and its proof",
        printed="|H|_+ is the sum of the logarithms of the nonzero eigenvalues. The fraction before P grad ln |H|_+ "
        "in (11) is illegible in the text that was used; -1/2 is inferred from the proof, which shows P grad ln |H|_+ "
        "= P d3L[H^+] for use in (10) and never says that L_H^-1(I - P) is H^+/2",
        right="ln |H|_+ is that sum, and the coefficient is -1/4",
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
    Erratum(
        paper="noise_equilibrium",
        place="Eq. (6), and C_B in Proposition 5.1",
        printed="the charge is theta'A theta, and Tr[UBU'] - Tr[W'BW]; its flow is sigma^2 Tr[Sigma A]",
        right="that flow belongs to C = 1/2 theta'A theta (grad C = A theta); theta'A theta moves at twice the rate",
        claim="charge-factor-two",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Eq. (24)",
        printed="d/dt |theta|^2 = -gamma |theta|^2 + sigma^2 Tr Sigma",
        right="-4 gamma |theta|^2 + 2 sigma^2 Tr Sigma",
        claim="charge-factor-two",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Eq. (31) against Eq. (5)",
        printed="dC = sigma^2/2 Tr[Sigma grad^2 C] dt: the derivation puts sqrt(sigma^2 Sigma) for the sqrt(2 sigma^2 "
        "Sigma) of Eq. (1)",
        right="dC = sigma^2 Tr[Sigma grad^2 C] dt, as in Eq. (5)",
        claim="charge-factor-two",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 4.3, first paragraph, against Eq. (9)",
        printed="the stationary point is where -gamma C + eta Tr[Sigma A] = 0",
        right="4 gamma C = sigma^2 Tr[Sigma A], sigma^2 = eta/(2S), as in Eq. (9)",
        claim="stationary-condition",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 4.2, time scales",
        printed="t_equi is proportional to sigma^2",
        right="to 1/sigma^2, as the conclusions drawn from it say: the larger sigma^2, the sooner the equilibrium",
        claim="equilibration-time",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Appendix B.2, proof of Theorem 4.3",
        printed="the eigenvalues of Z = exp(lambda A) A exp(lambda A) are a exp(lambda a)",
        right="a exp(2 lambda a)",
        claim="orbit-eigenvalues",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Appendices B.2 and D, proofs of Theorems 4.3 and D.1",
        printed="I_1 is strictly increasing, with I_1(-inf) = +inf and I_1(+inf) = 0",
        right="strictly decreasing, as these limits say",
        claim="orbit-eigenvalues",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.1, U a row and W a column",
        printed="the charge decays at the rate Var[r], whatever the step size and the batch size",
        right="(4 eta/S) Var[rx]",
        claim="vectors-decay",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.1, U a row and W a column",
        printed="all neurons end with the same sign, sgn(U_i) = sgn(U_j)",
        right="the products U_k W_k do: W = U' or W = -U', and the U_k keep signs of their own",
        claim="vectors-decay",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Theorem 5.2",
        printed="weight decay adds 2 gamma I to Gamma_W and Gamma_U",
        right="(gamma S/eta) I",
        claim="decay-in-the-balance",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Proposition 5.3",
        printed="Tr H = d_y |W Sigma_x^1/2|^2 + |U|^2 Tr Sigma_x (the proof differentiates half the loss)",
        right="twice that",
        claim="hessian-trace",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Theorem 5.4, Eq. (18)-(19)",
        printed="Sigma_1 = Sigma_D = (d/Tr S')^((D-2)/2D) sqrt(S'), Sigma_i = (Tr S'/d)^(1/D) I, all of one norm",
        right="with beta = (Tr S'/sqrt(Tr Sx Tr Se))^(2/D): Sigma_i = sqrt(beta) I, Sigma_1^2 = sqrt(Tr Sx/Tr Se) "
        "beta^-(D-2)/2 S', Sigma_D^2 with the ratio inverted; the norms are beta Tr Sx, beta d and beta Tr Se",
        claim="deep-linear-norms",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.4, Eq. (21)-(23)",
        printed="zeta (theta - theta*)'H A theta* = sigma^2 Tr[Sigma A], and theta'A theta = C* + 2 sigma^2/(zeta h) "
        "Tr[Sigma A]",
        right="the fluctuations are of the same order: zeta E[delta]'H A theta* = sigma^2 Tr[Sigma A] - zeta "
        "Tr[H A Cov], a factor 1 - zeta h/H_nn for one noisy direction n, and "
        "E[theta'A theta] - C* = 2 E[delta]'A theta* + Tr[A Cov]",
        claim="broken-charge",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.4, Eq. (22)",
        printed="a deviation along an eigenvector n of H is s = sigma^2 Tr[Sigma A]/(zeta h* n'A theta*)",
        right="1 - zeta h_m/H_mm times that, for one noisy direction m, with the curvatures there of the pull and of "
        "the whole loss; not h*, the curvature along n",
        claim="two-curvatures",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Lemma B.3, Eq. (55), and Corollary B.4, Eq. (62)",
        printed="-(C - C*)/lambda* <= 2 theta*'A_+^2 theta* for lambda* > 0, and so -dC/dt/(C - C*) >= "
        "sigma^2 Tr[Sigma* A_+^2]/theta*'A_+^2 theta* (A_- for lambda* < 0)",
        right="the term of A_- that (59) drops is negative, not positive, and neither bound holds; the rate is "
        "2 sigma^2 Tr[Sigma A^2]/theta'A^2 theta (C = 1/2 theta'A theta) at a point of the orbit between the two",
        claim="charge-relaxes",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Lemma B.5, Eq. (63), and Eq. (72)",
        printed="E(C - C*)^2 <= (2 mu^2 + s^2)/(2 sigma^4 c_0^2)",
        right="mu^2/(sigma^2 c_0)^2 + s^2/(2 sigma^2 c_0), as the line before, (71), gives it",
        claim="charge-follows",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.2, after Eq. (15), Kaiming",
        printed="the variances are 1 in U and 1/d_x in W, and a net with d = d_x = d_y starts as sharp as it ends",
        right="with variance 1 in U it starts (d + 1)/2 times sharper; what is said holds for variance 1/d in U",
        claim="sharpness-of-starts",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.2, after Eq. (15), Xavier",
        printed="the variances are 1/(d_y + d) and 1/(d + d_x), and S_init is slightly smaller than S_end",
        right="S_init/S_end = d/(d + d_x) for d >= d_x = d_y, a half for a square net; Xavier's variances are twice "
        "as large, and with them S_init >= S_end",
        claim="sharpness-of-starts",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Eq. (15), d < d_x",
        printed="S_end = 2 min(d, d_x) Tr Sigma_x: all singular values of U and W end at 1",
        right="only for d >= d_x: else the residual holds the part of x that is left out, U and W end with different "
        "norms, and S_end is (rho^1/2 + rho^-1/2)/2 times that, rho = 1 + (d_x - d) sigma_x^2/(d_x sigma_eps^2)",
        claim="sharpness-of-starts",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.4, Figures 6 and 9",
        printed="nonlinear nets have similar latent matrices under SGD and dissimilar ones under gradient descent, "
        "because of gradient noise",
        right="because of fresh data: batches so large that there is hardly any noise make them nearly as similar, and "
        "on a fixed data set SGD leaves them dissimilar; noise does it in linear nets",
        claim="latent-alignment",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Theorem D.1",
        printed="for any real gamma the expected change of the charge falls along an orbit and has a zero",
        right="for gamma >= 0, as in Theorem 4.3: with gamma < 0 a scale-invariant loss has none",
        claim="discrete-fixed-point",
    ),
)


def expected(claim_id: str) -> Verdict:
    """`corrected` for the claims that decide an erratum, `holds` for all others."""
    return "corrected" if any(erratum.claim == claim_id for erratum in ERRATA) else "holds"
