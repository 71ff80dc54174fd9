"""Estimates of KL[q(w) ‖ N(0, σ²I)] from samples of an implicit q, to train with; all tensors have a leading K."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.core.gradient import gradient_of
from fewsure.core.vectorise import for_components
from fewsure.kernels.fused import critic as fused_critic
from fewsure.kernels.fused import fused_kernels_fit
from fewsure.kernels.rounding import take_rounded_step
from fewsure.networks.mlp import Mlp
from fewsure.theory.divergences import donsker_varadhan, standardise
from fewsure.types import Draw, Params

KL_TERMS: dict[str, frozenset[str]] = {
    "moment": frozenset({"moments"}),
    "moment+critic": frozenset({"moments", "critic"}),
    "critic": frozenset({"critic"}),
    "semi-implicit": frozenset({"means"}),
    "none": frozenset(),
}
"""The terms of each estimate by its name."""


@dataclass(frozen=True)
class KlEstimate:
    """An estimate as the sum of its terms, each of which says which samples it needs; 0 without any.

    The posterior computes closed forms with its samples: `kl` (K,). A critic looks at `all` samples (K, S, N ≥ n),
    which may have zeros behind, and at standard normal numbers `prior` (R, n).
    """

    moments: bool = False
    """`moment_kl` of samples of w."""
    means: bool = False
    """`semi_implicit_kl` of samples of G(z), around which w has noise."""
    critic: Mlp | None = None
    """φ(w; ω) of Lemma 1, a network from n weights to a number; beside `moments`, for what they leave of the KL."""
    prior_std: float = 1.0
    """σ."""

    @classmethod
    def named(cls, name: str, critic: Mlp, prior_std: float) -> "KlEstimate":
        """The estimate of that name in `KL_TERMS`."""
        terms = KL_TERMS[name]
        return cls("moments" in terms, "means" in terms, critic if "critic" in terms else None, prior_std)

    def init(self, generator: torch.Generator) -> Params:
        """ω₀ of one component; nothing without a critic."""
        return self.critic.init(generator) if self.critic else {}

    def draws(self, levels: int, samples: int) -> dict[str, Draw]:
        """The noise of so many samples of the prior at each level."""
        return {"prior": Draw((levels, samples, self.critic.sizes[0]))} if self.critic else {}

    def start(self, critic: Params) -> Params:
        """ω before its first step, from ω₀."""
        return self.critic.aligned(critic) if self.critic else {}

    def ascend(
        self, critic: Params, samples: Mapping[str, Tensor], prior: Tensor, lr: float, *, first_order: bool
    ) -> Params:
        """One step of gradient ascent of ω on Eq. 11, of each component on its own; samples are constants."""
        assert self.critic is not None
        every = samples["all"].detach()

        def descent(critic: Params) -> Tensor:
            return -self.critic_value(critic, every, prior).sum()

        gradient = gradient_of(descent, self.critic.rounded(critic), first_order=first_order)
        return take_rounded_step(critic, gradient, lr)

    def value(self, critic: Params, samples: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> Tensor:
        """The estimate, (K,), from samples and noise by name."""
        kl = samples["kl"] if "kl" in samples else samples["fit"].new_zeros(len(samples["fit"]))
        return kl + self.critic_value(critic, samples["all"], noise["prior"]) if self.critic else kl

    def critic_value(self, critic: Params, every: Tensor, prior: Tensor) -> Tensor:
        """Eq. 12, E_q[φ] − ln E_p[e^φ], (K,)."""
        assert self.critic is not None
        network, critic = self.critic, self.critic.rounded(critic)
        if not fused_kernels_fit(every):
            return donsker_varadhan(*self.on_samples(critic, every, prior))
        layers = [critic[name] for kind in ("weight", "bias") for name in critic if name.endswith(kind)]
        on_q, on_p = (network.padded(critic, x).to(layers[0].dtype) for x in self._compared(every, prior))

        def fused(on_q: Tensor, *layers: Tensor) -> Tensor:
            half = len(layers) // 2
            return fused_critic(on_q, on_p, layers[:half], layers[half:])

        value: Tensor = for_components(fused, on_q, *layers)
        return value

    def on_samples(self, critic: Params, every: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """φ of samples of q and of p, (K, S) and (K, R)."""
        assert self.critic is not None
        every, prior = self._compared(every, prior)
        prior = prior.expand(len(every), *prior.shape)
        return self.critic(critic, every).squeeze(-1), self.critic(critic, prior).squeeze(-1)

    def _compared(self, every: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """q and p; beside the moments, q without its means and variances and N(0, I)."""
        return (standardise(every), prior) if self.moments else (every, self.prior_std * prior)
