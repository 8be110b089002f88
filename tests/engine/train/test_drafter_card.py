"""The card of the drafter that comes with Pizarra: it says what its config.json says, all of its training included."""

from __future__ import annotations

import json

from engine.checkpoint.drafter_files import SHIPPED
from engine.train.drafter_export import Provenance, _facts, _table

FOLDER = SHIPPED / "smollm2-135m-instruct"


def test_the_shipped_card_says_what_the_configuration_says() -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    own, card = config["pizarra"], (FOLDER / "README.md").read_text()
    target = own["target"]["model_id"], own["target"]["fingerprint"]
    made = Provenance(own["kind"], *target, tuple(own["feature_layers"]), own["training"], own["acceptance"])
    facts = [line for line in _facts(config, made, "apache-2.0") if not line.startswith("- Date: ")]
    assert "\n".join(facts) in card
    assert "\n".join(_table(own["acceptance"])) in card


def test_the_shipped_card_counts_the_training_of_the_drafter_that_it_was_begun_from() -> None:
    training = json.loads((FOLDER / "config.json").read_text())["pizarra"]["training"]
    earlier = training["predecessor"]
    assert [
        (one["seed"], one["learned_positions"], one["text_tokens"], one["seconds"]) for one in (training, earlier)
    ] == [
        (7, 1_100_311, 661_477, 2288),
        (6, 1_525_675, 324_331, 4429),
    ]
    assert earlier["begun_from"] == ""
