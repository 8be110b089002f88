"""What the server says in codes the dashboard says in words: each code of the server's lists has its text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import pytest

from app import benchmarks, engine_verdict, races, selftests, verdict_advice
from app.alert_metrics import METRICS, Severity
from app.model_jobs import QUANTIZE, TRAIN_DRAFTER
from app.race import STAGES
from app.receipts import Cause
from app.request_schemas import PhasePart
from app.request_timeline import STOP_CAUSES
from app.routes.requests import Source
from app.speculation_schemas import VerdictState
from db.retention import RETENTION
from ui.i18n import texts

KINDS = ("pull", "load", "unload", QUANTIZE, TRAIN_DRAFTER, benchmarks.JOB, races.JOB, selftests.JOB)
FAILURES = ("does_not_fit", "bad_checkpoint", "unsupported", "bad_options", "out_of_memory", "internal", "died")
EVENTS = ("load", "unload", "engine_failed", "speculation", "alert", "webhook", "abort", selftests.JOB)
REASONS = (*engine_verdict._UNKNOWN, "not_ready", "failed", "not_loaded", "switched_off", "drafter_off")
ADVICE = (*verdict_advice._FIRST.values(), *verdict_advice._REMEDIES.values(), *engine_verdict._ADVICE.values())
CAUSES = get_args(Cause)

FAMILIES: dict[str, Iterable[str]] = {
    "alert_metric_{}": METRICS,
    "alert_means_{}": METRICS,
    "alert_severity_{}": get_args(Severity),
    "job_{}": KINDS,
    "mod_jobkind_{}": KINDS,
    "mod_failure_{}": FAILURES,
    "mod_cause_{}": CAUSES,
    "ovcause_{}": CAUSES,
    "monevent_{}": EVENTS,
    "stage_{}": (*STAGES.values(), "race_warm_up", "race_waiting", "race_result", "drain", "stop", "queued", "quiet"),
    "req_phase_{}": get_args(PhasePart.model_fields["name"].annotation),
    "req_cause_{}": STOP_CAUSES,
    "req_source_{}": get_args(Source),
    "mod_source_of_{}": get_args(Source),
    "set_{}": RETENTION,
    "set_{}_hint": RETENTION,
    "spec_state_{}": get_args(VerdictState),
    "head_spec_{}": [state for state in get_args(VerdictState) if state != "none"],
    "spec_reason_{}": REASONS,
    "spec_advice_{}": (*ADVICE, "off_at_batch", "drafter_memory", "estimate_fewer"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_code_has_a_text(family: str) -> None:
    missing = [code for code in FAMILIES[family] if family.format(code) not in texts("en")]
    assert missing == []
