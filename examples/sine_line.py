"""The paper's regression: five noisy points of a sinusoid or a line, and how sure one can be of the rest.

    python examples/sine_line.py

Trains a small SImPa for less than a minute on random sinusoids and lines, scores it on 200 unseen ones, adapts it to
five points of a line and prints what it predicts: the mean, how far the sampled functions disagree, and an interval. A
minute is little; give it more `--updates`, or see what `fewsure quickstart` trains and draws.
"""

import argparse
from pathlib import Path

import numpy as np

import fewsure


def main() -> None:
    """Train, adapt to five points, and print what is predicted and how sure it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/sine-line"), help="a new folder for the run")
    parser.add_argument("--updates", type=int, default=400, help="meta-updates; more is better")
    options = parser.parse_args()

    small = {"hidden": (20, 20), "generator_hidden": (32, 64)}
    learner = fewsure.Learner("simpa", "sine-line", preset="quickstart", out=options.out, device="cpu", **small)
    learner.train(updates=options.updates)
    scores = learner.evaluate(tasks=200)
    print(f"200 unseen tasks: MSE {scores['mse']['mean']:.2f} ± {scores['mse']['ci95']:.2f}, ECE {scores['ece']:.3f}\n")

    x = np.array([-4.5, -3.5, -2.0, -1.0, 0.0])
    adapted = learner.adapt(x, 1 - 1.2 * x)
    at = np.linspace(-5, 5, 11)
    p = adapted.predict(at)
    print("five points of 1 − 1.2 x, from −4.5 to 0:\n")
    columns = (at, 1 - 1.2 * at, p.mean, p.function_std, p.quantile(0.05), p.quantile(0.95))
    print("   x   true  predicted  spread of functions  90 % interval of a label")
    for x_value, true, mean, spread, low, high in zip(*columns, strict=True):
        print(
            f"{x_value:4.0f}  {true:5.2f}      {mean:5.2f}                 {spread:4.2f}     {low:5.2f} to {high:5.2f}"
        )
    print(f"\nnoise on the labels: {p.noise_std}")
    print(f"The run is in {learner.folder}.")


if __name__ == "__main__":
    main()
