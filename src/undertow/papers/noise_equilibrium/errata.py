"""Errata of the noise_equilibrium paper."""

from undertow.verification.errata import Erratum

__all__ = ["ERRATA"]

ERRATA: tuple[Erratum, ...] = (
    Erratum(
        paper="noise_equilibrium",
        place="Eq. (6), and C_B in Proposition 5.1",
        printed="the charge is θ'Aθ, and Tr[UBU'] - Tr[W'BW]; its flow is σ² Tr[ΣA]",
        right="that flow belongs to C = 1/2 θ'Aθ (∇C = A θ); θ'Aθ moves at twice the rate",
        claim="charge-factor-two",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Eq. (24)",
        printed="d/dt |θ|² = -γ |θ|² + σ² Tr Σ",
        right="-4γ |θ|² + 2σ² Tr Σ",
        claim="charge-factor-two",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Eq. (31) against Eq. (5)",
        printed="dC = σ²/2 Tr[Σ ∇² C] dt: the derivation uses √(σ² Σ) instead of the √(2σ² Σ) of Eq. (1)",
        right="dC = σ² Tr[Σ ∇² C] dt, as in Eq. (5)",
        claim="charge-factor-two",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 4.3, first paragraph, against Eq. (9)",
        printed="the stationary point is where -γ C + η Tr[ΣA] = 0",
        right="4γ C = σ² Tr[ΣA], σ² = η/(2S), as in Eq. (9)",
        claim="stationary-condition",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 4.2, time scales",
        printed="t_equi is proportional to σ²",
        right="to 1/σ², as in the conclusions that follow: the larger σ², the sooner the equilibrium",
        claim="equilibration-time",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Appendix B.2, proof of Theorem 4.3",
        printed="the eigenvalues of Z = exp(λ A) A exp(λ A) are a exp(λ a)",
        right="a exp(2λ a)",
        claim="orbit-eigenvalues",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Appendices B.2 and D, proofs of Theorems 4.3 and D.1",
        printed="I_1 is strictly increasing, with I_1(-inf) = +inf and I_1(+inf) = 0",
        right="strictly decreasing, as these limits require",
        claim="orbit-eigenvalues",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.1, U a row and W a column",
        printed="the charge decays at the rate Var[r], whatever the step size and the batch size",
        right="(4η/S) Var[rx]",
        claim="vectors-decay",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.1, U a row and W a column",
        printed="all neurons end with the same sign, sgn(U_i) = sgn(U_j)",
        right="the products U_k W_k have the same sign: W = U' or W = -U', and the U_k may differ in sign",
        claim="vectors-decay",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Theorem 5.2",
        printed="weight decay adds 2γ I to Γ_W and Γ_U",
        right="(γ S/η) I",
        claim="decay-in-the-balance",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Proposition 5.3",
        printed="Tr H = d_y |W Σ_x^1/2|² + |U|² Tr Σ_x (the proof differentiates half the loss)",
        right="twice that",
        claim="hessian-trace",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Theorem 5.4, Eq. (18)-(19)",
        printed="Σ_1 = Σ_D = (d/Tr S')^((D-2)/2D) √(S'), Σ_i = (Tr S'/d)^(1/D) I, all of one norm",
        right="with β = (Tr S'/√(Tr Sx Tr Se))^(2/D): Σ_i = √β I, Σ_1² = √(Tr Sx/Tr Se) "
        "β^(-(D-2)/2) S', Σ_D² with the ratio inverted; the norms are β Tr Sx, β d and β Tr Se",
        claim="deep-linear-norms",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.4, Eq. (21)-(23)",
        printed="ζ (θ - θ*)'HAθ* = σ² Tr[ΣA], and θ'Aθ = C* + 2σ²/(ζ h) Tr[ΣA]",
        right="the fluctuations are of the same order: ζ E[δ]'HAθ* = σ² Tr[ΣA] - ζ "
        "Tr[H A Cov], a factor 1 - ζ h/H_nn for one noisy direction n, and "
        "E[θ'Aθ] - C* = 2 E[δ]'A θ* + Tr[A Cov]",
        claim="broken-charge",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.4, Eq. (22)",
        printed="a deviation along an eigenvector n of H is s = σ² Tr[ΣA]/(ζ h* n'A θ*)",
        right="1 - ζ h_m/H_mm times that, for one noisy direction m, with the curvatures h_m of the pull and H_mm of "
        "the whole loss along m, instead of h*, the curvature along n",
        claim="two-curvatures",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Lemma B.3, Eq. (55), and Corollary B.4, Eq. (62)",
        printed="-(C - C*)/λ* ≤ 2θ*'A_+² θ* for λ* > 0, and so -dC/dt/(C - C*) ≥ "
        "σ² Tr[Σ* A_+²]/θ*'A_+² θ* (A_- for λ* < 0)",
        right="the term of A_- that (59) drops is negative, not positive, and neither bound holds; the rate is "
        "2σ² Tr[ΣA²]/θ'A²θ (C = 1/2 θ'Aθ) at a point of the orbit between the two",
        claim="charge-relaxes",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Lemma B.5, Eq. (63), and Eq. (72)",
        printed="E(C - C*)² ≤ (2μ² + s²)/(2σ⁴ c_0²)",
        right="μ²/(σ² c_0)² + s²/(2σ² c_0), as the line before, (71), gives it",
        claim="charge-follows",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.2, after Eq. (15), Kaiming",
        printed="the variances are 1 in U and 1/d_x in W, and a net with d = d_x = d_y starts as sharp as it ends",
        right="with variance 1 in U it starts (d + 1)/2 times sharper; the statement holds for variance 1/d in U",
        claim="sharpness-of-starts",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.2, after Eq. (15), Xavier",
        printed="the variances are 1/(d_y + d) and 1/(d + d_x), and S_init is slightly smaller than S_end",
        right="S_init/S_end = d/(d + d_x) for d ≥ d_x = d_y, a half for a square net; Xavier's variances are twice "
        "as large, and with them S_init ≥ S_end",
        claim="sharpness-of-starts",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Eq. (15), d < d_x",
        printed="S_end = 2 min(d, d_x) Tr Σ_x: all singular values of U and W end at 1",
        right="only for d ≥ d_x: otherwise the residual contains the part of x that is left out, U and W end with "
        "different norms, and S_end is (ρ^1/2 + ρ^-1/2)/2 times that, ρ = 1 + (d_x - d) σ_x²/(d_x σ_ε²)",
        claim="sharpness-of-starts",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Section 5.4, Figures 6 and 9",
        printed="nonlinear nets have similar latent matrices under SGD and dissimilar ones under gradient descent, "
        "because of gradient noise",
        right="because of fresh data: batches so large that there is hardly any noise make them nearly as similar, and "
        "on a fixed data set SGD leaves them dissimilar; in linear nets noise is the cause",
        claim="latent-alignment",
    ),
    Erratum(
        paper="noise_equilibrium",
        place="Theorem D.1",
        printed="for any real γ the expected change of the charge falls along an orbit and has a zero",
        right="for γ ≥ 0, as in Theorem 4.3: with γ < 0 a scale-invariant loss has none",
        claim="discrete-fixed-point",
    ),
)
