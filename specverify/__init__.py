"""Certifies that an implementation samples exactly from its target model.

Nothing heavy is imported until a name below is used: `import specverify` stays cheap enough for
command-line completion and pytest start-up.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specverify.certification.run import certify
    from specverify.checking import check, parametrize
    from specverify.conformance import ConformanceError
    from specverify.settings import SamplingSettings
    from specverify.subjects.registry import subject

__version__ = "0.1.0"

__all__ = [
    "ConformanceError",
    "SamplingSettings",
    "__version__",
    "certify",
    "check",
    "parametrize",
    "subject",
]

_HOMES = {
    "ConformanceError": "specverify.conformance",
    "SamplingSettings": "specverify.settings",
    "certify": "specverify.certification.run",
    "check": "specverify.checking",
    "parametrize": "specverify.checking",
    "subject": "specverify.subjects.registry",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOMES))
