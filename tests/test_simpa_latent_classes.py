"""SImPa with a latent posterior for classification: a latent per class, and the head that it makes."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from fewsure.algorithms.parts.cutting import cut
from fewsure.algorithms.protonet import ProtoNet
from fewsure.algorithms.simpa_latent import SimpaLatent
from fewsure.cli.main import main
from fewsure.core import streams
from fewsure.core.vectorise import draw_noise
from fewsure.data.features import FeatureHeadOptions, Features
from fewsure.errors import FewsureError
from fewsure.networks.conv4 import Conv4
from fewsure.networks.losses import classification, regression
from fewsure.networks.mlp import Mlp
from fewsure.pipeline import start_run
from fewsure.posteriors.decoders import HeadDecoder
from fewsure.posteriors.latent import Latent
from fewsure.training.experiment import Experiment, Training
from fewsure.types import Batch, Model, Network, Stage, Task

from .helpers import assert_gradient_equals_finite_differences, assert_vectorised_equals_loop, write_blobs

WAY, SHOT, QUERY = 3, 2, 4


def small(**options: object) -> SimpaLatent:
    settings = {"latent": 3, "embedding": 5, "encoder_width": 8, "encoder_layers": 1, "train_samples": 3}
    settings |= {"refinements": 1, "prototype_weight": 0.0}
    return SimpaLatent(**(settings | options))  # type: ignore[arg-type]


def model_of(way: int = WAY, network: Network | None = None) -> Model:
    return classification(network or Mlp((4, 6, 5, way)), way)


def batches(tasks: int, way: int = WAY, shape: tuple[int, ...] = (4,)) -> Task:
    generator = streams.generator(way, "classes")

    def batch(each: int) -> Batch:
        y = torch.arange(way).repeat_interleave(each).expand(tasks, -1)
        return Batch(torch.randn(tasks, way * each, *shape, generator=generator), y)

    return Task(batch(SHOT), batch(QUERY))


def one(task: Task) -> Task:
    return Task(*(Batch(batch.x[0], batch.y[0]) for batch in task[:2]))


def problem(method: SimpaLatent, model: Model, shape: tuple[int, ...] = (4,)) -> tuple:
    generator = streams.generator(0, "test")
    meta = method.init(model, generator)
    spec = method.noise(model, model.outputs * SHOT, model.outputs * QUERY)
    return meta, batches(4, model.outputs, shape), *draw_noise(spec, 4, generator), Stage(torch.tensor(0), 4)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"refinements": 0, "prototype_weight": 0.5},
        {"cuts": 4, "cut_way": 2, "kl_weight_spread": 3.0},
        {"embedding": 0, "start_at_means": True, "prototype_weight": 0.5},
    ],
)
def test_vectorised_equals_loop_and_the_meta_gradient_equals_finite_differences(options: dict) -> None:
    method, model = small(**options), model_of()
    assert_vectorised_equals_loop(method, model, problem(method, model))
    assert_gradient_equals_finite_differences(method, model, problem(method, model), step=1e-6)


@pytest.mark.usefixtures("float64")
def test_without_refinements_the_head_is_versas() -> None:
    """Gaussian rows, so Gaussian logits in closed form; where classes do not attend, each is amortised by itself."""
    decoder = HeadDecoder(Mlp((4, 5)), 5, 6, WAY)
    generator = streams.generator(0, "versa")
    q = Latent(torch.randn(WAY, 6, generator=generator), 0.3 * torch.randn(WAY, 6, generator=generator))
    x, parts = torch.randn(4, 5, generator=generator), {"head": {"rows": torch.eye(6)}}
    logits = decoder.outputs(parts, q.sample(torch.randn(20_000, WAY, 6, generator=generator)), x)
    features = torch.cat([torch.nn.functional.layer_norm(x, (5,)), torch.ones(4, 1)], -1)
    variance = features.square() @ (2 * q.log_std).exp().T
    torch.testing.assert_close(logits.mean(0), features @ q.mean.T, atol=0.1, rtol=0)
    torch.testing.assert_close(logits.var(0), variance, atol=0, rtol=0.1)

    method, model, task = small(refinements=0), model_of(), one(batches(1))
    meta = method.init(model, generator)
    meta["encoder"]["layer0.mix.weight"] *= 0  # no attention to other classes
    others = Batch(torch.where((task.support.y == 0).unsqueeze(-1), task.support.x, 7.0), task.support.y)
    found, changed = (method.adapt(meta, model, support, {})["latent"]["mean"] for support in (task.support, others))
    assert torch.equal(found[0], changed[0])
    assert not torch.allclose(found[1], changed[1])


@pytest.mark.usefixtures("float64")
def test_without_spread_and_kl_it_is_one_head_with_the_cross_entropy_of_its_predictions() -> None:
    method, model, task = small(kl_weight=0.0), model_of(), one(batches(1))
    meta = method.init(model, streams.generator(0, "init"))
    silent = {"z": torch.zeros(3, WAY, 3)}
    (logits, *others) = method.predict(method.adapt(meta, model, task.support, {}), model, task.query.x, silent)
    assert all(torch.equal(logits, other) for other in others)
    loss, _ = method.loss(meta, model, task, silent, Stage(torch.tensor(0), 1))
    torch.testing.assert_close(loss, model.loss(logits, task.query.y).mean())


@pytest.mark.usefixtures("float64")
def test_without_spread_and_kl_a_refinement_can_be_a_gradient_step_which_is_cavia() -> None:
    """Biases keep the encoder's layers where they are linear; the context parameters start alike for all classes."""
    method, model, task = small(kl_weight=0.0, encoder_width=12), model_of(), one(batches(1))
    meta = method.init(model, streams.generator(0, "init"))
    rows, start, rate, far = meta["head"]["rows"], torch.tensor([0.5, -1.0, 0.2]), torch.tensor([2.0, 1.0, 3.0]), 1e5
    rows[:, -1] = 0.0  # a head without biases
    for name in ("encoder", "refinement0"):
        meta[name] = {key: torch.zeros_like(value) for key, value in meta[name].items()}
        meta[name]["last.scale"] += 1.0
    meta["encoder"]["head.bias"][:3] = start
    step = meta["refinement0"]
    step["entry.bias"] += 30.0  # GELU is linear there
    step["entry.weight"][:5, :3], step["second.weight"][:3, :3] = rows[:, :-1].T * rate, torch.eye(3)
    step["second.weight"][:3, 3:6] = -torch.eye(3)
    # Numbers that are far larger than what passes keep the norm linear.
    step["second.bias"][:8] = torch.tensor([-30.0] * 3 + [30.0] * 3 + [far, -far])
    step["head.weight"][:3, :3] = torch.eye(3) * far * (2 / 12) ** 0.5

    network = model.network.with_outputs(5)
    known, unknown = (torch.nn.functional.layer_norm(network(meta["embedding"], part.x), (5,)) for part in task[:2])
    context = start.expand(WAY, 3).clone().requires_grad_()
    likelihood = -torch.nn.functional.cross_entropy(known @ (context @ rows[:, :-1]).T, task.support.y) * WAY
    adapted = context + rate * torch.autograd.grad(likelihood, context)[0]
    found = method.adapt(meta, model, task.support, {})["latent"]["mean"]
    torch.testing.assert_close(found, adapted, rtol=1e-6, atol=1e-6)
    loss, _ = method.loss(meta, model, task, {"z": torch.zeros(3, WAY, 3)}, Stage(torch.tensor(0), 1))
    expected = torch.nn.functional.cross_entropy(unknown @ (adapted @ rows[:, :-1]).T, task.query.y)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("float64")
def test_the_loss_is_the_mixtures_likelihood_and_the_kl_of_all_classes() -> None:
    method, model, task = small(kl_weight=0.5), model_of(), one(batches(1))
    meta = method.init(model, streams.generator(0, "init"))
    noise = {"z": torch.randn(3, WAY, 3, generator=streams.generator(0, "z"))}
    posterior = method.adapt(meta, model, task.support, {})
    probabilities = method.predict(posterior, model, task.query.x, noise).softmax(-1).mean(0)
    nll = -probabilities[torch.arange(WAY * QUERY), task.query.y].log().mean()
    q = posterior["latent"]
    normal = torch.distributions.Normal(q["mean"], q["log_std"].exp())
    kl = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).sum()
    loss, info = method.loss(meta, model, task, noise, Stage(torch.tensor(0), 1))
    torch.testing.assert_close(loss, nll + 0.5 * kl)
    torch.testing.assert_close(info["kl"], kl)


@pytest.mark.usefixtures("float64")
def test_the_order_of_the_support_set_does_not_matter_and_classes_are_exchangeable() -> None:
    method, model, task = small(), model_of(), one(batches(1))
    meta = method.init(model, streams.generator(0, "init"))
    x, y = task.support
    order, renamed = torch.randperm(len(y), generator=streams.generator(0, "order")), torch.tensor([2, 0, 1])
    found = method.adapt(meta, model, task.support, {})["latent"]["mean"]
    shuffled = method.adapt(meta, model, Batch(x[order], y[order]), {})["latent"]["mean"]
    turned = method.adapt(meta, model, Batch(x, renamed[y]), {})["latent"]["mean"]
    torch.testing.assert_close(shuffled, found)
    torch.testing.assert_close(turned[renamed], found)


def test_the_same_parameters_serve_any_way_and_shot() -> None:
    method = small()
    meta = method.init(model_of(), streams.generator(0, "init"))
    for way in (2, 7):
        model, task = model_of(way), one(batches(1, way))
        noise = {"z": torch.randn(method.prediction_noise(model, 4, way)["z"].shape)}
        posterior = method.adapt(meta, model, task.support, {})
        assert method.predict(posterior, model, task.query.x, noise).shape == (4, way * QUERY, way)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("norm", ["support", "instance"])
def test_a_prediction_depends_on_no_other_query(norm: str) -> None:
    network = Conv4((1, 16, 16), WAY, filters=4, norm=norm)  # type: ignore[arg-type]
    method, model, task = small(), model_of(network=network), one(batches(1, shape=(1, 16, 16)))
    model = model.given(task.support)
    meta = method.init(model, streams.generator(0, "init"))
    noise = {"z": torch.randn(4, WAY, 3, generator=streams.generator(0, "z"))}
    posterior = method.adapt(meta, model, task.support, {})
    together = method.predict(posterior, model, task.query.x, noise)
    alone = torch.cat([method.predict(posterior, model, x.unsqueeze(0), noise) for x in task.query.x], 1)
    torch.testing.assert_close(together, alone)


@pytest.mark.usefixtures("float64")
def test_a_cut_task_has_the_examples_of_its_classes_and_no_others() -> None:
    task, tasks, way = one(batches(1)), 50, 2
    generator = streams.generator(0, "cut")
    keys = torch.rand(tasks, WAY, generator=generator), torch.rand(tasks, way, SHOT + QUERY, generator=generator)
    cuts = cut(task, *keys)
    assert cuts.support.x.shape == (tasks, way * SHOT, 4)
    assert cuts.query.x.shape == (tasks, way * QUERY, 4)
    x, y = (torch.cat(parts) for parts in zip(task.support, task.query, strict=True))
    chosen = keys[0].argsort(-1)
    for number in range(tasks):
        own = torch.cat([cuts.support.x[number], cuts.query.x[number]])
        labels = torch.cat([cuts.support.y[number], cuts.query.y[number]])
        for label in range(way):
            expected = x[y == chosen[number, label]]
            assert sorted(own[labels == label].tolist()) == sorted(expected.tolist())


@pytest.mark.usefixtures("float64")
def test_cut_whole_with_one_cut_the_loss_is_that_of_the_task_itself() -> None:
    model, task = model_of(), one(batches(1))
    whole, parts = small(), small(cuts=1, cut_way=WAY)
    meta = whole.init(model, streams.generator(0, "init"))
    z = torch.randn(3, WAY, 3, generator=streams.generator(0, "z"))
    in_order = torch.arange(SHOT + QUERY).double().expand(1, WAY, -1)
    keys = {"cut_classes": torch.arange(WAY).double().unsqueeze(0), "cut_examples": in_order}
    stage = Stage(torch.tensor(0), 1)
    expected, _ = whole.loss(meta, model, task, {"z": z}, stage)
    found, _ = parts.loss(meta, model, task, {"z": z.unsqueeze(0), **keys}, stage)
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("float64")
def test_a_latent_that_starts_at_means_has_cosines_with_them_as_logits() -> None:
    """With as many latents as embeddings have directions, the head sees all of an input."""
    method, model = small(embedding=0, start_at_means=True, latent=5, refinements=0), model_of()
    meta, tasks, *_ = problem(method, model)
    group = Batch(torch.randn(50, 4, generator=streams.generator(1, "group")), torch.zeros(50, dtype=torch.long))
    meta = method.fit(meta, model, [group], streams.generator(0, "fit"))
    rows = meta["head"]["rows"][:, :-1]
    torch.testing.assert_close(rows @ rows.mT, 0.25**2 * torch.eye(5))
    support, query, _ = one(tasks)
    decoder = method._decoder(model)
    first = decoder.first(meta, Batch(decoder.embed(meta, support.x), support.y))
    assert first is not None
    embedded = decoder.embed(meta, query.x)
    logits = decoder.outputs(meta, first.mean.unsqueeze(0), embedded)[0]
    means = torch.stack([decoder.embed(meta, support.x)[support.y == number].mean(0) for number in range(WAY)])
    centred, to = (part - part.mean(-1, keepdim=True) for part in (embedded, means))
    torch.testing.assert_close(
        logits, 10 * functional.normalize(centred) @ functional.normalize(to).T, atol=1e-2, rtol=0
    )


def test_the_prototypes_add_the_loss_of_protonet_in_the_same_embedding() -> None:
    model, task = model_of(), one(batches(1))
    alone, beside = small(), small(prototype_weight=0.5)
    meta = alone.init(model, streams.generator(0, "init"))
    noise, stage = {"z": torch.zeros(3, WAY, 3)}, Stage(torch.tensor(0), 1)
    embedding = classification(Mlp((4, 6, 5, 5, 1)), WAY)  # the network of the embedding, below a head that goes
    expected, _ = ProtoNet().loss({"embedding": meta["embedding"]}, embedding, task, {}, stage)
    more = beside.loss(meta, model, task, noise, stage)[0] - alone.loss(meta, model, task, noise, stage)[0]
    torch.testing.assert_close(more, 0.5 * expected)


def test_the_encoder_is_told_the_weight_of_the_kl() -> None:
    method, model, task = small(kl_weight=0.01, kl_weight_spread=10.0), model_of(), one(batches(1))
    meta = method.init(model, streams.generator(0, "init"))
    other = small(kl_weight=0.05, kl_weight_spread=10.0)
    found, changed = (given.adapt(meta, model, task.support, {})["latent"]["mean"] for given in (method, other))
    assert not torch.allclose(found, changed)
    noise = {"z": torch.zeros(3, WAY, 3)}
    stage = Stage(torch.tensor(0), 1)
    for uniform, weight in ((0.5, 0.01), (1.0, 0.1)):
        total, info = method.loss(meta, model, task, noise | {"kl_weight": torch.tensor(uniform)}, stage)
        assert float((total - info["loss"]) / info["kl"]) == pytest.approx(weight, rel=1e-4)


def test_an_evaluation_takes_any_weight_of_the_training_and_says_what_it_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Features(folder=str(write_blobs(tmp_path / "blobs")), way=WAY, query=4, softmax_temperature=1.0)
    told = small(kl_weight=0.01, kl_weight_spread=10.0)
    for method, name in ((told, "told"), (small(), "one")):
        experiment = Experiment(method, data, FeatureHeadOptions((6,)), Training(tasks=3), preset="test")
        run = start_run(tmp_path / name, experiment, resume=False)
        run.save(run.initial())
    found = {}
    for weight in (0.001, 0.1):
        main(["evaluate", str(tmp_path / "told"), "--tasks", "20", "--kl-weight", str(weight), "--json"])
        found[weight] = json.loads(capsys.readouterr().out)
        assert found[weight]["kl_weight"] == weight
    assert found[0.001]["kl"]["mean"] != found[0.1]["kl"]["mean"]
    for name, weight, known in (("told", 1.0, "from 0.001 to 0.1"), ("one", 0.1, "from 0.003 to 0.003")):
        assert main(["evaluate", str(tmp_path / name), "--kl-weight", str(weight)]) == 2
        assert known in capsys.readouterr().err


def test_options_that_do_not_fit_are_refused_in_one_line() -> None:
    with pytest.raises(FewsureError, match="`cuts`"):
        small(cuts=2).noise(regression(Mlp((1, 5, 1))), 5, 5)
    with pytest.raises(FewsureError, match="`kl_weight`"):
        small(kl_weight=0.0, kl_weight_spread=2.0)
