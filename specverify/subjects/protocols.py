"""The call signatures of the implementations specverify can test (design.md section 4)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import Generator, Tensor

from specverify.decoding.output import DecoderOutput
from specverify.errors import UsageError
from specverify.settings import SamplingSettings

if TYPE_CHECKING:
    from specverify.exact.coins import Coins
    from specverify.verification.lossy import LossyContract

Kind = Literal["rule", "transform", "decoder"]
KINDS: tuple[Kind, ...] = ("rule", "transform", "decoder")
GENERATING: frozenset[Kind] = frozenset({"rule", "decoder"})
"""Kinds that emit tokens; a rule does so inside the reference loop."""
RULES: frozenset[Kind] = frozenset({"rule"})
DECODERS: frozenset[Kind] = frozenset({"decoder"})
TRANSFORMS: frozenset[Kind] = frozenset({"transform"})


class Rule(Protocol):
    """One round of verification; returns the emitted tokens [B, K+1], padded right with -1."""

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        generator: Generator,
    ) -> Tensor: ...


class Transform(Protocol):
    """Logits to logits, the call of a Hugging Face `LogitsProcessor`."""

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor: ...


TransformFactory = Callable[..., Transform]


class Decoder(Protocol):
    """A whole generation loop; one that takes settings by row may be handed a list of them."""

    def __call__(
        self,
        target: Any,
        draft: Any,
        prompt_ids: Tensor,
        attention_mask: Tensor,
        settings: SamplingSettings,
        num_draft_tokens: int,
        generator: Generator,
    ) -> DecoderOutput: ...


@dataclass(frozen=True)
class Capabilities:
    """What a subject says it can do; a property that needs more is listed as not applicable."""

    batch: bool = True
    """Takes more than one row a call."""
    row_settings: bool = False
    """Takes a list of `SamplingSettings`, one for each row of a call, as well as one for all."""
    generator: bool = True
    """Draws everything from the generator it is handed."""
    settings: frozenset[str] | None = None
    """Names of the `SamplingSettings` fields it honours; None means all. The length limit and the
    temperature, 0 included, are always required."""
    algorithm: str | None = None
    """greedy, token, block or match; None when undeclared: acceptance is printed, not judged.

    Declaring one says that every round ends with a correction or a bonus token."""
    standard_draft: bool = False
    """Whether a decoder's draft tokens are sampled from the draft it is handed, under the run's
    settings. Any other draft is as right, but the correction has a closed form only for a known q,
    so it is judged only where this is declared. A rule is handed its drafts and need not."""
    coin_dtype: str = "float32"
    """dtype of the uniforms it compares; sets how often an impossible token can be excused."""
    models: frozenset[str] = frozenset({"transformers"})
    """Model classes a decoder accepts: `transformers` (a `PreTrainedModel`, glass-box or real) and
    `language_model` (specverify's own protocol, vectorised over many rows)."""
    tiny_models: bool = True
    """Whether a decoder takes the tables and glass-box models of exact evidence, which have no
    layers. Without it nothing is computed for it, only sampled on the pair it is given."""
    lossy: "LossyContract | None" = None
    """What a rule emits that changes the distribution on purpose; it is held against this and
    certified as lossy-as-declared, never as preserved."""
    coins: "Coins | None" = None
    """The uniforms a rule takes as keyword arguments in place of the generator. The suite feeds
    them, so a kernel without torch has exact evidence too; their dtype is `coin_dtype`."""

    def __post_init__(self) -> None:
        if self.coins is not None and self.coins.dtype != self.coin_dtype:
            raise UsageError(
                f"coin_dtype={self.coin_dtype!r}, but the coins have dtype {self.coins.dtype!r}; "
                "declare the same for both"
            )


@dataclass(frozen=True)
class Subject:
    """An implementation under test, with its name and what it declares."""

    name: str
    kind: Kind
    call: Callable[..., Any]
    capabilities: Capabilities = field(default_factory=Capabilities)
    summary: str = ""
    reference: str | None = None
    """For a transform: the `specverify.transforms` name it claims to equal."""

    distribution: str | None = None
    """The installed package under test, where `call` is only an adapter for it; its version goes
    into the certificate."""

    def __post_init__(self) -> None:
        if self.capabilities.coins is not None and self.kind != "rule":
            raise UsageError(
                f"{self.name!r} declares coins and is a {self.kind}; only a rule takes its "
                "uniforms as arguments"
            )
        if self.capabilities.lossy is None:
            return
        if self.kind != "rule":
            raise UsageError(
                f"{self.name!r} declares a lossy contract and is a {self.kind}; only what a rule "
                "emits is held against one"
            )
        if self.capabilities.algorithm is not None:
            raise UsageError(
                f"{self.name!r} declares a lossy contract and the algorithm "
                f"{self.capabilities.algorithm!r}, which is lossless; declare one of the two"
            )
