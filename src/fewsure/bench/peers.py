"""The same work by others, on a CPU: plain programs written with care, and other libraries where they are installed.

Ours and theirs take turns, so that both meet the same machine. A ratio is that of two medians in one run.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewsure.algorithms.gp import Gp
from fewsure.bench.cases import KINDS, Case, headline_cases
from fewsure.bench.timing import WARM_UP, initial_meta, plain_updates, updates
from fewsure.core import streams
from fewsure.core.vectorise import for_each
from fewsure.networks.losses import regression
from fewsure.networks.mlp import Mlp
from fewsure.types import Batch

CPU = torch.device("cpu")
ROUNDS = 7
"""Turns of each, of which the median counts."""
IMAGES = {"conv4 28×28": 320, "conv4 84×84": 160}
"""The images of a plain batch."""
CONV_TASKS = 10
GROUPS, KNOWN, ASKED = 1000, 10, 10
"""Tasks, and the points of each, of a Gaussian process."""

Work = Callable[[], object]


class Peer(NamedTuple):
    """Two programs for the same work."""

    work: str
    theirs_name: str
    ours: Work
    theirs: Work
    passes: tuple[int, int] | None = None
    """Images that go forward and backward in a call of ours, and of theirs."""


def compare(peer: Peer, seconds: float) -> dict[str, Any]:
    """Both in turn, for about so many seconds each; how many times faster ours is."""
    times: dict[bool, list[float]] = {True: [], False: []}
    sizes = {ours: _calls(peer.ours if ours else peer.theirs, seconds / ROUNDS) for ours in times}
    for _ in range(ROUNDS):
        for ours, found in times.items():
            found.append(_seconds(peer.ours if ours else peer.theirs, sizes[ours]))
    our_time, their_time = (statistics.median(times[of]) for of in (True, False))
    rates = None if peer.passes is None else (peer.passes[0] / our_time, peer.passes[1] / their_time)
    ratio = their_time / our_time if rates is None else rates[0] / rates[1]
    row = {"work": peer.work, "peer": peer.theirs_name, "ratio": ratio}
    row |= {"ours_seconds": our_time, "peer_seconds": their_time}
    return row | ({} if rates is None else {"ours_images_per_second": rates[0], "peer_images_per_second": rates[1]})


def _calls(work: Work, seconds: float) -> int:
    work()
    return max(1, round(seconds / _seconds(work, 1)))


def _seconds(work: Work, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls


def peers() -> Iterator[tuple[str, Callable[[], Peer]]]:
    """(name, what sets it up) of every comparison that can be made here."""
    for kind in KINDS:
        if kind == "sine-line":
            yield "maml, sine-line ÷ loop over tasks", _small_networks
            if find_spec("gpytorch"):
                yield "gp ÷ gpytorch", _processes
        else:
            for norm in (torch.float32, torch.bfloat16):
                yield f"maml, {kind} ÷ plain loop", partial(_maml_loop, kind, norm)
            for method in ("protonet", "simpa-latent"):
                yield f"{method}, {kind} ÷ one plain batch", partial(_plain_batch, kind, method)
            if find_spec("easyfsl"):
                yield f"protonet, {kind} ÷ easyfsl", partial(_easyfsl, kind)


# Ours


def _case(method: str, kind: str, **training: Any) -> Case:
    case = next(case for case in headline_cases((kind,)) if case.method == method)
    case = case._replace(experiment=case.experiment.at_known_precision())
    return case.with_options("training", **training)


def _updates(case: Case) -> Work:
    make_update = _in_turn(updates(case, CPU))
    for _ in range(WARM_UP):
        make_update()
    return make_update


def _in_turn(make_update: Callable[[int], None]) -> Work:
    made = iter(range(10**9))
    return lambda: make_update(next(made))


def _sizes(case: Case) -> tuple[int, int]:
    return case.experiment.data.support_size, case.experiment.data.query_size


# Plain programs


def _small_networks() -> Peer:
    case = _case("maml", "sine-line")
    return Peer("maml, sine-line", "loop over tasks", _updates(case), _in_turn(plain_updates(case, CPU)))


def _conv4(weights: Sequence[Tensor], images: Tensor, dtype: torch.dtype) -> Tensor:
    maps = images.to(dtype, memory_format=torch.channels_last)
    for block in range(4):
        weight, bias = (value.to(dtype) for value in weights[2 * block : 2 * block + 2])
        maps = functional.conv2d(maps, weight, bias, padding=1)
        maps = functional.max_pool2d(functional.relu(functional.batch_norm(maps, None, None, training=True)), 2)
    return maps.float().flatten(1) @ weights[8] + weights[9]


def _maml_loop(kind: str, dtype: torch.dtype) -> Peer:
    """First-order MAML, task after task."""
    case = _case("maml", kind, tasks=CONV_TASKS)
    support, query = _sizes(case)
    method: Any = case.experiment.algorithm
    steps, lr = method.inner_steps, method.inner_lr
    tasks, _ = case.experiment.data.tasks("train", CPU).sample(CONV_TASKS, streams.generator(0, "peer"))
    start = [value.clone().requires_grad_() for value in initial_meta(case.experiment, CPU)["weights"].values()]
    optimiser = torch.optim.Adam(start, lr=1e-3, fused=True)

    def loss(weights: Sequence[Tensor], batch: Batch) -> Tensor:
        return functional.cross_entropy(_conv4(weights, batch.x, dtype), batch.y)

    def update() -> None:
        total = [torch.zeros_like(value) for value in start]
        for task in range(CONV_TASKS):
            one = [Batch(part.x[task], part.y[task]) for part in (tasks.support, tasks.query)]
            weights = [value.detach().requires_grad_() for value in start]
            for _ in range(steps):
                slopes = torch.autograd.grad(loss(weights, one[0]), weights)
                weights = [(w.detach() - lr * slope).requires_grad_() for w, slope in zip(weights, slopes, strict=True)]
            for whole, slope in zip(total, torch.autograd.grad(loss(weights, one[1]), weights), strict=True):
                whole += slope / CONV_TASKS
        for value, slope in zip(start, total, strict=True):
            value.grad = slope
        optimiser.step()

    passes = CONV_TASKS * (steps * support + query)
    name = f"plain loop over tasks, channels last, {str(dtype).removeprefix('torch.')}"
    return Peer(f"maml, {kind}, T = {CONV_TASKS}", name, _updates(case), update, (passes, passes))


def _plain_batch(kind: str, method: str) -> Peer:
    """Images of many tasks that share their weights, beside one batch of a classifier in bf16."""
    case = _case(method, kind, tasks=CONV_TASKS)
    shape = case.experiment.model.network.inputs
    weights = [
        value.clone().requires_grad_()
        for value in initial_meta(_case("maml", kind).experiment, CPU)["weights"].values()
    ]
    images, labels = torch.rand(IMAGES[kind], *shape), torch.randint(5, (IMAGES[kind],))

    def batch() -> None:
        torch.autograd.grad(functional.cross_entropy(_conv4(weights, images, torch.bfloat16), labels), weights)

    ours = CONV_TASKS * sum(_sizes(case))
    name = f"one batch of {IMAGES[kind]}, channels last, bfloat16"
    return Peer(f"{method}, {kind}, T = {CONV_TASKS}", name, _updates(case), batch, (ours, IMAGES[kind]))


# Other libraries


def _easyfsl(kind: str) -> Peer:
    """Its ProtoNet on the same episodes and the same network."""
    if "torchvision" not in sys.modules and not find_spec("torchvision"):  # it imports networks that are not used here
        resnet = ModuleType("torchvision.models.resnet")
        vars(resnet).update(BasicBlock=nn.Module, Bottleneck=nn.Module, conv1x1=None, conv3x3=None)
        for name in ("torchvision", "torchvision.models"):
            sys.modules[name] = ModuleType(name)
        sys.modules["torchvision.models.resnet"] = resnet
    from easyfsl.methods import PrototypicalNetworks

    case = _case("protonet", kind, tasks=CONV_TASKS)
    network: Any = case.experiment.model.network
    channels, filters = network.shape[0], network.filters
    blocks = [
        nn.Sequential(
            nn.Conv2d(channels if block == 0 else filters, filters, 3, padding=1),
            nn.BatchNorm2d(filters, affine=False, track_running_stats=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        for block in range(4)
    ]
    model = PrototypicalNetworks(nn.Sequential(*blocks, nn.Flatten()))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    tasks, _ = case.experiment.data.tasks("train", CPU).sample(CONV_TASKS, streams.generator(0, "peer"))

    def update() -> None:
        optimiser.zero_grad()
        for task in range(CONV_TASKS):
            model.process_support_set(tasks.support.x[task], tasks.support.y[task])
            loss = functional.cross_entropy(model(tasks.query.x[task]), tasks.query.y[task])
            (loss / CONV_TASKS).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    passes = CONV_TASKS * sum(_sizes(case))
    return Peer(f"protonet, {kind}, T = {CONV_TASKS}", "easyfsl", _updates(case), update, (passes, passes))


def _processes() -> Peer:
    """The posterior of many tasks at new points, by a constant mean, one kernel and noise that are given."""
    import gpytorch

    generator = streams.generator(0, "peer")
    x, y = (torch.randn(GROUPS, KNOWN, width, generator=generator) for width in (3, 1))
    new = torch.randn(GROUPS, ASKED, 3, generator=generator)
    method, model = Gp(kernels=("rbf",), ard=False, trend="constant"), regression(Mlp((3, 1)))
    meta = method.init(model, generator)

    def one(task: tuple[Tensor, Tensor, Tensor], meta: Any) -> tuple[Tensor, Tensor]:
        posterior = method.adapt(meta, model, Batch(task[0], task[1]), {})
        found = method.predictive(posterior, model, task[2], {})
        return found.means, found.stds

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y.squeeze(-1), likelihood)
            shape = torch.Size([GROUPS])
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
            self.covar_module = gpytorch.kernels.RBFKernel(batch_shape=shape)

        def forward(self, at: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(at), self.covar_module(at))

    def theirs() -> tuple[Tensor, Tensor]:
        likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=torch.Size([GROUPS])).eval()
        found = likelihood(Process(likelihood).eval()(new))
        return found.mean, found.stddev

    def without_gradients(work: Work) -> Work:
        def run() -> None:
            with torch.no_grad():
                work()

        return run

    ours = without_gradients(lambda: for_each(one)((x, y, new), meta))
    name = f"gp, {GROUPS:,} tasks of {KNOWN} known points"
    return Peer(name, "gpytorch, in one batch", ours, without_gradients(theirs))
