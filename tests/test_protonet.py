"""Prototypical networks: the nearest class mean, by hand."""

import pytest
import torch

from fewsure.algorithms.protonet import ProtoNet
from fewsure.core import streams
from fewsure.networks.losses import classification
from fewsure.networks.mlp import Mlp
from fewsure.training.engine import Engine
from fewsure.types import Batch, Stage, Task

from .helpers import assert_gradient_equals_finite_differences, assert_vectorised_equals_loop


def test_it_is_the_softmax_over_negative_squared_distances_to_class_means() -> None:
    # The embedding of a network with one linear layer before its last is that layer; here the identity.
    model = classification(Mlp((2, 2, 2)), way=2)
    identity = {"embedding": {"0.weight": torch.eye(2), "0.bias": torch.zeros(2)}}
    support = Batch(torch.tensor([[0.0, 0.0], [3.0, 1.0], [2.0, 0.0]]), torch.tensor([0, 1, 0]))
    posterior = ProtoNet().adapt(identity, model, support, {})
    torch.testing.assert_close(posterior["prototypes"]["mean"], torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
    outputs = ProtoNet().predict(posterior, model, torch.tensor([[2.0, 1.0]]), {})
    # squared distances 1 + 1 = 2 and 1 + 0 = 1
    torch.testing.assert_close(outputs, torch.tensor([[[-2.0, -1.0]]]))
    odds = torch.exp(torch.tensor([-2.0, -1.0]))
    torch.testing.assert_close(outputs.softmax(-1)[0, 0], odds / odds.sum())


def test_with_cosines_lengths_do_not_matter_and_the_scale_is_learned() -> None:
    model, method = classification(Mlp((2, 2, 2)), way=2), ProtoNet(cosine=True)
    identity = {"embedding": {"0.weight": torch.eye(2), "0.bias": torch.zeros(2)}}
    meta = method.init(model, streams.generator(0, "init")) | identity
    support = Batch(torch.tensor([[1.0, 0.0], [0.0, 7.0]]), torch.tensor([0, 1]))
    outputs = method.predict(method.adapt(meta, model, support, {}), model, torch.tensor([[3.0, 4.0]]), {})
    torch.testing.assert_close(outputs, torch.tensor([[[6.0, 8.0]]]))
    task = Task(support, Batch(torch.tensor([[3.0, 4.0]]), torch.tensor([0])))
    grow = torch.func.grad(lambda meta: method.loss(meta, model, task, {}, Stage(torch.tensor(0), 1))[0])(meta)
    # d/ds of ln Σ exp(s·cos) − s·cos₀, and ds/d ln s = 10
    assert float(grow["logits"]["log_scale"]) == pytest.approx(2 * float(torch.tensor(2.0).sigmoid()), rel=1e-5)


def test_the_same_embedding_serves_any_way_and_shot() -> None:
    meta = ProtoNet().init(classification(Mlp((4, 8, 3)), way=3), streams.generator(0, "init"))
    for way, shot in ((2, 1), (7, 5)):
        model = classification(Mlp((4, 8, way)), way)
        generator = streams.generator(way, "test")
        x = torch.randn(way * shot, 4, generator=generator)
        y = torch.arange(way).repeat_interleave(shot)
        posterior = ProtoNet().adapt(meta, model, Batch(x, y), {})
        assert ProtoNet().predict(posterior, model, x, {}).shape == (1, way * shot, way)


def test_the_order_of_the_support_examples_does_not_matter() -> None:
    model = classification(Mlp((4, 8, 3)), way=3)
    meta = ProtoNet().init(model, streams.generator(0, "init"))
    x, y = torch.randn(9, 4, generator=streams.generator(0, "x")), torch.arange(3).repeat(3)
    order = torch.randperm(9, generator=streams.generator(0, "order"))
    one, two = (ProtoNet().adapt(meta, model, Batch(x[at], y[at]), {}) for at in (torch.arange(9), order))
    torch.testing.assert_close(one["prototypes"]["mean"], two["prototypes"]["mean"])


@pytest.mark.usefixtures("float64")
def test_gradients() -> None:
    model = classification(Mlp((4, 8, 3)), way=3)
    generator = streams.generator(0, "test")
    meta = ProtoNet().init(model, generator)
    y = torch.arange(3).repeat_interleave(2).expand(4, 6)
    support, query = (Batch(torch.randn(4, 6, 4, generator=generator), y) for _ in range(2))
    batch = (meta, Task(support, query), {}, {}, Stage(torch.tensor(0), 4))
    assert_vectorised_equals_loop(ProtoNet(), model, batch)
    assert_gradient_equals_finite_differences(ProtoNet(), model, batch)
    assert set(Engine(ProtoNet(), model).gradient(*batch)[0]) == {"embedding"}
