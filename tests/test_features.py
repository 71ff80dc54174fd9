"""Feature extraction: the networks, the classifier that they are trained as, and the folder that comes of it."""

import dataclasses
import json
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from fewsure.cli.main import main
from fewsure.core.signals import Stopped
from fewsure.data.augmentation import crops, jittered, unit
from fewsure.data.episodes import Episodes
from fewsure.data.io.feature_files import load_features
from fewsure.data.pools import SPLITS, Pool, Split, pool_checksum
from fewsure.errors import Diverged, FewsureError
from fewsure.features import workflow
from fewsure.features.classifier import (
    NETWORKS,
    Recipe,
    Training,
    build_network,
    channel_statistics,
    hold_out,
    precision,
)
from fewsure.features.extract import extract, nearest_mean_accuracy
from fewsure.features.residual import ResNet12, WideResNet, initialise
from fewsure.features.workflow import load_network, make_features, work_folder
from fewsure.types import Task

CPU = torch.device("cpu")
TINY = Recipe(width=0.05, epochs=2, batch=32, held_out=0.1)
OPTIONS = ["--width", "0.05", "--epochs", "2", "--batch", "32", "--held-out", "0.1"]


def pool_of(images: torch.Tensor, counts: list[int], prefix: str) -> Pool:
    starts = torch.tensor([0, *counts]).cumsum(0)
    classes = tuple(f"{prefix}{number:02}" for number in range(len(counts)))
    return Pool(images, starts, classes, ("",) * len(counts), pool_checksum(images, starts, classes))


def textures(classes: int, each: int, seed: int, prefix: str, side: int = 16) -> Pool:
    """Classes of noisy images, each with a coarse pattern of its own."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.rand(classes, 3, 4, 4, generator=generator)
    large = torch.nn.functional.interpolate(patterns, (side, side)).repeat_interleave(each, 0)
    noisy = large + 0.25 * torch.randn(large.shape, generator=generator)
    return pool_of((255 * noisy.clamp(0, 1)).to(torch.uint8), [each] * classes, prefix)


@pytest.fixture(scope="module")
def pools() -> dict[Split, Pool]:
    return {
        "train": textures(8, 40, 0, "train"),
        "validation": textures(6, 20, 1, "validation"),
        "test": textures(5, 20, 2, "test"),
    }


@pytest.fixture(scope="module")
def made(pools: dict[Split, Pool], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "features"
    make_features(folder, "textures", pools, TINY, CPU)
    return folder


def contents(folder: Path, *names: str) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names or sorted(path.name for path in folder.iterdir())}


def count(network: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def test_resnet12_has_the_weights_that_its_description_implies() -> None:
    # Of each block: convolutions 3×3 (in→out, out→out, out→out) and 1×1 (in→out), and four norms with two numbers each.
    filters = [3, 64, 160, 320, 640]
    expected = sum(9 * (a * b + 2 * b * b) + a * b + 4 * 2 * b for a, b in pairwise(filters))
    with torch.device("meta"):
        assert count(ResNet12(channels=3)) == expected == 12_424_320


def test_wrn_28_10_has_the_weights_that_its_description_implies() -> None:
    # Of each group: a block in→out with a 1×1 shortcut, three blocks out→out; a norm before each 3×3 convolution.
    filters = [16, 160, 320, 640]
    first = sum(2 * a + 9 * a * b + 2 * b + 9 * b * b + a * b for a, b in pairwise(filters))
    others = sum(3 * (2 * 2 * b + 2 * 9 * b * b) for b in filters[1:])
    with torch.device("meta"):
        total = count(WideResNet(channels=3))
    assert total == 9 * 3 * 16 + first + others + 2 * 640 == 36_472_784  # the authors print 36.5 M


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 84, 84), (1, 28, 28)])
@pytest.mark.parametrize("name", ["resnet12", "wrn-28-10"])
def test_every_image_becomes_640_features(name: str, shape: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        network = build_network(Recipe(network=name), shape)
        assert network(torch.empty(2, *shape)).shape == (2, 640)


def test_a_block_equals_its_formula_written_out(float64: None) -> None:
    network = ResNet12(3, width=0.05).eval()
    initialise(network, torch.Generator().manual_seed(0))
    block = network.layers[0]  # type: ignore[index]
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    weights = dict(block.named_parameters())
    conv, scale = torch.nn.functional.conv2d, (1 + 1e-5) ** -0.5  # a norm that has seen nothing divides by √(1 + ε)

    def leaky(values: torch.Tensor) -> torch.Tensor:
        return torch.maximum(values, 0.1 * values)

    y = leaky(scale * conv(x, weights["main.0.weight"], padding=1))
    y = leaky(scale * conv(y, weights["main.3.weight"], padding=1))
    y = scale * conv(y, weights["main.6.weight"], padding=1) + scale * conv(x, weights["shortcut.0.weight"])
    expected = leaky(y).unflatten(2, (8, 2)).unflatten(4, (8, 2)).amax((3, 5))
    assert (block(x) - expected).abs().max() < 1e-12


def test_crops_equal_a_reflected_and_shifted_image() -> None:
    images = torch.randint(256, (6, 3, 9, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([4, 1, 1, 0]).repeat(50)
    padded = torch.nn.functional.pad(images.double(), (2, 2, 2, 2), mode="reflect").to(torch.uint8)
    cut = crops(images, rows, padding=2, flip=True, generator=torch.Generator().manual_seed(1))
    shifts, mirrored = set(), 0
    for row, crop in zip(rows.tolist(), cut, strict=True):
        options = {
            (down, across, flip): padded[row, :, down : down + 9, across : across + 7].flip(2 if flip else ())
            for down in range(5)
            for across in range(5)
            for flip in (False, True)
        }
        ((down, across, flip),) = [key for key, value in options.items() if torch.equal(value, crop)]
        shifts.add((down, across))
        mirrored += flip
    assert len(shifts) == 25
    assert 70 < mirrored < 130
    still = crops(images, rows, padding=0, flip=False, generator=torch.Generator())
    assert torch.equal(still, images[rows])


def test_unit_images_are_between_0_and_1() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert torch.allclose(unit(images.reshape(1, 3, 1, 1)).flatten(), torch.tensor([0, 0.2, 1]))
    assert images.tolist() == [0, 51, 255]  # the originals are as they were


def test_jitter_keeps_images_in_range_and_grey_images_grey() -> None:
    images = torch.rand(50, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    changed = jittered(images, 0.4, torch.Generator().manual_seed(1))
    assert float(changed.min()) >= 0
    assert float(changed.max()) <= 1
    assert (changed - images).abs().mean() > 0.05
    grey = images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    assert jittered(grey, 0.4, torch.Generator().manual_seed(1)).std(1).max() < 1e-6
    assert torch.allclose(jittered(images, 0.0, torch.Generator()), images, atol=1e-6)


def test_channels_are_standardised_by_the_training_images() -> None:
    images = torch.randint(256, (700, 3, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = channel_statistics(images, torch.arange(100, 700))
    expected = images[100:].double() / 255
    assert torch.allclose(mean.double(), expected.mean((0, 2, 3)), atol=1e-7)
    assert torch.allclose(std.double(), expected.std((0, 2, 3), correction=0), atol=1e-7)


def test_held_out_images_are_a_share_of_each_class_and_never_trained_on() -> None:
    pool = pool_of(torch.zeros(131, 1, 1, 1, dtype=torch.uint8), [100, 30, 1], "class")
    rows, held = hold_out(pool, 0.1, seed=0)
    assert sorted([*rows.tolist(), *held.tolist()]) == list(range(131))
    assert [int(((held >= a) & (held < b)).sum()) for a, b in ((0, 100), (100, 130), (130, 131))] == [10, 3, 0]
    assert not torch.equal(held, hold_out(pool, 0.1, seed=1)[1])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_narrow_network_learns_eight_classes(name: str, pools: dict[Split, Pool]) -> None:
    recipe = Recipe(network=name, width=0.5 if name == "conv4" else 0.05, epochs=6, batch=16, held_out=0.25)
    training = Training(pools["train"], recipe, CPU)
    before = training.held_out_accuracy()
    while training.update < training.updates:
        training.step()
    after = training.held_out_accuracy()
    assert before is not None
    assert after is not None
    assert training.held_out_images == 80
    assert before < 0.4
    assert after > 0.8  # chance: 0.125


def test_the_first_update_is_nesterov_sgd_with_weight_decay(pools: dict[Split, Pool]) -> None:
    """From rest, v = g + λ·w and w ← w − lr·(g' + μ·v) with g' = v: a step of lr·(1 + μ)·(g + λ·w)."""
    training = Training(pools["train"], Recipe(width=0.05, batch=32, lr=0.2, weight_decay=0.01), CPU)
    head = training.classifier[1].bias
    weight = training.classifier[1].weight
    old = weight.detach().clone(), head.detach().clone()
    training.step()
    assert weight.grad is not None
    assert head.grad is not None
    assert torch.allclose(weight, old[0] - 0.2 * 1.9 * (weight.grad + 0.01 * old[0]), atol=1e-6)
    assert torch.allclose(head, old[1] - 0.2 * 1.9 * head.grad, atol=1e-6)


def test_the_weights_depend_on_the_seed_alone(pools: dict[Split, Pool], made: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        make_features(tmp_path / str(seed), "textures", pools, dataclasses.replace(TINY, seed=seed), CPU)
    weights = [contents(folder, "network.safetensors") for folder in (made, tmp_path / "0", tmp_path / "1")]
    assert weights[0] == weights[1] != weights[2]


def test_features_do_not_depend_on_the_batch(made: Path, pools: dict[Split, Pool]) -> None:
    network = load_network(made)
    images = pools["test"].examples[:50]
    reference = extract(network, images, batch=50)
    assert reference.std(0).max() > 0.01
    for batch in (1, 7):
        assert torch.allclose(extract(network, images, batch=batch), reference, atol=1e-5)
    assert torch.allclose(extract(network, images.flip(0)).flip(0), reference, atol=1e-5)


def test_nearest_mean_equals_hand_computed_accuracies() -> None:
    # Two classes on the axes, told apart by their direction alone; lengths must not matter.
    lengths = torch.linspace(0.1, 10, 20)
    apart = torch.cat([torch.stack([lengths, 0 * lengths], 1), torch.stack([0 * lengths, lengths], 1)])
    pool = pool_of(apart, [20, 20], "class")
    expected = {"way": 2, "shot": 1, "query": 15, "tasks": 50, "accuracy": {"mean": 1.0, "ci95": 0.0}}
    assert nearest_mean_accuracy(pool, shot=1, tasks=50) == expected
    same = pool._replace(examples=torch.randn(400, 8, generator=torch.Generator().manual_seed(0)))
    chance = nearest_mean_accuracy(same._replace(starts=torch.tensor([0, 200, 400])), shot=5, tasks=400)
    assert chance is not None
    assert abs(chance["accuracy"]["mean"] - 0.5) < 0.03
    assert nearest_mean_accuracy(pool, shot=20, tasks=10) is None


def test_a_shift_between_support_and_query_sets_does_not_reach_centred_class_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.tensor([0.0, 0.2]).repeat_interleave(20)
    apart = pool_of(torch.stack([1 + 0 * x, x], 1), [20, 20], "class")
    sample = Episodes.sample

    def shifted(*arguments: Any, **options: Any) -> tuple[Task, Any]:
        task, facts = sample(*arguments, **options)
        return task._replace(query=task.query._replace(x=task.query.x + 10)), facts

    monkeypatch.setattr(Episodes, "sample", shifted)
    alone, centred = (nearest_mean_accuracy(apart, shot=1, tasks=20, centred=each) for each in (False, True))
    assert alone is not None
    assert centred is not None
    assert alone["accuracy"]["mean"] == 0.5  # all queries are nearest to the same mean
    assert centred["accuracy"]["mean"] == 1.0


def test_the_folder_holds_features_of_all_splits_and_says_how_they_were_made(
    made: Path, pools: dict[Split, Pool]
) -> None:
    splits = {f"{split}.npz" for split in SPLITS}
    assert {path.name for path in made.iterdir()} == splits | {"features.json", "network.safetensors", "metrics.jsonl"}
    assert not work_folder(made).exists()
    network = load_network(made)
    for split in SPLITS:
        stored = load_features(made, split)
        assert stored.classes == pools[split].classes
        assert torch.equal(stored.starts, pools[split].starts)
        assert stored.examples.shape == (len(pools[split].examples), 32)
        assert torch.equal(stored.examples, extract(network, pools[split].examples))
    record = json.loads((made / "features.json").read_text())
    assert record["command"] == "fewsure features --data textures --width 0.05 --epochs 2 --batch 32 --held-out 0.1"
    assert record["checksums"] == {split: pools[split].checksum for split in SPLITS}
    assert (record["device"], record["precision"], record["features"]) == ("cpu", precision(CPU), 32)
    assert record["classes"] == {"train": 8, "validation": 6, "test": 5}
    assert record["held_out"]["images"] == 32
    assert 0 <= record["held_out"]["accuracy"] <= 1
    one, five = record["nearest_mean"]
    assert (one["way"], one["shot"], five["shot"], one["tasks"]) == (5, 1, 5, 1000)
    assert 0.2 < one["accuracy"]["mean"] < five["accuracy"]["mean"] <= 1
    lines = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1.0, 2.0]
    assert lines[-1]["held_out_accuracy"] == record["held_out"]["accuracy"]


def test_validation_and_test_images_leave_the_weights_as_they_are(
    made: Path, pools: dict[Split, Pool], tmp_path: Path
) -> None:
    other: dict[Split, Pool] = {
        "train": pools["train"],
        "validation": textures(7, 21, 5, "new"),
        "test": textures(9, 22, 6, "other"),
    }
    make_features(tmp_path / "other", "textures", other, TINY, CPU)
    kept = ("network.safetensors", "train.npz")
    assert contents(tmp_path / "other", *kept) == contents(made, *kept)
    images = pools["train"].examples.clone()
    images[hold_out(pools["train"], TINY.held_out, TINY.seed)[0][0]] ^= 255
    other["train"] = pools["train"]._replace(examples=images)
    make_features(tmp_path / "changed", "textures", other, TINY, CPU)
    assert contents(tmp_path / "changed", *kept[:1]) != contents(made, *kept[:1])


class Killed(BaseException):
    """Stands for the end of the process."""


def interrupt(monkeypatch: pytest.MonkeyPatch, update: int, act: Callable[[], None]) -> None:
    step = Training.step

    def interrupted(training: Training) -> None:
        step(training)
        if training.update == update:
            act()

    monkeypatch.setattr(Training, "step", interrupted)


SAME = ("network.safetensors", *(f"{split}.npz" for split in SPLITS))
"""Files that hold no times."""


def losses(folder: Path) -> set[tuple[int, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {(line["update"], line["loss"]) for line in lines}


@pytest.mark.parametrize("update", [3, 9])  # in an epoch, at the end of one
def test_a_stopped_training_resumes_bit_for_bit(
    update: int, made: Path, pools: dict[Split, Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "features"
    with monkeypatch.context() as patch:
        interrupt(patch, update, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Stopped, match="holds a checkpoint") as stopped:
            make_features(out, "textures", pools, TINY, CPU)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert not out.exists()
    with pytest.raises(FewsureError, match="already holds features or their making; add --resume"):
        make_features(out, "textures", pools, TINY, CPU)
    make_features(out, "textures", pools, TINY, CPU, resume=True)
    assert contents(out, *SAME) == contents(made, *SAME)
    assert losses(made) <= losses(out)


@pytest.mark.parametrize("where", ["first update", "between checkpoints", "extraction", "publication"])
def test_a_killed_process_leaves_no_output_and_resumes_bit_for_bit(
    where: str, made: Path, pools: dict[Split, Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "features"

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if where == "first update":
            interrupt(patch, 1, kill)
        elif where == "between checkpoints":
            patch.setattr(workflow, "CHECKPOINT_EVERY", 0.0)
            interrupt(patch, 12, kill)
        elif where == "extraction":
            patch.setattr(workflow, "nearest_mean_accuracy", kill)
        else:
            patch.setattr(Path, "replace", lambda path, to: kill() if path.is_dir() else path.rename(to))
        with pytest.raises(Killed):
            make_features(out, "textures", pools, TINY, CPU)
    assert not out.exists()
    make_features(out, "textures", pools, TINY, CPU, resume=True)
    assert contents(out, *SAME) == contents(made, *SAME)
    assert not work_folder(out).exists()


def test_finished_features_are_left_as_they_are(made: Path, pools: dict[Split, Pool]) -> None:
    before = contents(made)
    record = make_features(made, "textures", pools, TINY, CPU, resume=True)
    assert record == json.loads(before["features.json"])
    with pytest.raises(FewsureError, match="already holds features"):
        make_features(made, "textures", pools, TINY, CPU)
    with pytest.raises(FewsureError, match=r"`epochs` is 2 in .*, but got 3"):
        make_features(made, "textures", pools, dataclasses.replace(TINY, epochs=3), CPU, resume=True)
    changed = pools | {"test": pools["test"]._replace(checksum="another")}
    with pytest.raises(FewsureError, match="`checksums` is"):
        make_features(made, "textures", changed, TINY, CPU, resume=True)
    assert contents(made) == before


def test_what_cannot_be_trained_leaves_nothing_behind(pools: dict[Split, Pool], tmp_path: Path) -> None:
    out = tmp_path / "features"
    features = pool_of(torch.zeros(20, 640), [10, 10], "class")
    small = textures(3, 20, 0, "small", side=8)
    tiny: dict[Split, Pool] = {split: small._replace(classes=(split, f"{split} b", f"{split} c")) for split in SPLITS}
    cases: list[tuple[dict[Split, Pool], Recipe, str]] = [
        (pools | {"train": features}, TINY, r"to hold images, but textures \(train\) holds torch.float32"),
        (pools | {"test": small}, TINY, "to have one shape, but got"),
        (
            pools | {"test": pools["train"]},
            TINY,
            "no class of textures in two splits, but train00 is in train and test",
        ),
        (tiny, TINY, "images of 16 pixels or more on each side, but got '8×8'"),
        (pools, Recipe(padding=16), "`padding` to be less than the image's 16 pixels, but got 16"),
    ]
    for given, recipe, message in cases:
        with pytest.raises(FewsureError, match=message):
            make_features(out, "textures", given, recipe, CPU)
        assert not list(tmp_path.iterdir())
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(FewsureError, match="a new or empty folder"):
            make_features(out, "textures", pools, TINY, CPU, resume=resume)
    assert contents(out) == {"notes.txt": b"mine"}
    assert not work_folder(out).exists()


def test_a_damaged_checkpoint_is_refused(
    pools: dict[Split, Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "features"
    with monkeypatch.context() as patch:
        interrupt(patch, 3, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Stopped):
            make_features(out, "textures", pools, TINY, CPU)
    path = work_folder(out) / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FewsureError, match=r"is damaged .* begin anew"):
        make_features(out, "textures", pools, TINY, CPU, resume=True)
    assert not out.exists()


def test_a_diverging_training_says_so(pools: dict[Split, Pool], tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="try a lower --lr"):
        make_features(tmp_path / "x", "textures", pools, Recipe(width=0.05, epochs=9, lr=1e30), CPU)
    assert not (tmp_path / "x").exists()


@pytest.fixture
def stored(pools: dict[Split, Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command finds the textures under the name of a data set."""
    monkeypatch.setattr("fewsure.cli.features.load", lambda data_set, split: pools[split])


@pytest.mark.usefixtures("stored")
def test_the_command_makes_features_and_resumes_with_the_options_it_was_started_with(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        interrupt(patch, 5, lambda: signal.raise_signal(signal.SIGTERM))
        assert main(["features", *OPTIONS, "--device", "cpu", "--out", "here"]) == 128 + signal.SIGTERM
    assert "holds a checkpoint" in capsys.readouterr().err
    assert main(["features", "--device", "cpu", "--out", "here", "--resume", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert json.loads(printed.out) == {"out": "here"} | json.loads((tmp_path / "here/features.json").read_text())
    assert contents(tmp_path / "here", "network.safetensors") == contents(made, "network.safetensors")
    assert main(["features", "--device", "cpu", "--out", "here", "--resume"]) == 0
    assert "5-way 1-shot: 0." in capsys.readouterr().out


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--network resnet21",
            "expected `network` to be one of resnet12, wrn-28-10, conv4, but got 'resnet21'; did you mean",
        ),
        ("--data mini-imagenet-leo", "expected `data` to be one of omniglot, cifar-fs"),
        ("--data sine-line", "expected `data` to be one of omniglot, cifar-fs"),
        ("--width 0", "expected `width` to be a number above 0"),
        ("--epochs 0", "expected `epochs` to be at least 1"),
        ("--batch 1", "expected `batch` to be at least 2 images"),
        ("--held-out 1", "expected `held_out` to be a share in [0, 1)"),
        ("--padding 20", "expected `padding` to be less than the image's 16 pixels"),
        ("--device abacus", "'abacus' cannot be used here"),
        ("--epoch 3", "did you mean --epochs?"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["features", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert not list(tmp_path.iterdir())
