"""SImPa (Nguyen, Do and Carneiro, "PAC-Bayes meta-learning with implicit task-specific posteriors").

After the options, the paper's theorems, its equations from number 7 on, and Algorithm 1 follow in its order. ψ = μ_θ
and ω₀ are learned; from them a task adapts λ and ω, the weights of the generator and of the critic. All parameters,
samples, losses and bounds have a leading dimension of components.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fewsure.core.gradient import detach, require_clip_norm
from fewsure.core.vectorise import stack_components
from fewsure.errors import require
from fewsure.kernels.rounding import without_rounded
from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import unflatten, weight_count
from fewsure.posteriors import outputs
from fewsure.posteriors.implicit import ImplicitPosterior, Latent
from fewsure.posteriors.last_layer import SampleRequest, Samples
from fewsure.posteriors.mixture import component_losses
from fewsure.theory.divergences import isotropic_kl
from fewsure.theory.pac_bayes import theorem_1, theorem_2
from fewsure.theory.sample_kl import KL_TERMS, KlEstimate
from fewsure.types import Algorithm, Batch, Draw, Info, Model, Noise, NoiseSpec, Params, Parts, Stage, Task


@dataclass(frozen=True)
class Simpa(Algorithm):
    """PAC-Bayes meta-learning with implicit task-specific posteriors (SImPa; Nguyen et al.).

    A generator turns noise into the weights of a task's network. Adapting moves the generator so that its networks fit
    the support set, at the price of their divergence from a prior. Both levels minimise a PAC-Bayes bound. `--preset
    paper` has every value as the paper prints it; docs/methods/simpa.md says where and why the defaults differ.
    """

    min_support: ClassVar[int] = 2
    min_query: ClassVar[int] = 2
    theorem: ClassVar[Literal["Theorem 1", "Theorem 2"] | None] = "Theorem 2"
    rounds: ClassVar[bool] = True

    inner_lr: float = 1e-3
    """Step size of λ in a task."""
    inner_steps: int = 5
    """N_lower, gradient steps per task."""
    inner_clip_norm: float | None = None
    """Largest norm of a gradient of λ in a task; a longer one is scaled down. `none` for no limit."""
    first_order: bool = False
    """Take the inner gradients as constants (cheaper); off, differentiate through them."""
    clip: Literal["hard", "none", "bounded"] = "none"
    """The loss that is trained on. `hard` clamps it to [0, 1] as the paper does (no gradient above 1). `none` trains on
    the loss as it is and clamps only in the reported bound. `bounded` is a smooth loss in [0, 1]."""
    kl: Literal["moment", "moment+critic", "critic", "semi-implicit", "none"] = "moment"
    """How KL[q(w) ‖ p(w)] is estimated: `critic` by the paper's φ-network, `moment` in closed form from q's means and
    variances, `moment+critic` by both. `semi-implicit` takes an upper bound, given weight noise; `none` leaves the KL
    out."""
    kl_samples: int = 32
    """m_φ, samples of w that estimate the KL."""
    form: Literal["paper", "log"] = "log"
    """The bounds as the paper prints them, or in McAllester's `log` form, whose constants are smaller."""
    epsilon: float = 0.1
    """ε: the bounds hold with probability 1 − ε."""
    sigma_theta: float = 1.0
    """σ_θ, standard deviation of the prior p(θ)."""
    sigma_w: float = 1.0
    """σ_w, standard deviation of the prior p(w)."""
    sigma_0: float = 1e-6
    """σ₀, variance (Eq. 9) of the posterior q(θ; ψ)."""
    warm_up_tasks: int = 1000
    """Training tasks that are seen before the regularisers join the losses."""
    train_samples: int = 4
    """Samples of w per task and step in training."""
    latent: int = 128
    """Dimension of the latent noise z."""
    latent_noise: Latent = "uniform"
    """p(z): uniform on [0, 1), or standard normal."""
    weight_noise: float = 0.0
    """s, standard deviation of noise added to the generated weights; 0 is the paper's implicit posterior."""
    generator_hidden: tuple[int, ...] = (256, 512)
    """Hidden units of the generator's layers."""
    scaled_generator: bool = False
    """Divide the inputs of each of the generator's layers by the root of their number. Step sizes that suit the base
    network then suit the generator. Off in the paper."""
    initial_weights: Literal["generator", "network"] = "generator"
    """How generated weights start: as the generator's own initial weights map z, or around initial weights of the
    `network`. Each layer's weights then have the size that suits it, and a tenth of that as spread."""
    components: int = 1
    """K, generators that start, learn and adapt each by itself: q is their mixture. 1 in the paper; each takes as many
    operations as the first."""
    critic_hidden: tuple[int, ...] = (512, 256, 128)
    """Hidden units of the φ-network's layers."""
    critic_lr: float = 1e-4
    """Step size of ω in a task."""
    critic_steps: int = 1
    """N_φ, gradient steps of ω before each step of λ."""

    def __post_init__(self) -> None:
        for name in ("inner_lr", "critic_lr", "sigma_theta", "sigma_w", "sigma_0"):
            value = getattr(self, name)
            require(0 < value < float("inf"), name, "a number above 0", value)
        counts = dict.fromkeys(("inner_steps", "critic_steps", "train_samples", "latent", "components"), 1)
        for name, least in (counts | {"kl_samples": 4, "warm_up_tasks": 0}).items():
            require(getattr(self, name) >= least, name, f"at least {least}", getattr(self, name))
        require_clip_norm(self.inner_clip_norm)
        require(0 < self.epsilon <= 1, "epsilon", "a probability in (0, 1]", self.epsilon)
        require(0 <= self.weight_noise < float("inf"), "weight_noise", "a number of at least 0", self.weight_noise)
        finite = "above 0 with the KL `semi-implicit`, which is infinite without noise"
        require(self.weight_noise > 0 or "means" not in KL_TERMS[self.kl], "weight_noise", finite, self.weight_noise)
        for name in ("generator_hidden", "critic_hidden"):
            sizes = getattr(self, name)
            require(all(size > 0 for size in sizes), name, "layer sizes above 0", sizes)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        family, kl = self.posterior(model).generator, self.kl_estimate(model)
        init = partial(family.init_around, model.network) if self.initial_weights == "network" else family.init
        components = [_parts(init(generator), kl.init(generator)) for _ in range(self.components)]
        return stack_components(components)  # type: ignore[no-any-return]

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        family, kl, levels = self.posterior(model), self.kl_estimate(model), self.inner_steps + 1
        theta = Draw((self.components, weight_count(family.generator)))
        noisy = self.train_samples if kl.means else self._samples
        draws = family.draws(levels, self._samples, noisy=noisy)  # the last level is the upper one
        return NoiseSpec({"theta": theta} | kl.draws(levels, self.kl_samples), draws)

    @property
    def _samples(self) -> int:
        """Samples of w per step: the loss uses the first of the samples that the KL uses."""
        return max(self.train_samples, self.kl_samples if KL_TERMS[self.kl] else 0)

    # The bounds that both levels minimise, and the distributions in them

    def _theorem_1(self, losses: Tensor, kl: Tensor, regularise: Tensor) -> Tensor:
        """Theorem 1: E_q[ℓ] + √[(KL[q(w; λ) ‖ p(w)] + (ln m)/ε) / (2(m−1))], from losses (K, k, m) of samples."""
        loss, examples = losses.mean((1, 2)), losses.shape[-1]
        bound = theorem_1(loss, kl, examples=examples, epsilon=self.epsilon, form=self.form)
        return loss + regularise * bound.regulariser

    def _theorem_2(
        self, losses: Tensor, kl: Tensor, kl_theta: Tensor, tasks: int, regularise: Tensor
    ) -> tuple[Tensor, Info]:
        """Theorem 2: E_q[ℓ] + R_i + R_0; the bound that is logged is that of the clamped loss."""
        loss, examples = losses.mean((1, 2)), losses.shape[-1]
        clipped = losses.clamp(max=1).mean((1, 2))  # itself, where it is clipped or bounded
        bound = theorem_2(clipped, kl, kl_theta, examples=examples, tasks=tasks, epsilon=self.epsilon, form=self.form)
        terms = {"R_i": bound.within_task, "R_0": bound.across_tasks, "bound": bound.total, "kl": kl}
        objective = loss + regularise * (bound.within_task + bound.across_tasks)
        return objective, {"loss": loss, "clipped_loss": bound.loss} | terms

    def _draw_theta(self, meta: Parts, model: Model, noise: Noise) -> tuple[Params, Tensor]:
        """Eq. 7 and 9: θ ~ q(θ; ψ) = N(μ_θ, σ₀ I), which all tasks share, and its KL to p(θ) = N(0, σ_θ² I)."""
        network, shared = self.posterior(model).generator, self.shares_a_layer(model)
        shift = unflatten(network, noise["theta"])
        theta, squared_norm = network.start(meta["generator"], shift, self.sigma_0**0.5, shared=shared)
        return theta, isotropic_kl(squared_norm, weight_count(network), self.sigma_0, self.sigma_theta**2)

    def posterior(self, model: Model) -> ImplicitPosterior:
        """Eq. 10: q(w; λ), w = G(z; λ), z ~ p(z). The rank is that of the gradients of all samples of a task."""
        sizes, rank = (self.latent, self.generator_hidden), self.inner_steps * self._samples
        return ImplicitPosterior(
            model.network, *sizes, self.latent_noise, self.weight_noise, self.scaled_generator, rank
        )

    def kl_estimate(self, model: Model) -> KlEstimate:
        """Eq. 8, 11 and 12: KL[q(w; λ) ‖ p(w)] with p(w) = N(0, σ_w² I), by E_q[φ(w; ω)] − ln E_p[e^φ(w; ω)]."""
        return KlEstimate.named(self.kl, Mlp((weight_count(model.network), *self.critic_hidden, 1)), self.sigma_w)

    # Algorithm 1

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """`train`, of one task: ψ descends Theorem 2's bound; ω₀ ascends Eq. 12 at the adapted λ and ω."""
        regularise = (stage.update * stage.tasks >= self.warm_up_tasks).to(task.query.x.dtype)
        theta, kl_theta = self._draw_theta(meta, model, noise)
        generator, critic = self._optimise_lower_level(theta, meta, model, task.support, noise, regularise)
        level, estimate = _level(noise, -1), self.kl_estimate(model)
        samples = self.posterior(model).see(generator, level, SampleRequest(self.train_samples, estimate))
        losses, kl = self._losses(samples, model, task.query), estimate.value(detach(critic), samples, level)
        objective, info = self._theorem_2(losses, kl, kl_theta, stage.tasks, regularise)
        if critic:  # its estimate sends no gradient into ψ, as the bound sends none into ω₀
            info["critic"] = estimate.critic_value(critic, samples["all"].detach(), level["prior"])
            objective = objective - info["critic"]
        return objective.mean(), {name: term.mean() for name, term in info.items()} | component_losses(info["loss"])

    def _optimise_lower_level(
        self, theta: Params, meta: Parts, model: Model, support: Batch, noise: Noise, regularise: Tensor
    ) -> tuple[Params, Params]:
        """`optimise lower-level`: ω ascends Eq. 11 and λ descends Theorem 1's bound, each component's its own."""
        family, estimate = self.posterior(model), self.kl_estimate(model)
        request, constants = SampleRequest(self.train_samples, estimate), {"first_order": self.first_order}

        def bound(samples: Samples, critic: Params, level: Noise) -> Tensor:
            losses, kl = self._losses(samples, model, support), estimate.value(critic, samples, level)
            return self._theorem_1(losses, kl, regularise).sum()

        generator, critic = theta, estimate.start(meta.get("critic", {}))
        for step in range(self.inner_steps):
            level = _level(noise, step)
            samples, descend = family.generate(generator, level, request, **constants)
            for _ in range(self.critic_steps if critic else 0):
                critic = estimate.ascend(critic, samples, level["prior"], self.critic_lr, **constants)
            gradient = torch.func.grad(bound)(samples, detach(critic), level)
            generator = descend(gradient, self.inner_lr, self.inner_clip_norm)
        return generator, critic

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        theta, _ = self._draw_theta(meta, model, noise)
        always = torch.ones((), device=support.x.device)
        adapted = self._optimise_lower_level(theta, meta, model, support, noise, regularise=always)
        return _parts(*map(without_rounded, adapted))

    def _losses(self, samples: Samples, model: Model, batch: Batch) -> Tensor:
        """ℓ, as it is trained on, of each component, sample and example, (K, k, m)."""
        networks = unflatten(model.network, samples["fit"].flatten(0, 1))
        per_example = torch.func.vmap(model.bounded_loss if self.clip == "bounded" else model.loss, in_dims=(0, None))
        losses: Tensor = per_example(outputs(model.network, networks, batch.x), batch.y)
        losses = losses.clamp(max=1) if self.clip == "hard" else losses
        return losses.reshape(self.components, -1, losses.shape[-1])

    # Predictions, and what is kept for them

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        """Each component makes the same number of networks, together at least as many as are asked for."""
        return self.posterior(model).draws(self.components, math.ceil(samples / self.components))

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        samples = self.posterior(model).sample(posterior["generator"], noise)
        return outputs(model.network, unflatten(model.network, samples.flatten(0, 1)), x)

    def shares_a_layer(self, model: Model) -> bool:
        return self.posterior(model).shares_a_layer

    def start(self, meta: Parts, model: Model, noise: Noise) -> Parts:
        return {"generator": self._draw_theta(meta, model, noise)[0]}

    def essentials(self, posterior: Parts) -> Parts:
        return {"generator": posterior["generator"]}


def _parts(generator: Params, critic: Params) -> Parts:
    return {"generator": generator} | ({"critic": critic} if critic else {})


def _level(noise: Noise, level: int) -> Noise:
    """The noise of one step of the lower level, or of the upper level, which comes last."""
    return {name: noise[name][level] for name in ("z", "weights", "prior") if name in noise}
