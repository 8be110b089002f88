"""`pizarra doctor`: what a checkpoint on this disk is, and whether it can be served here.

Owns the choice of what is meant by the argument, the output's form and the exit code. Knows nothing of checkpoints.
Invariant: exit code 0 where the checkpoint could be served, 1 with the reason where it could not.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import typer

from app.catalog import Catalog, existing_path
from app.catalog.entry import MODEL_ID, CatalogError
from app.devices import DeviceSampler, free_memory
from app.doctor import Doctor, DoctorReport
from app.doctor_text import report_lines


def run_doctor(target: str, catalog: Catalog, home: Path, *, as_json: bool) -> None:
    """Examine a path or a model id and print the report. Raises CatalogError, PullError; typer.Exit with the code."""
    doctor = Doctor(catalog.local, lambda: free_memory(DeviceSampler(home).sample({}), "auto"))
    report = _examine(target, catalog, doctor)
    if as_json:
        print(json.dumps(dataclasses.asdict(report), indent=1))
    else:
        print("\n".join(report_lines(report)))
    if report.problem:
        raise typer.Exit(1)


def _examine(target: str, catalog: Catalog, doctor: Doctor) -> DoctorReport:
    """A model on disk where its id is meant, else a path: an id that is also a folder's name here is the model."""
    on_disk = {model.id: model for model in catalog.local()}
    if target in on_disk:
        return doctor.examine_model(on_disk[target])
    path = existing_path(target)
    if path is None and re.fullmatch(MODEL_ID, target):
        return doctor.examine_model(catalog.resolve(target))  # raises, saying what is on disk
    if path is None:
        raise CatalogError(f"{target}: there is no such file or folder, and no model of that id")
    return doctor.examine_path(path)
