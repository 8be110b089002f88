"""A made-up run of bench/speculation.py whose ratios are round."""

from __future__ import annotations

from bench.speculation_results import PLAIN, Arm, Case, Counts, Measured, PeerGain, Results


def counts() -> Counts:
    """100 tokens of 2 answers: 20 drafts of 2 tokens, of which 30 were accepted."""
    return Counts(
        tokens=100,
        answers=2,
        drafts=20,
        drafted=40,
        accepted=30,
        drafted_at=[20, 20],
        accepted_at=[18, 12],
        steps=70,
        verify_steps=20,
        draft_s=0.07,
        verify_s=0.1,
        plain_s=0.2,
    )


def measured(key: str, batch: int, temperature: float, **seconds: float) -> Measured:
    """Two groups of 50 tokens, two rounds; seconds of every answer by the way to decode, plain decoding takes 1."""
    arms = {name: Arm(counts=counts()) for name in (PLAIN, *seconds)}
    for name, arm in arms.items():
        for _ in range(2):
            arm.add_round([[seconds.get(name, 1.0)] * batch] * 2)
    return Measured(Case(key, batch, temperature), [50, 50], 1, arms)


def gains() -> Results:
    return Results(
        facts={
            "date": "2026-12-01 10:00",
            "command": "python -m bench.speculation",
            "machine": "2 cores of a made-up CPU",
            "threads": 2,
            "rounds": 2,
            "quick": False,
            "stretches": 1,
            "model": "model.gguf",
            "default": "suffix",
            "exactness": "bits",
            "exactness_reason": "rows are independent",
            "engine": "at most 8 drafts; drafter: none",
            "sets": {"open_chat": False, "code_edit": True},
            "max_tokens": {"open_chat": 160, "code_edit": 224},
            "prompts": 16,
            "peers": {"vLLM ngram": {"version": "1.0", "settings": "as its manual says"}},
        },
        bandwidths=[20e9, 22e9],
        measured=[
            measured("open_chat", 1, 0.0, suffix=0.8, ngram=1.0),
            measured("code_edit", 1, 0.0, suffix=0.25, ngram=0.5),
            measured("code_edit", 4, 0.0, suffix=0.5, ngram=0.8),
            measured("open_chat", 1, 1.0, suffix=1.25),
        ],
        peers=[
            PeerGain("vLLM", "ngram", Case("code_edit", 1, 0.0), 2, [[2.0, 2.0]], [[1.0, 1.0]], 80, 80, 1, 2, 10, 5),
        ],
        failures={"llama.cpp": "does not start:\n  no program"},
        costs=[
            {
                "target": "large",
                "drafter": "small",
                "k": 4,
                "batch": 1,
                "plain_ms": 10.0,
                "draft_ms": 4.0,
                "verify_ms": 11.0,
                "catch_up_ms": 20.0,
                "acceptance": None,
                "pays_from": 1.5,
            }
        ],
    )
