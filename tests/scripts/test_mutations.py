"""The mutations of `make prove` fit the source as it is."""

from __future__ import annotations

from pathlib import Path

from scripts.features import read_features
from scripts.prove import read_mutations

ROOT = Path(__file__).parents[2]


def test_every_mutation_names_a_feature_that_is_done_and_a_text_that_is_there_once():
    done = {feature.id for feature in read_features(ROOT) if feature.done}
    for key, mutation in read_mutations(ROOT).items():
        assert key in done
        source = (ROOT / mutation.file).read_text(encoding="utf-8")
        assert (key, source.count(mutation.find)) == (key, 1)
        assert mutation.replace != mutation.find
