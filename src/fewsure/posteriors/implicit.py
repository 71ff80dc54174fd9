"""The implicit posterior: a generator network turns noise into the weights of the base network.

The components of a mixture are stacked: all parameters, and all samples, have a leading dimension of K components.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fewsure.core.devices import in_full
from fewsure.core.gradient import clip, detach
from fewsure.kernels import fused_generator
from fewsure.kernels.fused import fused_kernels_fit
from fewsure.kernels.rounding import take_rounded_step
from fewsure.networks.weights import weight_count
from fewsure.posteriors.generator import Generator
from fewsure.posteriors.last_layer import LastLayer, PullBack, SampleRequest, Samples, clipped, with_pull_back
from fewsure.theory.divergences import moment_kl, semi_implicit_kl
from fewsure.types import Draw, Network, Noise, Params

Latent = Literal["uniform", "normal"]

Step = Callable[[Samples, float, float | None], Params]
"""(gradient of an objective in the samples, step size, limit on the norm of λ's gradient or None) → the next λ."""


@dataclass(frozen=True)
class ImplicitPosterior:
    """q(w; λ):  w = G(z; λ), z ~ p(z)   (Eq. 10);  with weight noise s > 0,  w = G(z; λ) + s·noise.

    λ are G's weights. Without weight noise q has no density, and its KL to any prior that has one is infinite.
    """

    network: Network
    """The base network whose n weights are generated."""
    latent: int
    hidden: tuple[int, ...]
    latent_noise: Latent
    weight_noise: float = 0.0
    """s, standard deviation of the noise on each generated weight."""
    scaled: bool = False
    """Whether each layer of G divides its inputs by the root of their number."""
    rank: int = 0
    """The rank that a task's change of the last layer can reach; 0 if a task has its own copy of that layer."""

    @property
    def generator(self) -> Generator:
        return Generator((self.latent, *self.hidden, weight_count(self.network)), scaled=self.scaled)

    @property
    def shares_a_layer(self) -> bool:
        """Whether tasks share the last layer and keep their changes as factors: where the rank is below its width."""
        return 0 < self.rank < self.generator.sizes[-2]

    def draws(self, *samples: int, noisy: int | None = None) -> dict[str, Draw]:
        """The noise of so many samples: `z`, and `weights` where there is any, of the first `noisy` of them alone."""
        draws = {"z": Draw((*samples, self.latent), self.latent_noise)}
        if self.weight_noise:
            draws["weights"] = Draw((*samples[:-1], noisy or samples[-1], weight_count(self.network)))
        return draws

    def sample(self, parameters: Params, noise: Noise) -> Float[Tensor, "K S n"]:
        """w, S flat weight vectors of each component."""
        return self.see(parameters, noise, SampleRequest(noise["z"].shape[-2]))["fit"]

    def see(self, parameters: Params, noise: Noise, request: SampleRequest) -> Samples:
        """Samples of w; `z` (S, latent) is the same for all components, or (K, S, latent)."""
        parameters = parameters if self.shares_a_layer else self.generator.rounded(parameters)
        hidden = self.generator.hidden_units(parameters, self.generator.latents(parameters, noise["z"]))
        last_layer = self.generator.last_layer(parameters)
        if self._fuses(hidden, request):
            return self._fused(last_layer, hidden, noise, request, rank=0)[0]
        return self._pick(last_layer.means(hidden), noise, request)

    def generate(
        self, parameters: Params, noise: Noise, request: SampleRequest, *, first_order: bool
    ) -> tuple[Samples, Step]:
        """Samples of w, and the step of gradient descent of λ that follows from an objective's gradient in them."""
        at = detach(parameters) if first_order else parameters
        if self.shares_a_layer:
            return self._generate_low_rank(parameters, at, noise, request)
        at = self.generator.rounded(at)  # so that its gradient is not made longer again
        samples, pull_back = with_pull_back(lambda params: self.see(params, noise, request), at)

        def step(gradient: Samples, lr: float, limit: float | None) -> Params:
            grad = pull_back(gradient)
            return take_rounded_step(parameters, grad if limit is None else clip(grad, limit, dims=1), lr)

        return samples, step

    def _generate_low_rank(
        self, parameters: Params, at: Params, noise: Noise, request: SampleRequest
    ) -> tuple[Samples, Step]:
        generator, last_layer = self.generator, self.generator.last_layer(at)
        hidden_units = partial(generator.hidden_units, z=generator.latents(at, noise["z"]))
        hidden, pull_back = with_pull_back(hidden_units, generator.trunk(at))
        if self._fuses(hidden, request):
            samples, pull_back_last = self._fused(last_layer, hidden, noise, request, self.rank)
        else:
            pick = partial(self._pick, noise=noise, request=request)
            samples, pull_back_last = last_layer.generate(hidden, pick)

        def step(gradient: Samples, lr: float, limit: float | None) -> Params:
            grads = pull_back_last(gradient, limit is not None)
            rows, others = grads.rows, pull_back(grads.hidden) | {generator.last_names[1]: grads.bias}
            if limit is not None:
                rows, others = clipped(grads, others, limit)
            return take_rounded_step(parameters, others, lr) | last_layer.factors(rows, grads.right, lr)

        return samples, step

    def perturb(self, means: Float[Tensor, "K S N"], noise: Noise) -> Float[Tensor, "K S N"]:
        """w = G(z) + s·noise, without noise on padding; without any noise, the means themselves."""
        if "weights" not in noise:
            return means
        added = self.weight_noise * noise["weights"][..., : means.shape[-2], :]
        return means + functional.pad(added, (0, means.shape[-1] - added.shape[-1]))

    def _pick(self, means: Tensor, noise: Noise, request: SampleRequest) -> Samples:
        """The part of the samples that is wanted, from all G(z), padded."""
        weights, kl, found = weight_count(self.network), request.kl, {}
        fit = means[:, : request.fit]
        if self._uses_all(request) and fused_kernels_fit(means):
            fit, means = fused_generator.split_samples(means, request.fit)
        found["fit"] = self.perturb(in_full(fit[..., :weights]), noise)
        if kl.means:
            found["kl"] = semi_implicit_kl(means[..., :weights], self.weight_noise, kl.prior_std)
        if kl.moments:
            found["kl"] = moment_kl(self.perturb(means[..., :weights], noise), kl.prior_std)
        if kl.critic is not None:
            found["all"] = self.perturb(means, noise)
        return found

    def _fused(
        self, last_layer: LastLayer, hidden: Tensor, noise: Noise, request: SampleRequest, rank: int
    ) -> tuple[Samples, PullBack]:
        """Samples by kernels of our own; `rank` is 0 where they are to be differentiated."""
        weights = weight_count(self.network)
        samples, pull_back = last_layer.generate_fused(hidden, request, weights, rank)
        return samples | {"fit": self.perturb(samples["fit"], noise)}, pull_back

    def _fuses(self, hidden: Tensor, request: SampleRequest) -> bool:
        return self.shares_a_layer and not self._uses_all(request) and fused_kernels_fit(hidden)

    def _uses_all(self, request: SampleRequest) -> bool:
        """Whether the KL needs all samples one by one, and not their moments alone."""
        kl = request.kl
        return kl.critic is not None or kl.means or (kl.moments and self.weight_noise > 0)
