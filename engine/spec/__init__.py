"""Speculation: who proposes drafts, and how many of them are verified.

`PROPOSERS` lists every proposer by the name that load options and requests use.
"""

from __future__ import annotations

PROPOSERS: dict[str, str] = {
    "ngram": "engine.spec.ngram:NgramProposer",
    "suffix": "engine.spec.suffix:SuffixProposer",
    "draft_model": "engine.spec.model_proposer:ModelProposer",
    "eagle": "engine.spec.model_proposer:ModelProposer",
    "medusa": "engine.spec.model_proposer:ModelProposer",
    "hybrid": "engine.spec.hybrid:HybridProposer",
}
