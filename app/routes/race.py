"""/api/engines/{id}/race."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.race_schemas import RaceBody
from app.schemas import JobStarted
from app.services import Services, services

router = APIRouter(prefix="/api", tags=["speculation"])


@router.post("/engines/{engine_id}/race", status_code=202)
async def start_race(engine_id: str, body: RaceBody, parts: Services = Depends(services)) -> JobStarted:
    """Race plain decoding against decoding with drafts, as a job: one run after the other, with nothing beside them.

    The job's `result` has: `identity` {verdict: "identical" | "near_tie" | "mismatch" | "may_differ",
    first_difference}, `speedup` {value, low, high, verdict: "pays" | "even" | "costs" | "not_enough_data"}, `ways`
    (medians and spread of tokens a second, time to the first token, drafts), `runs` (each timed run), and `replay`
    (when the tokens of each way's median run came). The prompt and both answers are kept in it.
    """
    engine = parts.engines.of_run(engine_id)
    return JobStarted(job_id=(await parts.races.start(engine, body)).id)
