"""Where subjects come from: installed names, decorated functions, `package.module:object`."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from specverify.errors import UsageError
from specverify.lookup import (
    did_you_mean,
    entry_point_names,
    import_object,
    load_entry_point,
    module_of,
)
from specverify.quoting import a_type

if TYPE_CHECKING:
    from specverify.subjects.protocols import Capabilities, Subject

GROUP = "specverify.subjects"
"""Entry-point group in which packages announce their subjects."""

_ATTRIBUTE = "__specverify_subject__"

_CALLS = {
    "decoder": (
        "target, draft, prompt_ids, attention_mask, settings, num_draft_tokens, generator",
        7,
    ),
    "rule": ("draft_tokens, draft_probs, target_probs, generator", 4),
}

F = TypeVar("F", bound=Callable[..., Any])

_REGISTERED: dict[str, "Subject"] = {}


def subject(
    *,
    kind: str,
    name: str | None = None,
    summary: str = "",
    reference: str | None = None,
    distribution: str | None = None,
    **capabilities: Any,
) -> Callable[[F], F]:
    """Declare a function as an implementation under test and leave the function as it is.

    Registering the same function again (pytest may load its file under two names) replaces it.

    Args:
        kind: rule, transform or decoder; says how the function is called.
        name: how the command line names it; `module:function` when omitted.
        summary: one line for `specverify subjects`; the first line of the docstring when omitted.
        reference: for a transform, the `specverify.transforms` name it claims to equal.
        distribution: the installed package under test, where `call` is only an adapter for it.
        **capabilities: fields of `Capabilities`, e.g. `batch=False, algorithm="token"`. For a rule
            that takes its uniforms as keyword arguments, `coins={"accept": "[B,K]", "final":
            "[B]"}`, with `coin_dtype` float64 or float32, and `coin_arrays="numpy"` if it takes
            and returns numpy arrays.

    Raises:
        UsageError: an unknown kind or capability, a function that cannot be called that way, or a
            name taken by another function.
    """

    def register(function: F) -> F:
        made = _make(
            function,
            kind,
            name or _import_path(function),
            summary=summary,
            reference=reference,
            distribution=distribution,
            **capabilities,
        )
        taken = _REGISTERED.get(made.name)
        if taken is not None and _home(taken.call) != _home(function):
            raise UsageError(
                f"the subject name {made.name!r} is taken by {'.'.join(_home(taken.call))}; "
                "give this one another name="
            )
        _REGISTERED[made.name] = made
        with suppress(AttributeError):  # bound methods take no attributes; the name finds them
            setattr(function, _ATTRIBUTE, made)
        return function

    return register


def subject_names() -> list[str]:
    """Every name `load_subject` knows now, sorted; no subject is imported."""
    return sorted({*entry_point_names(GROUP), *_REGISTERED})


def load_subject(
    spec: str, kind: str | None = None, kinds: Sequence[str] | None = None
) -> "Subject":
    """Find a subject by name or by `package.module:object`.

    Args:
        spec: a name that a package announces or that `@subject` registered, or the import path of
            a `Subject`, a function decorated with `@subject`, or (with `kind`) any callable.
        kind: rule, transform or decoder; needed for a bare callable.
        kinds: what the caller takes, to advise on; all kinds when omitted.

    Raises:
        UsageError: nothing has this name, it cannot be imported, or its kind is not known or
            another one. The message names the remedy.
    """
    if ":" in spec:
        found = import_object(spec)
    elif spec in _REGISTERED:
        found = _REGISTERED[spec]
    elif spec in (names := entry_point_names(GROUP)):
        found = load_entry_point(GROUP, spec)
    else:
        known = sorted({*names, *_REGISTERED})
        suggested = did_you_mean(spec, known) or _with_colon(spec)
        raise UsageError(
            f"unknown subject {spec!r}{suggested}; choose one of "
            f"{', '.join(known)}, or name your own as package.module:object"
        )
    return _as_subject(found, spec, kind, kinds)


def as_subject(given: "Subject | Callable[..., Any] | str") -> "Subject":
    """A subject from itself, from a function decorated with `@subject`, or from a name.

    Raises:
        UsageError: none of the three; the message names the remedy.
    """
    if isinstance(given, str):
        return load_subject(given)
    return _as_subject(given, getattr(given, "__qualname__", repr(given)), None)


def _with_colon(spec: str) -> str:
    """A suggestion for what looks like `package.module.object`, or like a file."""
    if spec.endswith(".py"):
        return f" (did you mean '{module_of(spec)}:NAME', with the name of an object in it?)"
    module, dot, name = spec.rpartition(".")
    if dot and all(part.isidentifier() for part in spec.split(".")):
        return f" (did you mean '{module}:{name}'?)"
    return ""


def _as_subject(
    found: Any, spec: str, kind: str | None, kinds: Sequence[str] | None = None
) -> "Subject":
    from specverify.subjects.protocols import KINDS, Subject

    declared = found if isinstance(found, Subject) else getattr(found, _ATTRIBUTE, None)
    if declared is not None:
        if kind is not None and kind != declared.kind:
            raise UsageError(f"{spec!r} is a {declared.kind}, not a {kind}; leave --kind out")
        return declared
    if not callable(found):
        raise UsageError(
            f"{spec!r} is {a_type(found)}, which cannot be called; name a function, or a "
            "specverify Subject"
        )
    if kind is None:
        raise UsageError(
            f"{spec!r} does not say what kind of subject it is; pass "
            f"{_any_of([f'--kind {known}' for known in kinds or KINDS])} (kind= in Python), or "
            "decorate it with @specverify.subject"
        )
    return _make(found, kind, spec)


def _any_of(words: Sequence[str]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} or {last}" if rest else last


def _make(
    function: Callable[..., Any],
    kind: str,
    name: str,
    *,
    summary: str = "",
    reference: str | None = None,
    distribution: str | None = None,
    **capabilities: Any,
) -> "Subject":
    from specverify.subjects.protocols import KINDS, Capabilities, Subject

    if kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r} of {name!r}; choose one of {', '.join(KINDS)}")
    known = {field.name for field in fields(Capabilities)}
    _declare_coins(name, capabilities)
    for capability, value in capabilities.items():
        if capability not in known:
            raise UsageError(
                f"{name!r} declares an unknown capability {capability!r}"
                f"{did_you_mean(capability, known)}; there are {', '.join(sorted(known))}"
            )
        if capability in {"settings", "models"} and value is not None:
            capabilities[capability] = frozenset(_strings(name, capability, value))
    declared = Capabilities(**capabilities)
    _check_call(function, kind, name, declared)
    lines = (summary or inspect.getdoc(function) or "").strip().splitlines()
    return Subject(
        name=name,
        kind=kind,
        call=function,
        capabilities=declared,
        summary=lines[0] if lines else "",
        reference=reference,
        distribution=distribution,
    )


def _strings(name: str, capability: str, value: Any) -> Iterable[str]:
    if isinstance(value, str) or not all(isinstance(entry, str) for entry in value):
        raise UsageError(f"{name!r} declares {capability}={value!r}; give a set of names")
    return value


def _declare_coins(name: str, capabilities: dict[str, Any]) -> None:
    """Turn the shapes of the coins, by argument, into `Coins`."""
    arrays = capabilities.pop("coin_arrays", None)
    shapes = capabilities.get("coins")
    if not isinstance(shapes, Mapping):
        if arrays is not None:
            raise UsageError(f"{name!r} declares coin_arrays={arrays!r}, but no coins")
        return
    from specverify.exact.coins import Coins
    from specverify.subjects.protocols import Capabilities

    dtype = capabilities.get("coin_dtype", Capabilities.coin_dtype)
    capabilities["coins"] = Coins(dict(shapes), dtype, arrays or "torch")


def _check_call(
    function: Callable[..., Any], kind: str, name: str, declared: "Capabilities"
) -> None:
    """Refuse a function whose signature cannot take the call its kind will get."""
    if kind not in _CALLS:
        return
    if inspect.isclass(function):
        raise UsageError(
            f"{name!r} is a class; a {kind} is called directly, so name an instance or a function"
        )
    arguments, count = _CALLS[kind]
    coins = declared.coins.shapes if declared.coins is not None else {}
    if kind == "rule" and (declared.coins is not None or not declared.generator):
        arguments, count = arguments.removesuffix(", generator"), count - 1
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # built-in callables do not all tell
    try:
        signature.bind(*[None] * count, **dict.fromkeys(coins))
    except TypeError as error:
        named = f" and {', '.join(coins)} by name" if coins else ""
        raise UsageError(
            f"{name!r} takes {signature}, but a {kind} is called as f({arguments}), by position"
            f"{named}: {error}"
        ) from None


def _import_path(function: Callable[..., Any]) -> str:
    """`package.module:name` of a function, or of the class of an object that can be called."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _home(function: Callable[..., Any]) -> tuple[str, str]:
    """Where a function is defined, the same under every name its file is imported by."""
    code = getattr(function, "__code__", None)
    place = code.co_filename if code is not None else getattr(function, "__module__", "")
    return str(place), getattr(function, "__qualname__", type(function).__qualname__)
