"""From the latent of a task to its predictions: the part that all tasks share, and the encoder's view of a support set.

| kind of task | latent | what it decides |
|---|---|---|
| regression | one, (d,) | all weights of a network with two outputs: a label's mean, and the logarithm of its noise |
| classification | one per class, (C, d) | the class's row of a linear head above an embedding that all tasks share |
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fewsure.core.vectorise import indicators
from fewsure.networks.losses import cross_entropy, gaussian_log_likelihood
from fewsure.posteriors import outputs
from fewsure.posteriors.latent import WeightGenerator, spread_init
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

    def first(self, parts: Parts, support: Batch) -> Tensor | None:
        """μ and ln σ of the latent, as far as they are known without an encoder."""

    def outputs(self, parts: Parts, z: Tensor, x: Tensor) -> Tensor:
        """All that the functions of S latents say of N inputs, (S, N, …)."""

    def functions(self, found: Tensor) -> Tensor:
        """The values of functions in these outputs (S, N, C)."""

    def log_likelihood(self, found: Tensor, y: Tensor) -> Float[Tensor, "S N"]:
        """ln p(y | x, z) by these outputs."""

    def info(self, found: Tensor, y: Tensor) -> Info:
        """Scalars of these outputs that a person wants to see."""


@dataclass(frozen=True)
class NetworkDecoder:
    """Regression: all weights of a network, the noise on labels included, from one latent."""

    family: WeightGenerator
    input_scale: float
    target_scale: float
    noise_floor: float
    effects: bool
    """Whether networks add to a linear mixed model, whose random intercept is the first number of the latent."""

    @property
    def parts(self) -> tuple[str, ...]:
        return ("generator", "noise", *(("effects",) if self.effects else ()))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.family.latent,)

    @property
    def sees(self) -> tuple[int, int]:
        return self.family.network.inputs[0] + 2, 4

    def init(self, generator: torch.Generator) -> Parts:
        weights = spread_init(self.family.network, generator)
        made, noise = self.family.init(weights, generator), {"log_std": torch.tensor(0.1).log()}
        if not self.effects:
            return {"generator": made, "noise": noise}
        effects = {"fixed": torch.zeros(1 + self.family.network.inputs[0]), "log_std": torch.zeros(())}
        return {"generator": self.family.silenced(made), "noise": noise, "effects": effects}

    def embed(self, parts: Parts, x: Tensor) -> Tensor:
        return x / self.input_scale

    def members(self, parts: Parts, support: Batch) -> Tensor:
        y = support.y / self.target_scale
        if self.effects:
            y = y - self._fixed(parts, support.x)
        return torch.cat([support.x, y, y / 3], -1)

    def missed(self, parts: Parts, support: Batch, z: Tensor) -> Tensor:
        mean, std = (self.outputs(parts, z.unsqueeze(0), support.x)[0] / self.target_scale).chunk(2, -1)
        missed = (support.y / self.target_scale - mean).clamp(-FAR, FAR)
        in_noise = (missed / std).clamp(-10, 10)
        return torch.cat([5 * missed, 0.3 * in_noise, mean, std.log()], -1)

    def collected(self, members: Tensor) -> Tensor:
        return members.mean(0)

    def first(self, parts: Parts, support: Batch) -> Tensor | None:
        """The exact posterior of the random intercept under the mixed model alone."""
        if not self.effects:
            return None
        residuals = support.y / self.target_scale - self._fixed(parts, support.x)
        std, noise_std = parts["effects"]["log_std"].exp(), self._noise_std(parts, 0.0)
        precision = 1 + len(residuals) * (std / noise_std).square()
        mean = std * residuals.sum() / noise_std.square() / precision
        others = mean.new_zeros(self.family.latent - 1)
        return torch.cat([mean.reshape(1), others, -0.5 * precision.log().reshape(1), others + START_LOG_STD])

    def outputs(self, parts: Parts, z: Tensor, x: Tensor) -> Tensor:
        """The mean of a label and the standard deviation of its noise."""
        found = outputs(self.family.network, self.family(parts["generator"], z), x)
        mean, log_std = found.chunk(2, -1)
        if self.effects:
            mean = mean + self._fixed(parts, x) + parts["effects"]["log_std"].exp() * z[:, :1].unsqueeze(-1)
        return self.target_scale * torch.cat([mean, self._noise_std(parts, log_std)], -1)

    def _fixed(self, parts: Parts, x: Tensor) -> Tensor:
        """Fixed effects (N, 1) of inputs."""
        effects = parts["effects"]["fixed"]
        return (effects[0] + x @ effects[1:]).unsqueeze(-1)

    def _noise_std(self, parts: Parts, log_std: Tensor | float) -> Tensor:
        """In shares of `target_scale`, where a network adds `log_std` to the logarithm."""
        return self.noise_floor + (parts["noise"]["log_std"] + log_std).clamp(-6, 4).exp()

    def functions(self, found: Tensor) -> Tensor:
        return found[..., :1]

    def log_likelihood(self, found: Tensor, y: Tensor) -> Tensor:
        mean, std = found.chunk(2, -1)
        return gaussian_log_likelihood(mean, std, y)

    def info(self, found: Tensor, y: Tensor) -> Info:
        return {"noise_std": found[..., 1].mean()}


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

    def first(self, parts: Parts, support: Batch) -> Tensor | None:
        """μ = g A m with the mean m of a class, so that its logit is a cosine with m that A sees."""
        if not self.means:
            return None
        mean = _normalised(class_means(support.x, support.y, self.way))
        z = parts["head"]["log_gain"].exp() * mean @ parts["head"]["rows"][:, :-1].mT
        return torch.cat([z, torch.zeros_like(z)], -1)

    def outputs(self, parts: Parts, z: Tensor, x: Tensor) -> Tensor:
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
