"""From the latent of a task to its predictions: the part that all tasks share, and the encoder's view of a support set.

| kind of task | latent | what it decides |
|---|---|---|
| regression | one, (d,) | all weights of a network with two outputs: a label's mean, and the logarithm of its noise |
| classification | one per class, (C, d) | the class's row of a linear head above an embedding that all tasks share |
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fewsure.core.vectorise import indicators
from fewsure.networks.losses import cross_entropy, gaussian_log_likelihood
from fewsure.posteriors import outputs
from fewsure.posteriors.latent import Latent, WeightGenerator, spread_init
from fewsure.posteriors.prototypes import class_means, cosines, prototype_logits
from fewsure.types import Batch, Info, Network, Parts

FAR = 3.0
"""Residuals that an encoder sees are cut there, in shares of `target_scale`."""
START_LOG_STD = -1.0
"""ln σ that a latent starts with."""
START_SCALE = 10.0
"""The multiple of the cosine between an input and the mean of a class that logits start at."""
DIRECTION = 0.25
"""The length of the rows of A that are directions of embeddings."""
RARE = -2.0
"""ln of the weight that the other Gaussians of a label's noise start with, beside the first."""
ROW_SPREAD = 0.1
"""The spread of the part that one number of a latent adds to a row of a head, at the start."""


class Decoder(Protocol):
    """Turns S latents into S functions, by parameters that all tasks share."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The groups of parameters that predictions need."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a task's latent."""

    @property
    def sees(self) -> tuple[int, int]:
        """Numbers that `members` and `missed` have of each member of a support set."""

    def init(self, generator: torch.Generator) -> Parts:
        """Draw the initial parameters."""

    def embed(self, parts: Parts, x: Tensor) -> Tensor:
        """Inputs as the other functions take them."""

    def members(self, parts: Parts, support: Batch) -> Tensor:
        """The members of a support set (M, …) that an encoder attends over."""

    def missed(self, parts: Parts, support: Batch, z: Tensor) -> Tensor:
        """The residuals of the function of one latent at each member of the support set (M, …)."""

    def collected(self, members: Tensor) -> Tensor:
        """The findings at each member (M, k) as numbers of the latent: (k,), or (C, k) for each class."""

    def first(self, parts: Parts, support: Batch) -> Latent | None:
        """q(z), as far as it is known without an encoder."""

    def outputs(self, parts: Parts, z: Tensor, x: Tensor, q: Latent | None = None) -> Tensor:
        """All that the functions of S latents say of N inputs, (S, N, …).

        With q, the numbers of z in which a function is linear are integrated out under it.
        """

    def functions(self, found: Tensor) -> Tensor:
        """The values of functions in these outputs (S, N, C)."""

    def log_likelihood(self, found: Tensor, y: Tensor) -> Float[Tensor, "S N"]:
        """ln p(y | x, z) by these outputs."""

    def info(self, found: Tensor, y: Tensor) -> Info:
        """Scalars of these outputs that a person wants to see."""


@runtime_checkable
class Process(Protocol):
    """A linear-Gaussian part of a function: m(x) + φ(x)·z + rest, z ~ N(0, I)."""

    @property
    def size(self) -> int:
        """Numbers of its z."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The groups of parameters that it needs."""

    def at(self, parts: Parts, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """m(x) (N,), φ(x) (N, M) and the variance of the rest (N,)."""

    def posterior(self, parts: Parts, support: Batch, noise_std: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (M,) and triangular root (M, M) of the covariance of z."""


@dataclass(frozen=True)
class NetworkDecoder:
    """Regression: all weights of a network, the noise on labels included, from one latent."""

    family: WeightGenerator
    input_scale: float
    target_scale: float
    noise_floor: float
    gaussians: int
    """K, the Gaussians whose mixture is the density of a label given a network. It has 3K − 1 outputs for them."""
    process: Process | None
    """What networks add to. The first numbers of the latent are those of the process."""

    @property
    def parts(self) -> tuple[str, ...]:
        return ("generator", "noise", *(self.process.parts if self.process else ()))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._of_process + self.family.latent,)

    @property
    def sees(self) -> tuple[int, int]:
        return self.family.network.inputs[0] + 2, 4

    def init(self, generator: torch.Generator) -> Parts:
        made = self.family.init(spread_init(self.family.network, generator), generator)
        log_weights = torch.where(torch.arange(self.gaussians) > 0, RARE, 0.0)
        noise = {"log_std": torch.tensor(0.1).log() + self._apart(), "log_weights": log_weights}
        return {"generator": self.family.silenced(made) if self.process else made, "noise": noise}

    def with_noise(self, parts: Parts, std: Tensor) -> Parts:
        """The parts with a first Gaussian of this standard deviation, and others around it."""
        log_std = (std - self.noise_floor).clamp(min=0.1 * self.noise_floor).log() + self._apart().to(std)
        return parts | {"noise": parts["noise"] | {"log_std": log_std}}

    def embed(self, parts: Parts, x: Tensor) -> Tensor:
        return x / self.input_scale

    def members(self, parts: Parts, support: Batch) -> Tensor:
        y = support.y / self.target_scale
        if self.process:
            y = y - self.process.at(parts, support.x)[0].to(y).unsqueeze(-1)
        return torch.cat([support.x, y, y / 3], -1)

    def missed(self, parts: Parts, support: Batch, z: Tensor) -> Tensor:
        found = self.outputs(parts, z.unsqueeze(0), support.x) / self.target_scale
        mean, std = found[0, :, :1, 0], found[0, :, :1, 1]
        missed = (support.y / self.target_scale - mean).clamp(-FAR, FAR)
        in_noise = (missed / std).clamp(-10, 10)
        return torch.cat([5 * missed, 0.3 * in_noise, mean, std.log()], -1)

    def collected(self, members: Tensor) -> Tensor:
        return members.mean(0)

    def first(self, parts: Parts, support: Batch) -> Latent | None:
        """The exact posterior of the process."""
        if not self.process:
            return None
        y, others = support.y / self.target_scale, self.family.latent
        mean, root = self.process.posterior(parts, Batch(support.x, y), self._noise_std(parts, y.new_zeros(1))[0])
        log_std = functional.pad(y.new_zeros(self._of_process), (0, others), value=START_LOG_STD)
        turn = functional.pad(root.to(y), (0, others, 0, others))
        turn = turn + functional.pad(y.new_ones(others).diag(), (self._of_process, 0, self._of_process, 0))
        return Latent(functional.pad(mean.to(y), (0, others)), log_std, turn)

    def outputs(self, parts: Parts, z: Tensor, x: Tensor, q: Latent | None = None) -> Tensor:
        """Of each Gaussian of a label (S, N, K, 4): mean, deviation, the part of it that is no noise, and ln weight."""
        found = outputs(self.family.network, self.family(parts["generator"], z[:, self._of_process :]), x)
        others = self.gaussians - 1
        mean, apart, log_std, logits = torch.split(found, [1, others, 1 + others, others], dim=-1)
        variance, of_function = self._noise_std(parts, log_std).square(), torch.zeros_like(mean)
        if self.process:
            count = self._of_process
            trend, features, rest = (value.to(x) for value in self.process.at(parts, x))
            drawn = z[:, :count]
            if q is not None:
                drawn, own = q.mean[:count].unsqueeze(0), q.first(count)
                spread = features * own.log_std.exp()
                of_function = (spread if own.turn is None else spread @ own.turn).square().sum(-1, keepdim=True)
            mean = mean + (trend + drawn @ features.mT).unsqueeze(-1)
            variance = variance + rest.unsqueeze(-1) + of_function
            of_function = of_function.sqrt() if q is not None else of_function
        mean, std = mean + functional.pad(apart, (1, 0)), variance.sqrt()
        log_weights = (parts["noise"]["log_weights"] + functional.pad(logits, (1, 0))).log_softmax(-1)
        moments = [self.target_scale * value.expand_as(std) for value in (mean, std, of_function)]
        return torch.stack([*moments, log_weights.expand_as(std)], -1)

    def functions(self, found: Tensor) -> Tensor:
        mean, _, _, log_weight = found.unbind(-1)
        return (log_weight.exp() * mean).sum(-1, keepdim=True)

    def log_likelihood(self, found: Tensor, y: Tensor) -> Tensor:
        mean, std, _, log_weight = found.unbind(-1)
        of_each = gaussian_log_likelihood(mean.unsqueeze(-1), std.unsqueeze(-1), y.unsqueeze(-1))
        return (log_weight + of_each).logsumexp(-1)

    def info(self, found: Tensor, y: Tensor) -> Info:
        return {"noise_std": found[..., 0, 1].mean()}

    @property
    def _of_process(self) -> int:
        return self.process.size if self.process else 0

    def _apart(self) -> Tensor:
        """Differences between ln of the standard deviations of the Gaussians, at the start: 0, 1, −1, 2, −2, …"""
        number = torch.arange(self.gaussians)
        return ((number + 1) // 2) * torch.where(number % 2 == 1, 1.0, -1.0)

    def _noise_std(self, parts: Parts, log_std: Tensor) -> Tensor:
        """Of each Gaussian (…, K), in shares of `target_scale`, where a network adds `log_std` (…, K)."""
        return self.noise_floor + (parts["noise"]["log_std"] + log_std).clamp(-6, 4).exp()


@dataclass(frozen=True)
class HeadDecoder:
    """Classification: the rows of a linear head from a latent per class, (weights, bias) = z A."""

    network: Network
    """The network that embeds an input; its outputs are the embedding."""
    width: int
    """Numbers of the embedding."""
    latent: int
    way: int
    means: bool = False
    """Whether a latent starts at the mean of its class."""

    @property
    def parts(self) -> tuple[str, ...]:
        return ("embedding", "head")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.way, self.latent)

    @property
    def sees(self) -> tuple[int, int]:
        return self.width + 1, self.width

    def init(self, generator: torch.Generator) -> Parts:
        rows = ROW_SPREAD * torch.randn(self.latent, self.width + 1, generator=generator)
        scale = torch.tensor(START_SCALE).log()
        start = {"log_gain": scale - math.log(DIRECTION**2 * self.width), "log_scale": scale} if self.means else {}
        return {"embedding": self.network.init(generator), "head": {"rows": rows} | start}

    def along(self, parts: Parts, x: Tensor) -> Parts:
        """The parameters whose matrix A has the directions in which the embeddings of these inputs differ most."""
        embedded = _normalised(self.embed(parts, x))
        directions = torch.linalg.svd(embedded - embedded.mean(0), full_matrices=False).Vh[: self.latent]
        return parts | {"head": parts["head"] | {"rows": functional.pad(DIRECTION * directions, (0, 1))}}

    def prototype_logits(self, parts: Parts, support: Batch, x: Tensor) -> Tensor:
        """The logits of prototypical networks on embedded inputs: of cosines where latents start at means."""
        means = class_means(support.x, support.y, self.way)
        return parts["head"]["log_scale"].exp() * cosines(x, means) if self.means else prototype_logits(x, means)

    def embed(self, parts: Parts, x: Tensor) -> Tensor:
        return self.network(parts["embedding"], x)

    def members(self, parts: Parts, support: Batch) -> Tensor:
        """The mean of each class, and the logarithm of the number of its examples; a half stands for none."""
        count = indicators(support.y, self.way).to(support.x.dtype).sum(0).clamp(min=0.5)
        return torch.cat([_normalised(class_means(support.x, support.y, self.way)), count.log().unsqueeze(-1)], -1)

    def missed(self, parts: Parts, support: Batch, z: Tensor) -> Tensor:
        """The gradient of the log-likelihood in the weights of each row, per example of the class."""
        logits = self.outputs(parts, z.unsqueeze(0), support.x)[0]
        member = indicators(support.y, self.way).to(logits.dtype)
        return (member - logits.softmax(-1)).T @ _normalised(support.x) / member.sum(0).clamp(min=1).unsqueeze(-1)

    def collected(self, members: Tensor) -> Tensor:
        return members

    def first(self, parts: Parts, support: Batch) -> Latent | None:
        """μ = g A m with the mean m of a class, so that its logit is a cosine with m that A sees."""
        if not self.means:
            return None
        mean = _normalised(class_means(support.x, support.y, self.way))
        z = parts["head"]["log_gain"].exp() * mean @ parts["head"]["rows"][:, :-1].mT
        return Latent(z, torch.zeros_like(z))

    def outputs(self, parts: Parts, z: Tensor, x: Tensor, q: Latent | None = None) -> Tensor:
        """The logits of each class."""
        rows = z @ parts["head"]["rows"]
        return _normalised(x) @ rows[..., :-1].mT + rows[..., -1].unsqueeze(-2)

    def functions(self, found: Tensor) -> Tensor:
        return found

    def log_likelihood(self, found: Tensor, y: Tensor) -> Tensor:
        return -cross_entropy(found, y.expand(len(found), -1))

    def info(self, found: Tensor, y: Tensor) -> Info:
        hits = found.softmax(-1).mean(0).argmax(-1) == y
        return {"accuracy": hits.to(found.dtype).mean()}


def _normalised(x: Tensor) -> Tensor:
    """Each embedded input with mean 0 and variance 1 over its numbers."""
    return functional.layer_norm(x, x.shape[-1:])
