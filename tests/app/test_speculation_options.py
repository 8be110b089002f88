"""Load options of speculation over HTTP: what reaches the engine, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from app.speculation import with_acceptance
from engine.checkpoint.drafting import OTHER_WEIGHTS
from engine.config import EffectiveSetting
from engine.core.speculation import ProposerStats
from tests.app.harness import MODEL, make_home, make_settings, serving


def test_load_options_of_speculation_reach_the_engine(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = make_home(tmp_path_factory.mktemp("options"))
    drafter = home / "drafters" / "mine"
    drafter.mkdir(parents=True)
    (drafter / "config.json").write_text('{"pizarra": {"kind": "medusa", "target": {"model_id": "other"}}}')
    (drafter / "model.safetensors").write_bytes(b"weights")
    with serving(make_settings(home)) as client:
        wishes: dict[str, Any] = {"speculation": "suffix", "num_speculative_tokens": 5, "speculation_rule": "rejection"}
        assert client.load(**wishes, drafter="mine")["state"] == "succeeded"
        line = client.logged("options ")
        for name, value in (*wishes.items(), ("drafter", str(drafter))):
            assert f"{name!r}: {value!r}" in line
        assert client.get("/api/engines").json()["engines"][0]["options"]["drafter"] == str(drafter)
        client.unload()
        for options, says in (
            ({"speculation": "oracle"}, "known are auto, off"),
            ({"num_speculative_tokens": 16}, "num_speculative_tokens=16: must lie between 1 and 15"),
            ({"speculation_rule": "typical"}, "known are match, rejection"),
            ({"drafter": "nobody"}, "known are mine"),
            ({"drafter": 5}, "drafter"),
        ):
            for call in ("load", "estimate"):
                response = client.post(f"/api/models/{MODEL}/{call}", json={"options": options})
                assert response.status_code == 400, response.text
                assert says in response.json()["detail"]
                assert response.json()["param"].startswith("options")


def test_the_warning_of_a_drafter_for_other_weights_says_how_many_of_its_tokens_were_accepted() -> None:
    plain = EffectiveSetting("dtype", "auto", "bfloat16", "faster")
    warning = EffectiveSetting("drafter", "/d", OTHER_WEIGHTS, "it was trained for other weights")
    suffix = ProposerStats("suffix", drafts_total=900, drafted_total=900, judged_per_position_total=[900])

    def told(*judged: int) -> list[EffectiveSetting]:
        eagle = ProposerStats("eagle", 60, 1200, 300, judged_per_position_total=list(judged))
        return with_acceptance([plain, warning], [suffix, eagle])

    assert told(60, 39) == [plain, warning]
    first, second = told(60, 40)
    assert first == plain
    measured = "of 1,200 tokens that it has drafted since the load 25.0% were accepted"
    assert second.reason == f"it was trained for other weights; {measured}"
    assert with_acceptance([plain, warning], []) == [plain, warning]
