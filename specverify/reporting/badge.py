"""A badge with the verdict, in the JSON that shields.io reads from an address."""

import json

from specverify.certification.certificate import Certificate
from specverify.certification.verdict import NOT_ASKED, Verdict

LABEL = "specverify"
_COLOURS: dict[Verdict, str] = {
    "preserved": "brightgreen",
    "lossy-as-declared": "blue",
    "inconclusive": "yellow",
    "violated": "red",
    "error": "red",
}


def badge_json(certificate: Certificate) -> str:
    """The endpoint schema, version 1: label, message, colour."""
    message, colour = str(certificate.verdict), _COLOURS[certificate.verdict]
    if any(entry.reason == NOT_ASKED for entry in certificate.not_applicable):
        message += ", on some properties"
    if certificate.stale:
        message, colour = f"{message}, an expected failure passes", "red"
    badge = {"schemaVersion": 1, "label": LABEL, "message": message, "color": colour}
    return json.dumps(badge, indent=2) + "\n"
