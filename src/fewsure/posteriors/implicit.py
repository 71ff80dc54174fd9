"""The implicit posterior: a generator network turns noise into the weights of the base network.

The components of a mixture are stacked: all parameters, and all samples, have a leading dimension of K components.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fewsure.core.devices import in_full, rounded_type
from fewsure.core.gradient import clip, detach
from fewsure.kernels import fused_generator
from fewsure.kernels.fused import fused_kernels_fit
from fewsure.kernels.rounding import take_rounded_step
from fewsure.networks.mlp import ALIGNED, Mlp
from fewsure.networks.weights import flatten, weight_count
from fewsure.posteriors.last_layer import LastLayer, PullBack, SampleRequest, Samples, clipped, with_pull_back
from fewsure.theory.divergences import moment_kl, semi_implicit_kl
from fewsure.types import Draw, Network, Noise, Params

INITIAL_SPREAD = 0.1
MOST = 0.99
"""Size of a weight that the generator is made to begin with: tanh reaches 1 at infinity."""
Latent = Literal["uniform", "normal"]

Step = Callable[[Samples, float, float | None], Params]
"""(gradient of an objective in the samples, step size, limit on the norm of λ's gradient or None) → the next λ."""


@dataclass(frozen=True)
class ImplicitPosterior:
    """q(w; λ):  w = G(z; λ), z ~ p(z)   (Eq. 10);  with weight noise s > 0,  w = G(z; λ) + s·noise.

    G is fully connected with ReLU and ends in tanh, which keeps the weights it makes in (−1, 1). λ are G's weights.
    Without weight noise q has no density, and its KL to any prior that has one is infinite.
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
    def generator(self) -> Mlp:
        return Mlp((self.latent, *self.hidden, weight_count(self.network)), last="tanh", scaled=self.scaled)

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

    def init(self, generator: torch.Generator, around: bool = False) -> Params:
        """One component's initial parameters; `around` those of the base network, with a tenth of its spread."""
        parameters, (last, bias) = self.generator.init(generator), self._last
        if not around:
            return parameters
        centre = flatten(self.network.init(generator)).clamp(-MOST, MOST).atanh()
        return parameters | {last: INITIAL_SPREAD * parameters[last], bias: centre}

    def start(self, mean: Params, shift: Params, std: float) -> tuple[Params, Float[Tensor, " K"]]:
        """(λ before the first step: mean + std·shift, ‖mean‖²).

        The last layer is padded so that its rows are aligned for GPUs, and rounded if the `precision` wants that and a
        task does not change it.
        """
        last, bias = self._last
        padding = -weight_count(self.network) % ALIGNED
        rounded = {last: rounded_type(mean[last])} if self.shares_a_layer else {}
        return fused_generator.start(mean, shift, std, {last: padding, bias: padding}, rounded)

    def sample(self, parameters: Params, noise: Noise) -> Float[Tensor, "K S n"]:
        """w, S flat weight vectors of each component."""
        return self.see(parameters, noise, SampleRequest(noise["z"].shape[-2]))["fit"]

    def see(self, parameters: Params, noise: Noise, request: SampleRequest) -> Samples:
        """Samples of w; `z` (S, latent) is the same for all components, or (K, S, latent)."""
        parameters = parameters if self.shares_a_layer else self.generator.rounded(parameters)
        hidden = self._hidden_units(parameters, self._latents(parameters, noise))
        if self._fuses(hidden, request):
            return self._fused(parameters, hidden, noise, request, rank=0)[0]
        return self._pick(self._last_layer(parameters).means(hidden), noise, request)

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
        trunk, z = {name: at[name] for name in self._trunk.shapes}, self._latents(at, noise)
        hidden, pull_back = with_pull_back(lambda params: self._hidden_units(params, z), trunk)
        if self._fuses(hidden, request):
            samples, pull_back_last = self._fused(at, hidden, noise, request, self.rank)
        else:
            pick = partial(self._pick, noise=noise, request=request)
            samples, pull_back_last = self._last_layer(at).generate(hidden, pick)

        def step(gradient: Samples, lr: float, limit: float | None) -> Params:
            grads = pull_back_last(gradient, limit is not None)
            rows, others = grads.rows, pull_back(grads.hidden) | {self._last[1]: grads.bias}
            if limit is not None:
                rows, others = clipped(grads, others, limit)
            return take_rounded_step(parameters, others, lr) | self._last_layer(at).factors(rows, grads.right, lr)

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
        self, parameters: Params, hidden: Tensor, noise: Noise, request: SampleRequest, rank: int
    ) -> tuple[Samples, PullBack]:
        """Samples by kernels of our own; `rank` is 0 where they are to be differentiated."""
        weights = weight_count(self.network)
        samples, pull_back = self._last_layer(parameters).generate_fused(hidden, request, weights, rank)
        return samples | {"fit": self.perturb(samples["fit"], noise)}, pull_back

    def _fuses(self, hidden: Tensor, request: SampleRequest) -> bool:
        return self.shares_a_layer and not self._uses_all(request) and fused_kernels_fit(hidden)

    def _uses_all(self, request: SampleRequest) -> bool:
        """Whether the KL needs all samples one by one, and not their moments alone."""
        kl = request.kl
        return kl.critic is not None or kl.means or (kl.moments and self.weight_noise > 0)

    @property
    def _trunk(self) -> Mlp:
        """The generator below its last layer."""
        return Mlp((self.latent, *self.hidden), last="relu", scaled=self.scaled)

    @property
    def _last(self) -> tuple[str, str]:
        """The names of the last layer's weight and bias."""
        return f"{len(self.hidden)}.weight", f"{len(self.hidden)}.bias"

    def _last_layer(self, parameters: Params) -> LastLayer:
        weight, bias = self._last
        return LastLayer(parameters[weight], parameters[bias], parameters.get("left"), parameters.get("right"))

    def _latents(self, parameters: Params, noise: Noise) -> Tensor:
        """z of each component, (K, S, latent)."""
        return noise["z"].expand(len(parameters[self._last[1]]), *noise["z"].shape[-2:])

    def _hidden_units(self, parameters: Params, z: Tensor) -> Tensor:
        """What the last layer multiplies by its weights."""
        return self.generator.entering(self._trunk(parameters, z) if self.hidden else z, len(self.hidden))
