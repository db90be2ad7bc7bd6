"""Pairs of transformers models in local directories, loaded without network."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from specverify.errors import UsageError
from specverify.models.pairs import ModelClass, Pair, Vocabularies
from specverify.models.vocabulary import Vocabulary
from specverify.quoting import message_of

_REMEDY = "write it again with model.save_pretrained(), or copy it again in full"

_TEXTS = (
    "The",
    "Once upon a time",
    "The capital of France is",
    "def add(a, b):\n    return",
    "To be, or not to be, that is the question: whether",
)
"""Prompts for a pair that comes without any: short, and of different lengths."""


def pair_from_directories(
    target_dir: str | Path,
    draft_dir: str | Path,
    *,
    name: str | None = None,
    summary: str = "",
    prompts: tuple[tuple[int, ...], ...] | None = None,
    num_draft_tokens: int = 4,
) -> Pair:
    """A pair of two directories as `save_pretrained` writes them, each with its tokenizer.

    Args:
        target_dir: directory of the target.
        draft_dir: directory of the draft.
        name: by default the two directories' names.
        summary: one sentence on what it is.
        prompts: token ids; a few short English texts, tokenized for the target, by default.
        num_draft_tokens: block length K to test with.

    Raises:
        UsageError: a directory does not hold a model.
    """
    target_dir, draft_dir = (_checked(Path(path)) for path in (target_dir, draft_dir))
    if prompts is None:
        tokenizer = _tokenizer(target_dir)
        encoded = (tokenizer(text)["input_ids"] for text in _TEXTS)
        prompts = tuple(tuple(ids) for ids in encoded if ids)

    return Pair(
        name=name or f"{target_dir.name},{draft_dir.name}",
        summary=summary or f"target from {target_dir}, draft from {draft_dir}",
        prompts=prompts,
        load=partial(_load_both, target_dir, draft_dir),
        num_draft_tokens=num_draft_tokens,
        read_vocabularies=partial(_vocabularies, target_dir, draft_dir),
    )


def _checked(directory: Path) -> Path:
    if not (directory / "config.json").is_file():
        state = "has no config.json" if directory.is_dir() else "is not a directory"
        raise UsageError(
            f"{directory} {state}; name a directory written by model.save_pretrained() and "
            "tokenizer.save_pretrained(), as in TARGET_DIR,DRAFT_DIR"
        )
    _read_config(directory / "config.json")
    return directory


def _read_config(path: Path) -> None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not isinstance(config, dict):
        raise UsageError(f"{path} holds a JSON {type(config).__name__}, not an object; {_REMEDY}")


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(
        f"{path} cannot be read ({type(error).__name__}: {message_of(error)}); {_REMEDY}"
    )


@contextmanager
def _loading(directory: Path) -> Iterator[None]:
    """Turn whatever loading raises into a `UsageError` that names the file at fault."""
    try:
        yield
    except Exception as error:
        from safetensors import safe_open

        for path in sorted(directory.glob("*.safetensors")):
            try:
                with safe_open(path, "pt"):
                    pass
            except Exception as cause:
                raise _damaged(path, cause) from error
        raise _damaged(directory, error) from error


def _load_both(target_dir: Path, draft_dir: Path, model_class: ModelClass) -> tuple[Any, Any]:
    return _load(target_dir, model_class), _load(draft_dir, model_class)


def _vocabularies(target_dir: Path, draft_dir: Path) -> Vocabularies:
    return _vocabulary(target_dir), _vocabulary(draft_dir)


def _load(directory: Path, model_class: ModelClass) -> Any:
    from transformers import AutoModelForCausalLM

    from specverify.models.transformers_model import TransformersModel

    with no_progress_bar(), _loading(directory):
        model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True).eval()
    if model_class == "transformers":
        return model
    return TransformersModel(model, _tokenizer(directory))


def _vocabulary(directory: Path) -> Vocabulary:
    from transformers import AutoConfig

    with _loading(directory):
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        size = config.get_text_config(decoder=True).vocab_size
    return Vocabulary.from_tokenizer(_tokenizer(directory), size)


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Keep transformers' bars out of the caller's terminal; its setting is put back."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@cache
def _tokenizer(directory: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare exceptions
        raise UsageError(
            f"{directory} has no tokenizer that loads ({message_of(error)}); write it there with "
            "tokenizer.save_pretrained(), since a pair's vocabularies are compared"
        ) from error
