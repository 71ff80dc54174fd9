"""The generator of an implicit posterior: a fully connected network from noise to the weights of the base network."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure.core.devices import rounded_type
from fewsure.kernels import fused_generator
from fewsure.kernels.fused import Activation
from fewsure.networks.mlp import ALIGNED, Mlp
from fewsure.networks.weights import flatten
from fewsure.posteriors.last_layer import LastLayer
from fewsure.types import Network, Params

INITIAL_SPREAD = 0.1
MOST = 0.99
"""Size of a weight that the generator is made to begin with: tanh reaches 1 at infinity."""


@dataclass(frozen=True)
class Generator(Mlp):
    """G, with ReLU between its layers and tanh behind the last, which keeps the weights it makes in (−1, 1).

    The parameters of K components are stacked, (K, …) each.
    """

    last: Activation = "tanh"

    def init_around(self, network: Network, generator: torch.Generator) -> Params:
        """A component's initial parameters, which make initial weights of `network`, with a tenth of its own spread."""
        parameters, (last, bias) = self.init(generator), self.last_names
        centre = flatten(network.init(generator)).clamp(-MOST, MOST).atanh()
        return parameters | {last: INITIAL_SPREAD * parameters[last], bias: centre}

    def start(self, mean: Params, shift: Params, std: float, *, shared: bool) -> tuple[Params, Float[Tensor, " K"]]:
        """(mean + std·shift, ‖mean‖²).

        The last layer is padded so that its rows are aligned for GPUs. A layer that is `shared` by all tasks is rounded
        where the `precision` says so.
        """
        last, bias = self.last_names
        padding = -self.sizes[-1] % ALIGNED
        rounded = {last: rounded_type(mean[last])} if shared else {}
        return fused_generator.start(mean, shift, std, {last: padding, bias: padding}, rounded)

    @property
    def last_names(self) -> tuple[str, str]:
        """The names of the last layer's weight and bias."""
        number = len(self.sizes) - 2
        return f"{number}.weight", f"{number}.bias"

    def last_layer(self, parameters: Params) -> LastLayer:
        """The last layer, with the factors of a task where it has any."""
        weight, bias = self.last_names
        return LastLayer(parameters[weight], parameters[bias], parameters.get("left"), parameters.get("right"))

    def trunk(self, parameters: Params) -> Params:
        """The parameters below the last layer."""
        return {name: parameters[name] for name in self._trunk.shapes}

    def latents(self, parameters: Params, z: Float[Tensor, "*K S latent"]) -> Float[Tensor, "K S latent"]:
        """z of each component; (S, latent) is the same for all."""
        return z.expand(len(parameters[self.last_names[1]]), *z.shape[-2:])

    def hidden_units(self, parameters: Params, z: Float[Tensor, "K S latent"]) -> Float[Tensor, "K S hidden"]:
        """The numbers that the last layer multiplies by its weights."""
        layers = len(self.sizes) - 2
        return self.entering(self._trunk(parameters, z) if layers else z, layers)

    @property
    def _trunk(self) -> Mlp:
        return Mlp(self.sizes[:-1], last="relu", scaled=self.scaled)
