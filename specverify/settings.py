"""SamplingSettings: the output contract of a run."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specverify.errors import SettingsError

TokenIds = tuple[int, ...]
AllowedTokens = Callable[[TokenIds], Iterable[int]]
"""Maps the tokens emitted so far (the prompt left out) to the token ids that may come next."""

TokenId = Annotated[int, Field(ge=0)]


class SamplingSettings(BaseModel):
    """What one run must produce: transforms with their parameters, stopping rules, length limit.

    Two implementations that honour the same settings must emit the same distribution over token
    sequences. Every field has a neutral default, so `SamplingSettings(max_new_tokens=8)` samples
    from the model's own distribution.

    Raises:
        SettingsError: a value is out of range; the message names field, value and valid range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    dialect: str = Field("huggingface", description="engine whose order, ties and bounds apply")

    max_new_tokens: int = Field(64, ge=1, description="length limit, in tokens after the prompt")
    min_new_tokens: int = Field(
        0, ge=0, description="stop tokens are impossible, and stop sequences ignored, before this"
    )
    stop_token_ids: tuple[TokenId, ...] = Field((), description="a run ends with any of these")
    stop_sequences: tuple[TokenIds, ...] = Field(
        (), description="a run ends once its emitted tokens end with any of these"
    )

    temperature: float = Field(1.0, ge=0.0, allow_inf_nan=False, description="0 means greedy")
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    typical_p: float | None = Field(None, gt=0.0, le=1.0)
    epsilon_cutoff: float | None = Field(None, gt=0.0, lt=1.0)
    eta_cutoff: float | None = Field(None, gt=0.0, lt=1.0)
    top_n_sigma: float | None = Field(None, gt=0.0, allow_inf_nan=False)
    xtc_probability: float = Field(0.0, ge=0.0, le=1.0)
    xtc_threshold: float = Field(0.1, gt=0.0, le=1.0)

    repetition_penalty: float = Field(1.0, gt=0.0, allow_inf_nan=False)
    frequency_penalty: float = Field(0.0, allow_inf_nan=False)
    presence_penalty: float = Field(0.0, allow_inf_nan=False)
    no_repeat_ngram_size: int | None = Field(None, ge=1)
    bad_words: tuple[TokenIds, ...] = ()
    logit_bias: dict[int, float] = Field(default_factory=dict)
    allowed_tokens: AllowedTokens | None = None
    forced_tokens: dict[int, int] = Field(
        default_factory=dict, description="emitted position (0 is the first new token) to token id"
    )

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise SettingsError(_explain(error)) from None

    @model_validator(mode="after")
    def _contradictions(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens={self.min_new_tokens} exceeds "
                f"max_new_tokens={self.max_new_tokens}; lower it or raise the limit"
            )
        for field in ("stop_sequences", "bad_words"):
            for sequence in getattr(self, field):
                if not sequence or min(sequence) < 0:
                    raise ValueError(
                        f"{field} holds {sequence!r}; each entry needs at least one token id >= 0"
                    )
        return self

    @property
    def greedy(self) -> bool:
        """Whether the run is deterministic: temperature 0."""
        return self.temperature == 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `SettingsError` if a token id named here does not exist in the vocabulary."""
        named = {
            "stop_token_ids": self.stop_token_ids,
            "stop_sequences": sum(self.stop_sequences, ()),
            "bad_words": sum(self.bad_words, ()),
            "logit_bias": tuple(self.logit_bias),
            "forced_tokens": tuple(self.forced_tokens.values()),
        }
        for field, ids in named.items():
            outside = sorted({i for i in ids if not 0 <= i < vocab_size})
            if outside:
                raise SettingsError(
                    f"{field} names token id {outside[0]}, but the vocabulary has {vocab_size} "
                    f"entries (0 to {vocab_size - 1}); remove the id or choose another pair"
                )


def _explain(error: ValidationError) -> str:
    """One line for each rejected field: its name, the value given, what is valid."""
    lines = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"])
        reason = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{field}={problem['input']!r}: {reason}" if field else reason)
    return "invalid settings: " + "; ".join(lines)
