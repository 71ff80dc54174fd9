"""The implicit posterior: a generator network turns noise into the weights of the base network."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from fewsure.networks import Mlp, weight_count
from fewsure.types import Draw, Network, Params

Latent = Literal["uniform", "normal"]


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

    @property
    def generator(self) -> Mlp:
        return Mlp((self.latent, *self.hidden, weight_count(self.network)), tanh=True)

    def draw(self, *samples: int) -> Draw:
        """The latent noise z of so many samples."""
        return Draw((*samples, self.latent), self.latent_noise)

    def draw_weights(self, *samples: int) -> dict[str, Draw]:
        """The noise on the weights of so many samples, named; nothing where there is none."""
        return {"weights": Draw((*samples, weight_count(self.network)))} if self.weight_noise else {}

    def means(self, parameters: Params, z: Float[Tensor, "S latent"]) -> Float[Tensor, "S n"]:
        """G(z), S flat weight vectors without their noise."""
        return self.generator(parameters, z)

    def perturb(self, means: Float[Tensor, "S n"], noise: Float[Tensor, "R n"] | None) -> Float[Tensor, "R n"]:
        """w = G(z) + s·noise, for as many of the means as there is noise for; without noise, the means themselves."""
        return means if noise is None else means[: len(noise)] + self.weight_noise * noise
