"""A stand-alone Python script that shows a counterexample.

It needs torch and the subject; for a decoder of transformers models also specverify, which makes
small ones.
"""

import json
import math
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from specverify.certification.certificate import CaseRecord, Certificate, CounterexampleRecord
from specverify.certification.counterexamples.stored import stored_transform
from specverify.reporting.script_decoders import DECODER, STAND_ALONE, WITH_SPECVERIFY
from specverify.reporting.script_texts import RULE, TRANSFORM
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.registry import GROUP

SAMPLES = {"round": (20_000, 2_000_000), "world": (2_000, 50_000)}
"""Fewest and most samples of a script, by what is sampled."""
_STANDARD_DEVIATIONS = 10
"""What the samples should be off by, roughly."""


def script_name(certificate_name: str, case: CaseRecord) -> str:
    """File name of the script for a case, beside its certificate."""
    stem = certificate_name.removesuffix(".json")
    return f"{stem}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', case.id)}.py"


def import_path(subject: Subject) -> str | None:
    """`package.module:object` by which a script can import a subject; None if there is none."""
    if ":" in subject.name:
        return subject.name
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    if subject.name in points:
        return points[subject.name]
    module = getattr(subject.call, "__module__", None)
    name = getattr(subject.call, "__qualname__", "")
    if module and module != "__main__" and name.isidentifier():
        return f"{module}:{name}"
    return None


def script(record: CounterexampleRecord, subject: Subject, path: str) -> str | None:
    """Source of a script that runs a counterexample; None for one that cannot be run.

    Args:
        record: the counterexample.
        subject: on which it was found; says how it is called.
        path: `package.module:object` of the subject.
    """
    declared = subject.capabilities
    if record.kind == "round" and declared.coins is None:
        parts = _rule_call(declared)
        return RULE.format(**_common(record, path, record.inputs), **_sampled(record), **parts)
    if record.kind == "world":
        inputs: dict[str, object] = {**record.inputs}
        parts = WITH_SPECVERIFY
        if "language_model" in declared.models:
            inputs["settings"], parts = _all_settings(record), STAND_ALONE
        return DECODER.format(**_common(record, path, inputs), **_sampled(record), **parts)
    if record.kind == "transform":
        return TRANSFORM.format(**_transform_call(record, path))
    return None


def write_scripts(
    certificate: Certificate, subject: Subject, directory: Path, certificate_name: str
) -> dict[str, str]:
    """Write a script for each counterexample that can be run.

    Returns:
        File names by case id.

    Raises:
        OSError: the folder cannot be written.
    """
    path = import_path(subject)
    written: dict[str, str] = {}
    for case in certificate.cases:
        if case.counterexample is None or path is None:
            continue
        source = script(case.counterexample, subject, path)
        if source is not None:
            written[case.id] = script_name(certificate_name, case)
            (directory / written[case.id]).write_text(source, encoding="utf-8")
    return written


def _common(
    record: CounterexampleRecord, path: str, inputs: Mapping[str, object]
) -> dict[str, str]:
    module, _, attribute = path.partition(":")
    entries = ",\n".join(
        f"    {json.dumps(key)}: {_literal(value)}" for key, value in inputs.items()
    )
    return {
        "property": record.property,
        "text": _wrapped(record.text),
        "module": module,
        "name": attribute,
        "inputs": "{\n" + entries + ",\n}",
    }


def _sampled(record: CounterexampleRecord) -> dict[str, str]:
    """What counts are held against."""
    masses = "".join(f"    {entry.tokens}: {entry.expected!r},\n" for entry in record.outcomes)
    return {"expected": "{\n" + masses + "}", "samples": f"{_samples(record):_}"}


def _samples(record: CounterexampleRecord) -> int:
    """So many that the deviation shows, within reason."""
    fewest, most = SAMPLES[record.kind]
    distance = max(record.total_variation or 0.0, 1e-9)
    return int(min(most, max(fewest, (_STANDARD_DEVIATIONS / distance) ** 2 / 4)))


def _literal(value: object) -> str:
    """Plain values as Python; infinite numbers have no literal."""
    if isinstance(value, float) and math.isinf(value):
        return f"float({str(value)!r})"
    if isinstance(value, Mapping):
        entries = (f"{_literal(key)}: {_literal(entry)}" for key, entry in value.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, tuple):
        return f"({''.join(f'{_literal(entry)}, ' for entry in value).rstrip()})"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)


def _wrapped(text: str, width: int = 96) -> str:
    lines, line = [], ""
    for word in text.replace("\\", "/").replace('"', "'").split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def _rule_call(declared: Capabilities) -> dict[str, str]:
    generator = ", generator" if declared.generator else ""
    return {"generator": generator, "step": "1 << 16" if declared.batch else "1"}


def _transform_call(record: CounterexampleRecord, path: str) -> dict[str, object]:
    """A row with the parameters as a factory takes them, ids as numbers where they are keys."""
    inputs = {
        "parameters": stored_transform(record).case.parameters,
        **{name: record.inputs[name] for name in ("history", "logits", "dtype")},
    }
    return {
        **_common(record, path, inputs),
        "expected": repr([entry.expected for entry in record.outcomes]),
        "tolerance": record.tolerance,
    }


def _all_settings(record: CounterexampleRecord) -> dict[str, object]:
    """Every field, those that are neutral too, in the types that a subject is handed."""
    given: Any = record.inputs["settings"]
    return dict(SamplingSettings(**given))
