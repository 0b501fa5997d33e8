"""Fit the weights of the token estimator, test them on separate texts, and write both down.

    python scripts/fit_estimator.py [--tree FOLDER ...] [--check]

Needs numpy and splintr-rs. Reads the standard library and the installed packages of `estimator_corpus`; the
committed weights were made with all of them:

    pip install numpy splintr-rs msgspec Django sphinx botocore rich wordfreq chatterbot-corpus pyjokes (--no-deps for
    wordfreq and chatterbot-corpus) and jupyterlab-language-pack-{fr-FR,ja-JP,ko-KR,ru-RU,zh-CN,zh-TW}
    --tree: the tests of pygments' source distribution (programs in 200 languages)

The relative error per text is minimised, and every kind of text counts equally: each text is one equation
"weights · pairs / tokens = 1", kinds are balanced, and absolute errors are minimised by reweighting.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from importlib import metadata
from itertools import chain
from pathlib import Path

import numpy as np
import splintr
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from refold.tokens.counters import ASCII_CLASSES, CLASSES, FittedCounter, class_pairs, pair_code  # noqa: E402
from scripts.estimator_corpus import PACKAGES, Sample, installed_packages, standard_library, tree, word_salad  # noqa: E402

TARGET = ROOT / "src/refold/tokens/data/estimator.json"
PER_KIND = 3_000
"""Texts per kind: more do not lower the test error."""
RIDGE = 1e-7
"""Just enough to decide for pairs that no text has, or that always occur together: they keep the assumed
value.
"""
ASSUMED = 0.6
"""Assumed tokens of a pair outside ASCII that no text has. A character of a script without words in the
vocabulary is about two tokens, of three bytes; an assumption of zero would hide it.
"""
IMPORTANCE = {"languages": 2.0, "cjk": 2.0, "chat": 2.0, "prose": 2.0, "more languages": 0.5, "hashes": 0.5}
"""Weight of a kind, relative to code with 1: many languages share a kind, and bare hashes are rare."""
FULL_WEIGHT_TOKENS = 60
"""Shorter texts have less weight: a difference of one token is noise there."""

Numbers = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, action="append", default=[], help="one more folder of text")
    parser.add_argument("--check", action="store_true", help="only judge the committed weights")
    options = parser.parse_args()
    samples = balanced(
        chain(standard_library(), installed_packages(), word_salad(), *map(tree, options.tree))
    )
    truth = tokens_of(samples)
    if not options.check:
        TARGET.write_text(render(fit(samples, truth), report={}))
    report = judge(
        samples, truth, {"chars/4": lambda text: max(1, len(text) // 4), "fitted": FittedCounter().count}
    )
    if not options.check:
        TARGET.write_text(
            render(json.loads(TARGET.read_text())["weights"], report | {"texts_from": versions()})
        )
    print_table(report)


def balanced(samples: Iterable[Sample]) -> list[Sample]:
    """At most `PER_KIND` texts of a kind on each side, drawn in the same way every time."""
    by_kind = defaultdict(list)
    for sample in samples:
        by_kind[sample.kind, sample.held_back].append(sample)
    for group in by_kind.values():
        random.Random(0).shuffle(group)
    return [sample for key in sorted(by_kind) for sample in by_kind[key][:PER_KIND]]


def tokens_of(samples: list[Sample]) -> Numbers:
    tokenizer = splintr.Tokenizer.from_pretrained("o200k_base")
    return np.array([len(tokenizer.encode_ordinary(sample.text)) for sample in samples], float)


def fit(samples: list[Sample], truth: Numbers) -> list[list[float]]:
    chosen = [number for number, sample in enumerate(samples) if not sample.held_back]
    goal = truth[chosen]
    shares = histogram([samples[number] for number in chosen]) / goal[:, None]
    kinds = [samples[number].kind for number in chosen]
    sizes = Counter(kinds)
    importance = np.array([(IMPORTANCE.get(kind, 1.0) / sizes[kind]) ** 0.5 for kind in kinds])
    importance *= np.minimum(1, goal / FULL_WEIGHT_TOKENS) ** 0.5 / importance.mean()
    weights = least_absolute(shares, importance)
    return [[round(weight, 4) for weight in row] for row in weights.reshape(CLASSES, CLASSES).tolist()]


def histogram(samples: list[Sample]) -> Numbers:
    place = {
        pair_code(first, second): first * CLASSES + second
        for first in range(CLASSES)
        for second in range(CLASSES)
    }
    counts = np.zeros((len(samples), CLASSES * CLASSES))
    for row, sample in enumerate(samples):
        for code, number in Counter(chain(*class_pairs(sample.text))).items():
            counts[row, place[code]] = number
    return counts


def least_absolute(shares: Numbers, importance: Numbers) -> Numbers:
    """Least absolute deviations as a few rounds of reweighted least squares."""
    weights, trust = np.zeros(shares.shape[1]), np.ones(len(shares))
    for _ in range(4):
        scale = importance * trust
        weights = non_negative(shares * scale[:, None], scale)
        trust = np.maximum(np.abs(shares @ weights - 1), 0.01) ** -0.5
        trust /= trust.mean()
    return weights


def non_negative(matrix: Numbers, goal: Numbers, rounds: int = 400) -> Numbers:
    """Non-negative least squares by coordinate descent: no text can ever be estimated below zero."""
    gram = matrix.T @ matrix + RIDGE * len(matrix) * np.eye(matrix.shape[1])
    weights = np.zeros(matrix.shape[1])
    gradient = -(matrix.T @ goal + RIDGE * len(matrix) * assumed())
    for _ in range(rounds):
        largest = 0.0
        for at in range(len(weights)):
            step = max(0.0, weights[at] - gradient[at] / gram[at, at]) - weights[at]
            if step:
                gradient += step * gram[:, at]
                weights[at] += step
                largest = max(largest, abs(step))
        if largest < 1e-5:
            break
    return weights


def assumed() -> Numbers:
    weights = np.full((CLASSES, CLASSES), ASSUMED)
    weights[:ASCII_CLASSES, :ASCII_CLASSES] = 0
    return weights.ravel()


def judge(
    samples: list[Sample], truth: Numbers, counters: dict[str, Callable[[str], int]]
) -> dict[str, dict[str, float]]:
    """Mean absolute relative error in percent per kind and counter, on the test texts."""
    held = [number for number, sample in enumerate(samples) if sample.held_back]
    report: dict[str, dict[str, float]] = {}
    for name, count in counters.items():
        errors = defaultdict(list)
        for number in held:
            error = 100 * abs(count(samples[number].text) / truth[number] - 1)
            errors[samples[number].kind].append(error)
            errors["all texts"].append(error)
        report[name] = {kind: round(float(np.mean(errors[kind])), 2) for kind in sorted(errors)}
        report["texts"] = {kind: len(errors[kind]) for kind in sorted(errors)}
    return report


def versions() -> dict[str, str]:
    names = [*PACKAGES, "wordfreq"]
    return {"python": sys.version.split()[0]} | {
        name: metadata.version(name) for name in names if any(metadata.distributions(name=name))
    }


def render(weights: list[list[float]], report: dict[str, object]) -> str:
    rows = ",\n".join(json.dumps([weight or 0 for weight in row], separators=(",", ":")) for row in weights)
    return f'{{"report": {json.dumps(report, indent=1)},\n"weights": [\n{rows}\n]}}\n'


def print_table(report: dict[str, dict[str, float]]) -> None:
    print(f"{'held back':<16}{'texts':>8}{'chars/4':>10}{'fitted':>10}")
    for kind, number in report["texts"].items():
        print(f"{kind:<16}{number:>8}{report['chars/4'][kind]:>9}%{report['fitted'][kind]:>9}%")


if __name__ == "__main__":
    main()
