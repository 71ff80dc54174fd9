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
    """q(w; λ):  w = G(z; λ), z ~ p(z)   (Eq. 10).

    G is fully connected with ReLU and ends in tanh, which keeps the weights it makes in (−1, 1). λ are G's weights.
    """

    network: Network
    """The base network whose n weights are generated."""
    latent: int
    hidden: tuple[int, ...]
    latent_noise: Latent

    @property
    def generator(self) -> Mlp:
        return Mlp((self.latent, *self.hidden, weight_count(self.network)), tanh=True)

    def draw(self, *samples: int) -> Draw:
        """The latent noise z of so many samples."""
        return Draw((*samples, self.latent), self.latent_noise)

    def sample(self, parameters: Params, z: Float[Tensor, "S latent"]) -> Float[Tensor, "S n"]:
        """S flat weight vectors."""
        return self.generator(parameters, z)
