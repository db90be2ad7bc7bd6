"""A batch whose rows have settings of their own, as the requests of different users have."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specverify.decoding.output import DecoderOutput, chosen_rows, joined
from specverify.errors import UsageError
from specverify.settings import SamplingSettings

RowSettings = SamplingSettings | Sequence[SamplingSettings]
"""Settings of all rows of a call, or a sequence with those of each."""


def generate_by_settings(
    generate: Callable[[Tensor, Tensor, SamplingSettings], DecoderOutput],
    prompt_ids: Tensor,
    attention_mask: Tensor,
    settings: RowSettings,
) -> DecoderOutput:
    """Decode rows with equal settings together, one set of rows after the other.

    A row's tokens are a function of its prompt, its settings and its own draws, so which rows are
    decoded together decides nothing.

    Args:
        generate: decodes prompts [B, T] with their mask [B, T] under one set of settings.
        prompt_ids: long [B, T], padded left.
        attention_mask: [B, T].
        settings: of all rows, or of each.

    Returns:
        The rows in the order of their prompts, in the fields that `joined` keeps, if there was
        more than one set of settings.

    Raises:
        UsageError: there are not as many settings as rows.
    """
    if isinstance(settings, SamplingSettings):
        return generate(prompt_ids, attention_mask, settings)
    if len(settings) != len(prompt_ids):
        raise UsageError(
            f"settings of {len(settings)} rows for {len(prompt_ids)} prompts; give one for all, "
            "or one for each prompt"
        )
    groups: list[tuple[SamplingSettings, list[int]]] = []
    for row, own in enumerate(settings):
        known = next((rows for shared, rows in groups if shared == own), None)
        if known is None:
            groups.append((own, [row]))
        else:
            known.append(row)
    outputs = [generate(prompt_ids[rows], attention_mask[rows], own) for own, rows in groups]
    if len(outputs) == 1:
        return outputs[0]
    order = torch.tensor([row for _, rows in groups for row in rows]).argsort()
    return chosen_rows(joined(outputs), order)
