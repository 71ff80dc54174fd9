"""Write exploration.md and its figure from exploration.json: what was tried before the tuning trials.

python notebook/exploration_page.py
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fewsure.core.files import write_atomically
from fewsure.report.drawing import QUIET, WIDTH, figure_png, tidy
from fewsure.report.styles import ALGORITHM_COLOURS, display_name

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
SCORES = {
    "mse": ("MSE", ".3f"),
    "accuracy": ("accuracy", ".3f"),
    "ece": ("ECE", ".4f"),
    "mce": ("MCE", ".4f"),
    "nll": ("NLL", ".3f"),
    "loss": ("training loss", ".3f"),
    "least": ("its best generator's", ".3f"),
    "most": ("its worst", ".3f"),
    "std": ("std of weights", ".3f"),
    "one": ("accuracy of one network", ".3f"),
    "size": ("size of weights", ".2f"),
    "spread": ("spread", ".2f"),
    "saturated": ("saturated", ".1%"),
}
"""Each with its name and format."""
STAGES = {
    "search": (
        "Search",
        "1,500 updates from scratch, one seed, 500 validation tasks. One or two options differ from the base of the"
        " search: {base}. For other methods all options that differ from their defaults are named. `prior` was an"
        " option then: `centred` is N(mean of the generator's weights before adaptation, σ_w² I), `meta` has their"
        " variances too. Neither helped, and both are gone.",
    ),
    "full length": (
        "Full length",
        "5,000 updates, 1,000 validation tasks: late clipping branched off the same training.",
    ),
    "from a trained run": (
        "From a trained run",
        "A few updates of 10 tasks, at a learning rate of up to 1e-3, from a run of 5,000 updates without clipping (its"
        " own figures are those of 0 updates); clipping in the upper level alone, inner_clip_norm = 100 unless named.",
    ),
    "clipping for longer": (
        "Clipping for longer",
        "5,000 updates from scratch, one seed, 1,000 validation tasks; `hard` clipping in the upper level from an"
        " earlier share of the training on, with 20 inner steps at inner_lr = 0.0005. The wider posterior of the last"
        " table does not last: trained for longer, it is narrow again and the error larger. Clipping late was given up,"
        " and its options are gone: `clip_from` (a share of the training) and `clip_lower`.",
    ),
    "weight noise": (
        "Weight noise",
        "1,200 updates of 10 tasks from scratch, one seed, on a CPU, 500 validation tasks; else the base of the search."
        " Without noise the KL falls to tens of nats in long training while the functions stay close together: it seems"
        " that the generator spreads weights in directions that no prediction depends on. Noise on every weight cannot"
        " be hidden there. It lowers ECE, MCE and NLL at no cost in MSE, and makes the KL finite; `semi-implicit` is"
        " an upper bound on it.",
    ),
    "SImPa-latent, refinements": (
        "SImPa-latent: refinements",
        "1,000 updates of the recommended preset of sine-line, one seed, one CPU core, 1,000 validation tasks. A"
        " refinement is a learned step of the latent from what the network of its mean misses.",
    ),
    "Omniglot, small": (
        "Omniglot, small",
        "5-way 1-shot, conv4 with 16 filters, 3,000 updates of 5 tasks with 5 query images per class, one seed, on a"
        " CPU, 100 validation tasks; SImPa with a generator of 64 → 128 → 256. Unscaled, SImPa was behind MAML and"
        " several samples of w per step (`train_samples`) seemed to be what it lacked. It was the generator's scale:"
        " see the next table. `start` is where the generator begins: `network` has the base network's own first weights"
        " in its last bias, `near` a smaller spread too. Neither helped here, with an unscaled generator; on features"
        " something like `near` does (`initial_weights`, last table).",
    ),
    "Omniglot": (
        "Omniglot: the scale of the generator",
        "5-way 1-shot, the full conv4 and generator, 4,000 updates of 20 tasks, one seed, one H200, 600 validation"
        " tasks. Without `scaled_generator` a step of Adam moves each weight that the generator makes by the sum of its"
        " last hidden units, which grow. The weights become large, tanh saturates, and what an `inner_lr`"
        " does changes as training goes on. The spread of the generated weights is small beside their mean (`spread`:"
        " its ratio to it), so that 32 networks predict as one does. The row with the scaled generator is the best"
        " trial of the first results, on 500 tasks.",
    ),
    "Omniglot, first": (
        "Omniglot: the first results",
        "5-way 1-shot, the full conv4, tasks of 20, one seed, one H200; 20,000 updates on training and validation"
        " classes with the best of four trials of 4,000 updates, without a temperature; SImPa with one scaled generator"
        " of 128 → 256 → 512. SImPa and MAML were equally accurate, and BMAML's five particles three quarters of a"
        " point ahead. The figures were seen: the [results](../docs/results/omniglot.md) have other test tasks, and what the tables"
        " below found.",
    ),
    "Omniglot, mixtures": (
        "Omniglot, small: mixtures",
        "As in the table of Omniglot, small, on 304 validation tasks, with a scaled generator of 16 → 32 → 32 around"
        " the network's own weights. Three generators are two points more accurate than one, with a lower NLL, and far"
        " from sure enough of it. A temperature of each network, learned from 1,000 validation tasks, takes away a"
        " part of that; one of their mixture (`temperature_of`) nearly all, with a lower NLL (both scored on other"
        " validation tasks). These rows came after the first results, which have one generator of 128 → 256 → 512.",
    ),
    "Omniglot, options": (
        "Omniglot, small: the noise that weights begin with, shifts and step sizes",
        "As in the last table. With noise on their first weights that is smaller than these, ABML, PLATIPUS and VAMPIRE"
        " are within two points of MAML, ABML within one if its hyper-prior counts as little as its KL"
        " (`hyper_prior_tasks`, here the tasks of a training over `kl_weight`). Training images that are shifted"
        " (`train_shift`) gain nothing in so short a training.",
    ),
    "Omniglot, longer": (
        "Omniglot, small: the prior on the generator's weights",
        "As in the last tables with one generator, but 10,000 updates. R₀, the price of θ in the bound, is a weight"
        " decay: with a prior of σ_θ = 1 the training loss stays above what it is with σ_θ = 10, and unseen classes"
        " are told apart about as well. In the next table's long training it may be what holds SImPa's loss up; the"
        " table after that has it as high without.",
    ),
    "Omniglot, tempered": (
        "Omniglot: five generators, and a temperature",
        "5-way 1-shot, the full conv4, tasks of 20, one seed, one H200 that several trainings shared; of each method"
        " the best of three trials of `fewsure reproduce omniglot`, which are not its trials today, of 4,000 updates on"
        " 500 validation tasks, and 20,000 updates on training and validation classes with its options and its"
        " temperature, on test classes, whose figures were seen: they were meant as a round of results. It is"
        " none, since SImPa's ECE is above what it was with one generator in the first results. Two things went wrong."
        " SImPa's training loss at the end is no lower than after a training of a fifth, where other methods' has"
        " halved: see the next two tables. And a temperature that another, shorter training has learned fits one"
        " network, but not a mixture, whose parts come to disagree more. ABML's standard deviation grows from 0.003 to"
        " 0.18 in the long training: its hyper-prior, which 1,000 tasks share, pulls harder than the loss of 400,000.",
    ),
    "Omniglot, short": (
        "Omniglot: the same with 4,000 updates, and a temperature of the mixture",
        "As in the last table, but with trials and full trainings of the same 4,000 updates, σ_θ = 10, an ABML whose"
        " hyper-prior counts as little as its KL, a temperature that is the mixture's (`temperature_of`), and other"
        " test tasks. It was meant as a round of results, too, and is none. SImPa has the lowest NLL on validation"
        " classes, and is the most accurate on both, but its ECE on test classes is above 0.01, and all methods but"
        " ABML are behind the last table, which has five times the updates. The other methods' ECE is below 0.005: a"
        " temperature does for a training as long as the one that it was learned of. SImPa's training loss stops"
        " falling in the middle of the full training, and ends at nearly twice that of the trial with the same"
        " options. It did so again in a second run of it, and not with another seed (the rows without scores), and"
        " with twice the learning rate a trial's ends higher, too. So 2e-3 seems to be near the highest that five such"
        " generators bear, and R₀, which hardly counts here, not the reason. ABML's standard deviation stays where it"
        " began. Generators without hidden layers have twice the training loss and a higher NLL.",
    ),
    "Omniglot, steps": (
        "Omniglot: five generators and the step in a task",
        "The trials of the [results](../docs/results/omniglot.md): as in the last table, but 8,000 updates with a learning rate of"
        " 1e-3; beside the training loss, which is the mean of the five generators', that of the best and of the worst"
        " of them. With the smallest step four of them end at more than twice the loss of the fifth, which is where all"
        " five are with a larger step. So it is not the learning rate alone that holds generators back.",
    ),
    "Omniglot, five": (
        "Omniglot, small: five networks of SImPa and of BMAML",
        "As in the table of mixtures on a small Omniglot, with the temperature of the mixture, learned from 1,000"
        " validation tasks. Five generators are more accurate than BMAML's five particles, with either of its steps, at"
        " a lower NLL and ECE. A generator without hidden layers keeps its spread, and is no better for it.",
    ),
    "CIFAR-FS": (
        "CIFAR-FS: smaller steps in a task",
        "5-way 1-shot, one seed, one H200, training images as they are. Where `tasks` is not named: 500 or 1,000"
        " validation tasks. The two rows on test classes were meant as results and are shown for honesty; no option is"
        " chosen by them. With smaller steps MAML became better and SImPa worse, at the same training loss: SImPa,"
        " whose generator started at its own weights, fitted the training classes more closely than unseen ones.",
    ),
    "photographs": (
        "CIFAR-FS: images that are shifted and mirrored, where a generator starts, and mixtures",
        "5-way 1-shot unless named, one seed, one H200 that several trainings shared, 1,000 validation tasks; on top"
        " of a scaled generator of 128 → 256 → 512. Rows on test classes are earlier rounds of the results, whose"
        " figures were seen: what changed after the first is all in this table, after the second only the learned"
        " temperature was added, after the third its dependence on the task (measured on validation classes alone,"
        " [here](task-temperature.md)) and more updates, after the fourth it was learned from 1,000 tasks instead of"
        " 200; the test tasks are others each time. Rows with more noise are the first results of methods whose"
        " weights began with too much of it (0.05, PLATIPUS 0.1: see the next table), with one shot on the same test"
        " tasks as the results. Images that are shifted by up to 2 pixels and mirrored narrow the gap between"
        " training and unseen classes, for MAML and SImPa alike. A generator that starts around the base network's"
        " weights makes SImPa MAML's equal, and a small one does: without a KL its spread goes to zero, and 32"
        " samples are one network. Noise on the weights costs more than 32 samples give back, down to the smallest"
        " tried. A mixture of three generators, which adapt each by itself, is more accurate than MAML and not sure"
        " enough of it: hence the temperature that validation tasks choose.",
    ),
    "photographs, small": (
        "CIFAR-FS: the noise that weights begin with",
        "5-way 1-shot, 1,000 updates of 4 tasks with 5 query images per class, learning rate 2e-3, one seed, on a CPU,"
        " 96 validation tasks with 5 query images per class, no temperature. Weights of conv4's layers begin with a"
        " standard deviation of 0.03; ABML and VAMPIRE add noise of 0.05 to them unless `initial_std` says otherwise,"
        " PLATIPUS of 0.1. VAMPIRE has then hardly learned anything by the time that, with a fifth of the noise or"
        " less, all three are where MAML is. Of the [results](../docs/results/cifar-fs.md), VAMPIRE's with one shot are from"
        " before this was known.",
    ),
    "own images": (
        "Images of one's own",
        "The 355 characters of Omniglot's first 12 alphabets as a folder of images (`--data images`), 28×28, 5-way"
        " 1-shot, 16 filters, instance norm, 1,500 updates of 4 tasks with 5 query images per class, one seed, on a"
        " CPU, 304 validation tasks. The data are what `benchmarks/own_classes.py` writes. The preset's first"
        " generator was neither scaled nor around the network's own weights. Three generators are more accurate"
        " still, and far from sure enough of it; a temperature of each network that is learned from validation tasks"
        " (`softmax_temperature = None`) takes away a part of that, one of their mixture (`temperature_of`) nearly all,"
        " with a lower NLL.",
    ),
    "own rows": (
        "Rows of one's own",
        "The same images as a table of 10×10 mean intensities (`--data table-classes`), 5-way 1-shot, an MLP of 40–40,"
        " 3,000 updates of 8 tasks, one seed, on a CPU, 1,008 validation tasks. As in the last table; without a norm"
        " the first preset's generator was far behind MAML. Several generators gain nothing here.",
    ),
    "features": (
        "Features of CIFAR-FS",
        "5-way 1-shot on the 640 features of a ResNet-12 (`fewsure features --data cifar-fs --epochs 30`), head 128–32,"
        " one seed, on a CPU, 300 validation tasks; first order unless named. What is trained for long fits the"
        " training classes: the features were learned on them, so they lie further apart than new ones. `train_mixing`"
        " makes training tasks harder, `length` takes the mean of the training classes off and scales what is left;"
        " `scaled to length` is without the mean taken off. SImPa with a generator of 32 → 64 → 128,"
        " where it starts around the weights of the base network (`initial_weights`) of 16 → 32 → 32. The features'"
        " own record has the accuracy of the nearest class mean on validation tasks, which no head reaches here with"
        " five shots (see the next table).",
    ),
    "features, five shots": (
        "Features: five shots, and tiny-tiered",
        "As in the last table, but second order, length 8 unless named, 300 validation tasks on a CPU,"
        " or 1,000 on an H200. The nearest class mean on validation tasks is in the features' own records. More steps"
        " in a task and more mixing help; a mixture of two is better than one of its networks. On tiny-tiered, whose"
        " features fit their training classes more closely, SImPa learns these too fast: with a smaller learning rate"
        " it is MAML's equal. That is a fifth trial of each method, added after a first round on test tasks (its row is"
        " here; the result's tasks are others).",
    ),
    "features, tempered": (
        "Features: with a temperature that is learned",
        "As in the last table, on top of the recommended presets, 1,000 validation tasks, one H200 that many trainings"
        " shared; scored with a temperature learned from validation tasks (its value is in the row). Rows on test"
        " classes are earlier results whose figures were seen; of these, those with one shot had no temperature, and"
        " the tasks of the results are others now. A mixture of two is better than one generator with"
        " one shot, too, and four hardly better than two. With five shots more steps,"
        " tasks with fewer examples in training (`train_shot`), stronger mixing and more generators change little; a"
        " learning rate of 1e-3 is too high on tiny-tiered.",
    ),
    "features, centred": (
        "Features: each set without its mean",
        "As in the last table; scored with a temperature that depends on the task. Where its head sees each set without"
        " its mean (`centred`, transductive), SImPa is about one to two points more accurate than with the same options"
        " in the last table; ProtoNet hardly changes. With five shots fewer updates do for SImPa, and four generators"
        " with 15 steps are a little better than two with 10. Rows on test classes are the last"
        " results of heads that predict each query alone, whose figures were seen: the tasks of the results are others"
        " now.",
    ),
}


def main() -> None:
    """Write the page and the figure."""
    found = _read(HERE, "exploration")
    base = ", ".join(f"{name} = {value}" for name, value in found["base of the search"].items())
    lines = [
        "# What was tried",
        "",
        "Made by `python notebook/exploration_page.py` from `exploration.json`; edit neither by hand. All on",
        "validation tasks unless a row says otherwise, before the tuning trials of each method that the",
        "[results](../docs/results/sine-line.md) list.",
        "",
        "![MSE against ECE of what was tried, of the final runs and of the exact posterior](figures/exploration.png)",
    ]
    for stage, (title, text) in STAGES.items():
        runs = [run for run in found["runs"] if run["stage"] == stage]
        runs.sort(key=lambda run: float(run.get("nll" if "mse" not in run else "ece", "inf")))
        lines += ["", f"## {title}", "", text.format(base=base), ""]
        scores = [score for score in SCORES if any(score in run for run in runs)]
        headers = ["method", "changed", "updates", *(SCORES[score][0] for score in scores)]
        lines += [f"| {' | '.join(headers)} |", f"| {' | '.join(['---'] * len(headers))} |"]
        lines += [_line(run, scores) for run in runs]
    write_atomically(HERE / "exploration.md", "\n".join([*lines, ""]))
    write_atomically(HERE / "figures" / "exploration.png", figure_png(_figure(found["runs"])))


def _line(run: dict[str, Any], scores: list[str]) -> str:
    changed = ", ".join(f"{name} = {value}" for name, value in run["changed"].items()) or "–"
    figures = " | ".join(f"{run[score]:{SCORES[score][1]}}" if score in run else "–" for score in scores)
    return f"| {display_name(run['method'])} | {changed} | {run['updates']:,} | {figures} |"


def _figure(runs: list[dict[str, Any]]) -> Figure:
    """Rings: what was tried; dots: the final runs on test tasks; a star: the exact posterior."""
    figure = Figure(figsize=(WIDTH * 0.75, 5.5), layout="constrained")
    axes = figure.subplots()
    for run in (run for run in runs if "mse" in run and run["method"] in ALGORITHM_COLOURS):
        colour = ALGORITHM_COLOURS[run["method"]]
        axes.plot(run["mse"], run["ece"], "o", markerfacecolor="none", color=colour, markersize=5)
    named: set[str] = set()
    for row in _read(RESULTS, "regression"):
        name = row["algorithm"]
        label = display_name(name) if name not in named else None
        named.add(name)
        axes.plot(row["mse"]["mean"], row["ece"], "o", color=ALGORITHM_COLOURS[name], markersize=9, label=label)
    exact = _read(RESULTS, "exact_posterior")
    axes.plot(exact["mse"]["mean"], exact["ece"], "*", color="black", markersize=14, label="exact posterior")
    axes.axhline(exact["ece"], color=QUIET, linestyle="--", linewidth=1)
    axes.set(xlim=(0, 6), ylim=(0, 0.3), xlabel="mean squared error", ylabel="ECE")
    axes.set_title("Rings: tried, on validation tasks. Dots: final runs, on test tasks")
    axes.legend(frameon=False)
    tidy(axes)
    return figure


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
