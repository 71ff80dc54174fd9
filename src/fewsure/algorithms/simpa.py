"""SImPa (Nguyen, Do and Carneiro, "PAC-Bayes meta-learning with implicit task-specific posteriors"), Algorithm 1.

θ ~ N(μ_θ, σ₀ I), once per meta-batch                                                      (Eq. 9)
task-specific posterior q(w; λ):  w = G(z; λ), z ~ p(z), λ starting at θ                   (Eq. 10)
lower level:  λ minimises the PAC-Bayes bound of Theorem 1 on the support set,
              ω, the critic's weights, starting at ω₀, maximises
                  E_q[φ(w; ω)] − ln E_p[e^{φ(w; ω)}] ≤ KL[q(w; λ) ‖ p(w)]                  (Eq. 11, 12)
upper level:  ψ = μ_θ minimises the PAC-Bayes bound of Theorem 2 on the query set,
              ω₀ maximises the same lower estimate of the KL at the adapted λ and ω
priors:       p(θ) = N(0, σ_θ² I), p(w) = N(0, σ_w² I)                                     (Eq. 7, 8)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fewsure.core.gradient import detach, gradient_of, require_clip_norm
from fewsure.errors import require
from fewsure.kernels.rounding import take_rounded_step, without_rounded
from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import unflatten, weight_count
from fewsure.posteriors import outputs
from fewsure.posteriors.implicit import ImplicitPosterior, Latent, SampleRequest, Samples
from fewsure.posteriors.mixture import component_losses, merge_components, split_components, split_noise
from fewsure.theory.divergences import critic_estimate, isotropic_kl, moment_kl, semi_implicit_kl, standardise
from fewsure.theory.pac_bayes import theorem_1, theorem_2
from fewsure.types import Algorithm, Batch, Draw, Info, Model, Noise, NoiseSpec, Params, Parts, Stage, Task

MOST_COMPONENTS = 32
"""As many as there are networks that predict: each has a share of them."""


@dataclass(frozen=True)
class Simpa(Algorithm):
    """PAC-Bayes meta-learning with implicit task-specific posteriors (SImPa; Nguyen et al.).

    A generator turns noise into the weights of a task's network. Adapting to a task moves the generator so that the
    networks it makes fit the support set, at the price of their divergence from a prior; both levels minimise a
    PAC-Bayes bound. `--preset paper` has every value as the paper prints it; docs/methods/simpa.md says where and why
    the defaults differ.
    """

    min_support: ClassVar[int] = 2
    min_query: ClassVar[int] = 2
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
    """The loss that is trained on: `hard` clamps it to [0, 1] as the paper does (no gradient above 1); `none` trains
    on the loss as it is and clamps only in the reported bound; `bounded` is a smooth loss in [0, 1]."""
    kl: Literal["moment", "moment+critic", "critic", "semi-implicit", "none"] = "moment"
    """How KL[q(w) ‖ p(w)] is estimated: `critic` is the paper's φ-network; `moment` the closed form for q's means and
    variances; `moment+critic` adds the φ-network's estimate of the rest; `semi-implicit` is an upper bound, and needs
    weight noise; `none` leaves the term out."""
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
    """Divide the inputs of each of the generator's layers by the root of their number: its step sizes then mean what
    they mean for the base network itself. Off in the paper."""
    initial_weights: Literal["generator", "network"] = "generator"
    """What is generated at first: what the generator's own initial weights make of z, or the initial weights of the
    `network`, each layer's of the size that suits it, with a tenth of that spread around them."""
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
        for name in ("inner_steps", "critic_steps", "train_samples", "latent", "components"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        require(self.components <= MOST_COMPONENTS, "components", f"at most {MOST_COMPONENTS}", self.components)
        require(self.kl_samples >= 4, "kl_samples", "at least 4", self.kl_samples)
        require(self.warm_up_tasks >= 0, "warm_up_tasks", "at least 0", self.warm_up_tasks)
        require_clip_norm(self.inner_clip_norm)
        require(0 < self.epsilon <= 1, "epsilon", "a probability in (0, 1]", self.epsilon)
        require(0 <= self.weight_noise < float("inf"), "weight_noise", "a number of at least 0", self.weight_noise)
        if self.kl == "semi-implicit":
            finite = "above 0 with the KL `semi-implicit`, which is infinite without noise"
            require(self.weight_noise > 0, "weight_noise", finite, self.weight_noise)
        for name in ("generator_hidden", "critic_hidden"):
            sizes = getattr(self, name)
            require(all(size > 0 for size in sizes), name, "layer sizes above 0", sizes)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        return merge_components([self._init_component(model, generator) for _ in range(self.components)])

    def _init_component(self, model: Model, generator: torch.Generator) -> Parts:
        family = self.posterior(model)
        start = family.generator.init(generator)
        if self.initial_weights == "network":
            start = family.around(model.network.init(generator), start)
        meta = {"generator": start}
        return meta | {"critic": self.critic(model).init(generator)} if self.uses_critic else meta

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        posterior, levels = self.posterior(model), self.inner_steps + 1  # the last one is the upper level's
        samples = self._samples
        shared = {"theta": Draw((self.components * self._theta_size(model),))}
        if self.uses_critic:
            shared["prior"] = Draw((levels, self.kl_samples, weight_count(model.network)))
        noisy = self.train_samples if self.kl == "semi-implicit" else samples  # its KL looks at the means
        return NoiseSpec(shared, {"z": posterior.draw(levels, samples), **posterior.draw_weights(levels, noisy)})

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        always = torch.ones((), device=support.x.device)
        thetas = [theta for theta, _ in self._draw_thetas(meta, model, noise)]
        adapted = self._optimise_lower_level(thetas, meta, model, support, noise, regularise=always)
        return {part: without_rounded(params) for part, params in merge_components(adapted).items()}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        regularise = (stage.update * stage.tasks >= self.warm_up_tasks).to(task.query.x.dtype)
        drawn = self._draw_thetas(meta, model, noise)
        thetas = [theta for theta, _ in drawn]
        adapted = self._optimise_lower_level(thetas, meta, model, task.support, noise, regularise)

        def upper_level(component: Parts, seen: Samples, losses: Tensor, squared_norm: Tensor) -> tuple[Tensor, Info]:
            """Algorithm 1's objective of one component."""
            critic = self.critic(model).rounded(component["critic"]) if self.uses_critic else {}
            loss = losses.mean()
            kl = self._kl(seen, detach(critic), model, noise, -1)
            bound = theorem_2(
                losses.clamp(max=1).mean(),  # itself, where it is clipped or bounded
                kl,
                isotropic_kl(squared_norm, self._theta_size(model), self.sigma_0, self.sigma_theta**2),
                examples=task.query.x.shape[0],
                tasks=stage.tasks,
                epsilon=self.epsilon,
                form=self.form,
            )
            objective = loss + regularise * (bound.within_task + bound.across_tasks)
            info = {
                "loss": loss,
                "clipped_loss": bound.loss,
                "R_i": bound.within_task,
                "R_0": bound.across_tasks,
                "bound": bound.total,
                "kl": kl,
            }
            if self.uses_critic:
                # ω₀ ascends. Its estimate sends no gradient into ψ, as `detach(critic)` above sends none into ω₀.
                estimate = self._critic_estimate(detach(seen), critic, model, noise, -1)
                objective = objective - estimate
                info["critic"] = estimate
            return objective, info

        family = self.posterior(model)
        seen = [family.see(component["generator"], noise["z"][-1], self._sight) for component in adapted]
        losses = self._losses(seen, model, task.query, noise, -1)
        squared_norms = [squared_norm for _, squared_norm in drawn]
        found = [upper_level(*each) for each in zip(adapted, seen, losses, squared_norms, strict=True)]
        info = {name: torch.stack([terms[name] for _, terms in found]).mean() for name in found[0][1]}
        info |= component_losses([terms for _, terms in found])
        return torch.stack([objective for objective, _ in found]).mean(), info

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        posterior = self.posterior(model)
        return {"z": posterior.draw(samples), **posterior.draw_weights(samples)}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        family, samples = self.posterior(model), []
        for component, own in self._components(posterior, noise, "z", "weights"):
            samples.append(family.perturb(family.means(component["generator"], own["z"]), own.get("weights")))
        return outputs(model.network, unflatten(model.network, torch.cat(samples)), x)

    @property
    def uses_critic(self) -> bool:
        return self.kl in ("critic", "moment+critic")

    @property
    def _samples(self) -> int:
        """Samples of w per step: those that the loss uses are the first of those that the KL uses."""
        return self.train_samples if self.kl == "none" else max(self.train_samples, self.kl_samples)

    def shares_a_layer(self, model: Model) -> bool:
        """Whether tasks have the generator's last layer in common, and no copies of it."""
        return self.posterior(model).rank > 0

    def posterior(self, model: Model) -> ImplicitPosterior:
        """q(w; λ), the family of a task's posterior."""
        rank, full = self.inner_steps * self._samples, (self.latent, *self.generator_hidden)[-1]
        return ImplicitPosterior(
            model.network,
            self.latent,
            self.generator_hidden,
            self.latent_noise,
            self.weight_noise,
            rank=rank if rank < full else 0,
            scaled=self.scaled_generator,
        )

    @property
    def _sight(self) -> SampleRequest:
        """What the bounds look at: the samples that the loss takes, and those that the KL takes or their KL itself."""
        noisy = self.weight_noise > 0  # the KL is then that of the samples with their noise
        moments = self.kl in ("moment", "moment+critic") and not noisy
        every = self.uses_critic or (noisy and self.kl != "none")
        return SampleRequest(self.train_samples, self.sigma_w if moments else None, padded=every)

    def start(self, meta: Parts, model: Model, noise: Noise) -> Parts:
        """λ before the first step, θ, of all components."""
        return merge_components([{"generator": theta} for theta, _ in self._draw_thetas(meta, model, noise)])

    def essentials(self, posterior: Parts) -> Parts:
        """The generators; predictions do not use the critics."""
        return merge_components(
            [{"generator": component["generator"]} for component in split_components(posterior, self.components)]
        )

    def _components(self, parts: Parts, noise: Noise, *names: str) -> list[tuple[Parts, Noise]]:
        """The parts of each component, and its noise: of these names it has a share of the rows."""
        return list(
            zip(split_components(parts, self.components), split_noise(noise, names, self.components), strict=True)
        )

    def _draw_thetas(self, meta: Parts, model: Model, noise: Noise) -> list[tuple[Params, Tensor]]:
        """(θ ~ N(μ_θ, σ₀ I), ‖μ_θ‖²) of each component. The noise is shared by all tasks, and so is θ."""
        family = self.posterior(model)
        return [
            family.start(component["generator"], unflatten(family.generator, own["theta"]), self.sigma_0**0.5)
            for component, own in self._components(meta, noise, "theta")
        ]

    def _theta_size(self, model: Model) -> int:
        """The number of parameters of a component's θ."""
        return weight_count(self.posterior(model).generator)

    def critic(self, model: Model) -> Mlp:
        """φ: the weights of a base network → a number."""
        return Mlp((weight_count(model.network), *self.critic_hidden, 1))

    def _optimise_lower_level(
        self, thetas: Sequence[Params], meta: Parts, model: Model, support: Batch, noise: Noise, regularise: Tensor
    ) -> list[Parts]:
        """λ and ω of each component. They descend side by side: their networks see the support set together."""
        family = self.posterior(model)

        def bound(seen: Samples, losses: Tensor, critic: Params, step: int) -> Tensor:
            loss = losses.mean()
            if self.kl == "none":
                return loss  # the regulariser is a constant
            kl = self._kl(seen, critic, model, noise, step)
            theorem = theorem_1(loss, kl, examples=support.x.shape[0], epsilon=self.epsilon, form=self.form)
            return loss + regularise * theorem.regulariser

        def bounds(seen: list[Samples], critics: list[Params], step: int) -> Tensor:
            """The sum over components, in which each has its own gradient."""
            losses = self._losses(seen, model, support, noise, step)
            every = zip(seen, losses, critics, strict=True)
            return torch.stack([bound(*of_component, step) for of_component in every]).sum()

        def negative_estimate(critic: Params, seen: Samples, step: int) -> Tensor:
            return -self._critic_estimate(seen, critic, model, noise, step)

        generators = list(thetas)  # λ ← θ
        network, starts = self.critic(model), split_components(meta, self.components)
        critics = [network.aligned(start["critic"]) if self.uses_critic else {} for start in starts]  # ω ← ω₀
        looked_at = [network.rounded(critic) if self.uses_critic else {} for critic in critics]
        for step in range(self.inner_steps):
            generated = [
                family.generate(generator, noise["z"][step], self._sight, first_order=self.first_order)
                for generator in generators
            ]
            seen = [one for one, _ in generated]
            for number in range(self.components if self.uses_critic else 0):
                ascent = partial(negative_estimate, seen=detach(seen[number]), step=step)
                for _ in range(self.critic_steps):
                    uphill = gradient_of(ascent, looked_at[number], first_order=self.first_order)
                    critics[number] = take_rounded_step(critics[number], uphill, self.critic_lr)
                    looked_at[number] = network.rounded(critics[number])
            gradients = torch.func.grad(bounds)(seen, [detach(critic) for critic in looked_at], step)
            generators = [
                descend_to(gradient, self.inner_lr, self.inner_clip_norm)
                for (_, descend_to), gradient in zip(generated, gradients, strict=True)
            ]
        if not self.uses_critic:
            return [{"generator": generator} for generator in generators]
        return [{"generator": one, "critic": critic} for one, critic in zip(generators, critics, strict=True)]

    def _perturb(self, means: Tensor, model: Model, noise: Noise, level: int) -> Tensor:
        """w from G(z): the same vectors, unless there is weight noise."""
        return self.posterior(model).perturb(means, noise["weights"][level] if self.weight_noise else None)

    def _losses(
        self, seen: Sequence[Samples], model: Model, batch: Batch, noise: Noise, level: int
    ) -> tuple[Tensor, ...]:
        """What is trained on, of each component: (k, m), of each of its samples and each example."""
        samples = torch.cat([self._perturb(of_component["fit"], model, noise, level) for of_component in seen])
        predicted = outputs(model.network, unflatten(model.network, samples), batch.x)
        of_sample = model.bounded_loss if self.clip == "bounded" else model.loss
        losses = torch.func.vmap(of_sample, in_dims=(0, None))(predicted, batch.y)
        return (losses.clamp(max=1) if self.clip == "hard" else losses).chunk(len(seen))

    def _kl(self, seen: Samples, critic: Params, model: Model, noise: Noise, level: int) -> Tensor:
        """The estimate of KL[q(w; λ) ‖ p(w)] that both bounds use."""
        if self.kl == "semi-implicit":
            return semi_implicit_kl(seen["padded"][:, : weight_count(model.network)], self.weight_noise, self.sigma_w)
        estimate = seen.get("moment_kl", seen["fit"].new_zeros(()))
        if self.weight_noise and self.kl in ("moment", "moment+critic"):
            estimate = moment_kl(self._all(seen, model, noise, level), self.sigma_w)
        if self.uses_critic:
            estimate = estimate + self._critic_estimate(seen, critic, model, noise, level)
        return estimate

    def _critic_estimate(self, seen: Samples, critic: Params, model: Model, noise: Noise, level: int) -> Tensor:
        """Eq. (12) for KL[q ‖ p]; after the moment term, for what is left with q's means and variances taken out."""
        network, prior = self.critic(model), noise["prior"][level]
        if self.kl == "critic":
            prior = self.sigma_w * prior
            samples = self._all(seen, model, noise, level) if self.weight_noise else seen["padded"]
        else:
            samples = standardise(self._all(seen, model, noise, level))
        return critic_estimate(network, critic, samples, prior)

    def _all(self, seen: Samples, model: Model, noise: Noise, level: int) -> Tensor:
        """All samples of w, (S, n)."""
        return self._perturb(seen["padded"][:, : weight_count(model.network)], model, noise, level)
