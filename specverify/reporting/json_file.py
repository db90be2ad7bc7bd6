"""Certificates as JSON files."""

import re
from pathlib import Path

from specverify.certification.certificate import Certificate
from specverify.errors import UsageError


def prepare_directory(directory: str | Path) -> Path:
    """Make the folder certificates go to, before any work is spent on them.

    Raises:
        UsageError: it cannot be made or written to.
    """
    directory = Path(directory)
    probe = directory / ".specverify-can-write"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"certificates cannot be written to {str(directory)!r}: {error.strerror}; choose "
            "another folder for --out"
        ) from None
    return directory


def certificate_name(certificate: Certificate) -> str:
    """File name of a certificate: subject, pair (a transform has none) and seed."""
    parts = (certificate.subject.name, certificate.pair, f"seed{certificate.seed}")
    return "-".join(_slug(part) for part in parts if part) + ".json"


def write_certificate(certificate: Certificate, directory: str | Path) -> Path:
    """Write a certificate into a folder, replacing one of the same subject, pair and seed.

    Raises:
        OSError: the folder cannot be written.
    """
    return certificate.save(Path(directory) / certificate_name(certificate))


def _slug(text: str) -> str:
    """Letters, digits, dots, dashes and underscores, safe in a file name on any system."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-.") or "unnamed"
