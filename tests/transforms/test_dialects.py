import pytest

from specverify.errors import SettingsError
from specverify.transforms import DIALECTS, REFERENCE, dialect


def test_huggingface_is_available():
    assert dialect("huggingface") is DIALECTS["huggingface"]


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "sglang"])
def test_announced_engines_are_refused_with_what_is_available(engine):
    with pytest.raises(SettingsError, match=r"later version.*available: huggingface"):
        dialect(engine)


def test_unknown_engines_are_refused():
    with pytest.raises(SettingsError, match="'hf' is not known; available: huggingface"):
        dialect("hf")


@pytest.mark.parametrize("name", list(DIALECTS))
def test_every_dialect_places_every_transform_once(name):
    rules = DIALECTS[name]
    assert sorted(rules.processors + rules.warpers) == sorted(REFERENCE)
