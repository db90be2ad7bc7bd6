"""Records filled from subjects, settings and the environment."""

import json
import math
import sys

import torch

import specverify
from specverify.certification.records import (
    environment_record,
    settings_record,
    subject_record,
    suite_record,
)
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Capabilities, Subject


def odd_tokens(emitted: tuple[int, ...]) -> tuple[int, ...]:
    return (1, 3)


class Automaton:
    def __call__(self, emitted: tuple[int, ...]) -> tuple[int, ...]:
        return (0,)


def test_settings_are_recorded_where_they_differ_from_neutral() -> None:
    assert settings_record(SamplingSettings()) == {}
    settings = SamplingSettings(
        max_new_tokens=4,
        temperature=1.0,
        stop_sequences=((1, 2), (3,)),
        stop_token_ids=(5,),
        logit_bias={3: -math.inf},
        allowed_tokens=odd_tokens,
    )
    record = settings_record(settings)
    assert record == {
        "max_new_tokens": 4,
        "stop_token_ids": [5],
        "stop_sequences": [[1, 2], [3]],
        "logit_bias": {"3": "-Infinity"},
        "allowed_tokens": f"{__name__}:odd_tokens",
    }
    replayed = SamplingSettings(**{k: v for k, v in record.items() if k != "allowed_tokens"})
    assert replayed.stop_sequences == settings.stop_sequences
    assert replayed.logit_bias == settings.logit_bias


def test_a_callable_object_is_recorded_by_its_class() -> None:
    record = settings_record(SamplingSettings(allowed_tokens=Automaton()))
    assert record == {"allowed_tokens": f"{__name__}:Automaton"}
    json.dumps(record)


def test_the_environment_is_this_one() -> None:
    record = environment_record(device="cpu", dtype="float64")
    assert sys.version.startswith(record.python)
    assert record.torch == torch.__version__
    assert record.threads == torch.get_num_threads()
    assert (record.device, record.dtype) == ("cpu", "float64")
    assert record.transformers


def test_subject_and_suite_are_named_with_their_versions() -> None:
    subject = Subject(
        "mine", "rule", odd_tokens, Capabilities(algorithm="token"), distribution="transformers"
    )
    record = subject_record(subject)
    assert (record.name, record.kind, record.algorithm) == ("mine", "rule", "token")
    assert record.distribution == "transformers"
    assert record.version == environment_record().transformers
    assert record.source_sha256
    assert suite_record().version == specverify.__version__
