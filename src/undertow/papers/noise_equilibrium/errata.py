"""What noise_equilibrium prints wrongly, and what is right."""

from undertow.verification.errata import Erratum

__all__ = ["ERRATA"]

ERRATA: tuple[Erratum, ...] = (
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
