"""Prototypes: the means of classes in an embedding (Snell, Swersky and Zemel, 2017)."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fewsure.core.vectorise import indicators


def class_means(embedded: Float[Tensor, "N f"], y: Int[Tensor, " N"], way: int) -> Float[Tensor, "C f"]:
    """The mean of the examples of each of `way` classes (Eq. 1). A class without examples gets the mean of all.

    >>> import torch
    >>> class_means(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]), 2)
    tensor([[1.],
            [5.]])
    """
    member = indicators(y, way).to(embedded.dtype)
    count = member.sum(0).unsqueeze(-1)
    return (member.T @ embedded / count.clamp(min=1)).where(count > 0, embedded.mean(0))


def prototype_logits(embedded: Float[Tensor, "N f"], means: Float[Tensor, "C f"]) -> Float[Tensor, "N C"]:
    """−‖f(x) − μ_c‖², the logarithm of the odds of each class (Eq. 2)."""
    return -(embedded.unsqueeze(1) - means).square().sum(-1)


def cosines(embedded: Float[Tensor, "N f"], means: Float[Tensor, "C f"]) -> Float[Tensor, "N C"]:
    """The cosine of the angle between each example and each mean.

    >>> import torch
    >>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [0.0, -1.0]]))
    tensor([[ 0.6000, -0.8000]])
    """
    return functional.normalize(embedded, dim=-1) @ functional.normalize(means, dim=-1).T
