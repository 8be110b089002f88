"""/api/about and /api/storage: what this installation is, and what its records take."""

from __future__ import annotations

import asyncio
import platform
import shutil

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse

from app import about
from app.about_schemas import About, EngineKernels, Library, Paths, Processor, RetentionChoice, Storage
from app.errors import ApiError
from app.home import DATABASE
from app.saved_settings import STORE_BODIES, setting_fault
from app.services import Services, services
from app.version import app_version
from db.retention import RETENTION

router = APIRouter(prefix="/api", tags=["system"])


@router.get("/about")
async def get_about(parts: Services = Depends(services)) -> About:
    """Versions, processor, kernels of the loaded engines, paths, and the texts that came with the program."""
    libraries = await asyncio.to_thread(about.libraries)
    home = parts.settings.home
    engines = [
        EngineKernels(
            model_id=engine.model_id,
            device=engine.ready.device,
            dtype=engine.ready.dtype,
            backends=about.kernel_backends(engine.ready.kernels),
        )
        for engine in parts.engines.all()
        if engine.supervisor.ready is not None
    ]
    return About(
        version=app_version(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        libraries=[Library(**each) for each in libraries],
        processor=Processor(**await asyncio.to_thread(about.processor)),
        engines=engines,
        paths=Paths(
            home=str(home), database=str(home / DATABASE), models=str(home / "models"), logs=str(home / "logs")
        ),
        documents=list(about.documents()),
    )


@router.get("/about/documents/{name}", response_class=PlainTextResponse)
async def get_document(name: str) -> PlainTextResponse:
    """One of the texts that /api/about lists, as plain text."""
    known = about.documents()
    if name not in known:
        raise ApiError(404, f"there is no document {name[:80]!r}", param="name", remedy=f"Known: {', '.join(known)}")
    return PlainTextResponse(await asyncio.to_thread(known[name].read_text, encoding="utf-8"))


@router.get("/storage")
async def get_storage(parts: Services = Depends(services)) -> Storage:
    """What the database takes, its rows by table, and how long what is kept."""
    rows = await asyncio.to_thread(parts.store.num_rows)
    saved = await asyncio.to_thread(parts.store.get_settings)
    bodies = saved.get(STORE_BODIES)
    choices = [
        RetentionChoice(
            name=name,
            value=saved[name] if name in saved and setting_fault(name, saved[name]) is None else None,
            default=kept.default,
            least=kept.least,
            most=kept.most,
            unit="hours" if kept.unit_s == 3600 else "days",
        )
        for name, kept in RETENTION.items()
    ]
    return Storage(
        database_bytes=await asyncio.to_thread(parts.store.size_bytes),
        disk_free_bytes=(await asyncio.to_thread(shutil.disk_usage, parts.settings.home)).free,
        rows=rows,
        retention=choices,
        store_bodies=bodies if isinstance(bodies, bool) else None,
    )
