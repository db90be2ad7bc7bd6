"""Filling the certificate's records from the things they describe."""

import hashlib
import importlib
import math
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specverify import __version__
from specverify.certification.certificate import EnvironmentRecord, SubjectRecord, SuiteRecord
from specverify.certification.plan import Plan
from specverify.certification.registry import SUITE
from specverify.models.pairs import Pair
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject
from specverify.subjects.provenance import distribution_of, source_sha256


def subject_record(subject: Subject) -> SubjectRecord:
    """Name, kind, package and source digest of a subject."""
    distribution, release = distribution_of(subject)
    return SubjectRecord(
        name=subject.name,
        kind=subject.kind,
        distribution=distribution,
        version=release,
        source_sha256=source_sha256(subject.call),
        algorithm=subject.capabilities.algorithm,
    )


def run_manifest(
    subject: Subject, pair: Pair, plan: Plan, seed: int, profile: str
) -> dict[str, Any]:
    """Everything that decides what a shard of a run holds, so that shards of another are refused.

    Code that a subject calls outside its own package is not known here.
    """
    return {
        "subject": subject_record(subject).model_dump(mode="json"),
        "suite": suite_record().model_dump(mode="json"),
        "environment": environment_record(dtype=plan.dtype).model_dump(mode="json"),
        "pair": pair.name,
        "prompts": [list(prompt) for prompt in pair.prompts],
        "seed": seed,
        "profile": profile,
        "cases": [
            {
                "id": planned.case.id,
                "settings": settings_record(planned.case.settings),
                "num_draft_tokens": planned.case.num_draft_tokens,
                "runs": planned.case.runs,
                "rows": planned.rows,
            }
            for planned in plan.cases
        ],
    }


def suite_record() -> SuiteRecord:
    """The version of specverify, and what it asks."""
    return SuiteRecord(version=__version__, properties_sha256=property_digest())


@cache
def property_digest() -> str:
    """SHA-256 of the source of all properties: two suites with the same one ask the same."""
    package = importlib.import_module(SUITE)
    digest = hashlib.sha256()
    for folder in sorted(set(package.__path__)):
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.name.encode())
            digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def environment_record(device: str = "cpu", dtype: str = "float32") -> EnvironmentRecord:
    """Versions of what computes, and where the models live.

    Args:
        device: of the models, as torch names it.
        dtype: of their logits, without the prefix `torch.`.
    """
    import numpy as np
    import torch

    return EnvironmentRecord(
        python=".".join(str(part) for part in sys.version_info[:3]),
        torch=torch.__version__,
        numpy=np.__version__,
        transformers=_version("transformers"),
        device=device,
        dtype=dtype,
        threads=torch.get_num_threads(),
    )


def settings_record(settings: SamplingSettings) -> dict[str, Any]:
    """The fields that differ from their neutral values, in JSON's types.

    A callable is recorded by the name it can be imported by.
    """
    record: dict[str, Any] = {}
    for name, field in SamplingSettings.model_fields.items():
        value = getattr(settings, name)
        if value == field.get_default(call_default_factory=True):
            continue
        if callable(value):
            kind = type(value)
            module = getattr(value, "__module__", kind.__module__)
            record[name] = f"{module}:{getattr(value, '__qualname__', kind.__qualname__)}"
        elif isinstance(value, dict):
            record[name] = {str(key): _number(entry) for key, entry in value.items()}
        elif isinstance(value, tuple):
            record[name] = [list(entry) if isinstance(entry, tuple) else entry for entry in value]
        else:
            record[name] = value
    return record


def _number(value: float) -> float | str:
    """Infinite numbers, which JSON lacks, in the form that settings read back."""
    if not math.isinf(value):
        return value
    return "Infinity" if value > 0 else "-Infinity"


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
