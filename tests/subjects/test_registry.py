"""Finding subjects: installed names, decorated functions, import paths, and what goes wrong."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import specverify
from specverify.errors import UsageError
from specverify.exact.coins import Coins
from specverify.subjects import registry
from specverify.subjects.protocols import Subject
from specverify.subjects.registry import load_subject, subject, subject_names

BUILT_IN = ["reference", "reference-block", "reference-greedy", "reference-match", "transformers"]


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's file in the current folder, which is not on the path beforehand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    path = tmp_path / "users_decoder.py"
    path.write_text(
        "import specverify\n"
        "def generate(target, draft, prompt_ids, mask, settings, k, generator):\n"
        "    'Decodes as the user likes.'\n"
        "@specverify.subject(kind='rule', name='users-rule', batch=False)\n"
        "def rule(draft_tokens, draft_probs, target_probs, generator): ...\n"
        "class Engine:\n"
        "    def run(self, target, draft, prompt_ids, mask, settings, k, generator): ...\n"
        "engine = Engine()\n"
        "version = '1.0'\n"
    )
    yield path
    sys.modules.pop("users_decoder", None)


def decode(target: Any, draft: Any, ids: Any, mask: Any, settings: Any, k: Any, rng: Any) -> None:
    """Decode the usual way.

    More about it.
    """


def test_installed_names_are_listed_and_loaded() -> None:
    assert set(BUILT_IN) <= set(subject_names())
    for name in BUILT_IN:
        loaded = load_subject(name)
        assert (loaded.name, loaded.kind) == (name, "decoder")
        assert loaded.summary


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys; from specverify.subjects.registry import subject_names; subject_names();"
        "sys.exit(bool({'torch', 'transformers', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_decorator_leaves_the_function_and_registers_it() -> None:
    returned = subject(kind="decoder", name="mine", algorithm="token", settings=["top_k"])(decode)
    assert returned is decode
    assert "mine" in subject_names()
    loaded = load_subject("mine")
    assert loaded.call is decode
    assert loaded.summary == "Decode the usual way."
    assert loaded.capabilities.algorithm == "token"
    assert loaded.capabilities.settings == frozenset({"top_k"})
    assert specverify.subject is subject


def test_registering_again_replaces_and_another_function_is_refused() -> None:
    subject(kind="decoder", name="mine")(decode)
    subject(kind="decoder", name="mine", batch=False)(decode)
    assert not load_subject("mine").capabilities.batch

    def other(*arguments: Any) -> None: ...

    with pytest.raises(UsageError, match=r"'mine' is taken by .*decode.*another name="):
        subject(kind="decoder", name="mine")(other)


def load_file(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_same_file_under_two_module_names_registers_once(module: Path) -> None:
    load_file(module, "first_name")
    second = load_file(module, "second_name")
    assert load_subject("users-rule").call is second.rule


def test_an_import_path_finds_a_module_in_the_current_folder(module: Path) -> None:
    loaded = load_subject("users_decoder:generate", kind="decoder")
    assert loaded.name == "users_decoder:generate"
    assert loaded.summary == "Decodes as the user likes."
    assert load_subject("users_decoder:rule").name == "users-rule"
    assert load_subject("users_decoder:engine.run", kind="decoder").kind == "decoder"


def test_an_import_path_to_a_subject_needs_no_kind() -> None:
    assert load_subject("specverify.subjects.reference:TOKEN").name == "reference"


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ("referense", None, r"unknown subject 'referense' \(did you mean 'reference'\?\).*module:"),
        ("zzz", None, r"unknown subject 'zzz'; choose one of reference, .*transformers"),
        ("users_decoder.generate", None, r"\(did you mean 'users_decoder:generate'\?\)"),
        ("users_decoder.engine.run", None, r"\(did you mean 'users_decoder.engine:run'\?\)"),
        ("not/a.module", None, r"unknown subject 'not/a\.module'; choose"),
        ("users_decoder.py", None, r"\(did you mean 'users_decoder:NAME', with the name of an"),
        ("users_decoder.py:generate", None, r"\(did you mean 'users_decoder:generate'\?\)"),
        ("./users_decoder.py:generate", None, r"\(did you mean 'users_decoder:generate'\?\)"),
        ("lib/loops.py:generate", None, r"\(did you mean 'lib\.loops:generate'\?\)"),
        ("/no-such/loops.py:run", "rule", r"\(did you mean 'loops:run'\?\)"),
        ("a:b:c", "rule", "package.module:object"),
        (":b", "rule", "package.module:object"),
        ("a:", "rule", "package.module:object"),
        ("no_such_module:f", "rule", "no module 'no_such_module'; install it"),
        ("users_decoder:generat", "decoder", r"no attribute 'generat' \(did you mean 'generate'"),
        ("users_decoder:generate", None, "pass --kind rule, --kind transform or --kind decoder"),
        ("users_decoder:generate", "decoding", "unknown kind 'decoding'.*rule, transform, decoder"),
        ("users_decoder:rule", "decoder", "is a rule, not a decoder; leave --kind out"),
        ("reference", "rule", "is a decoder, not a rule"),
        ("users_decoder:version", "rule", "is a str, which cannot be called"),
        ("sys:maxsize", "rule", "is an int, which cannot be called"),
        ("users_decoder:Engine", "decoder", "is a class; a decoder is called directly"),
        ("users_decoder:generate", "rule", r"but a rule is called as f\(draft_tokens, draft_prob"),
    ],
)
def test_what_cannot_be_loaded_says_why(
    module: Path, spec: str, kind: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load_subject(spec, kind)


def test_a_caller_of_one_kind_advises_only_that(module: Path) -> None:
    with pytest.raises(UsageError, match=r"pass --kind rule \(kind= in Python\), or decorate"):
        load_subject("users_decoder:generate", kinds=("rule",))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('needs a licence')", "failed with RuntimeError: needs a licence"),
        ("import missing_dependency", "ModuleNotFoundError: No module named 'missing_dependency'"),
        ("import sys; sys.exit(5)", "failed with SystemExit: 5"),
        ("def f(:", "failed with SyntaxError"),
    ],
)
def test_a_module_that_fails_to_import_shows_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "broken_subject.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=message):
        load_subject("broken_subject:f", "rule")


def test_control_c_during_an_import_comes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_subject.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        load_subject("slow_subject:f", "rule")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"kind": "decode"}, "unknown kind 'decode'"),
        ({"kind": "decoder", "batched": True}, r"'batched' \(did you mean 'batch'\?\)"),
        ({"kind": "decoder", "settings": "top_k"}, "settings='top_k'; give a set of names"),
        ({"kind": "rule"}, r"but a rule is called as f\(draft_tokens"),
    ],
)
def test_wrong_declarations_are_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        subject(name="mine", **declared)(decode)


def test_a_rule_without_generator_has_three_arguments() -> None:
    def rule(draft_tokens: Any, draft_probs: Any, target_probs: Any) -> None: ...

    subject(kind="rule", name="global", generator=False)(rule)
    with pytest.raises(UsageError, match="generator\\), by position"):
        subject(kind="rule", name="declares one")(rule)


def fed(draft_tokens: Any, draft_probs: Any, target_probs: Any, *, accept: Any, final: Any) -> None:
    """A rule that is fed its coins."""


SHAPES = {"accept": "[B,K]", "final": "[B]"}


def test_a_rule_that_names_its_coins_gets_those_and_no_generator() -> None:
    subject(kind="rule", name="fed", coins=SHAPES, coin_dtype="float64")(fed)
    coins = load_subject("fed").capabilities.coins
    assert coins is not None
    assert (coins.shapes, coins.dtype, coins.arrays) == (SHAPES, "float64", "torch")
    subject(kind="rule", name="numpy", coins=SHAPES, coin_arrays="numpy")(fed)
    coins = load_subject("numpy").capabilities.coins
    assert coins is not None
    assert (coins.dtype, coins.arrays) == ("float32", "numpy")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"coins": {"accept": "[B,K]"}}, "and accept by name"),
        ({"coins": {**SHAPES, "last": "[B]"}}, "unexpected keyword argument 'last'"),
        ({"coins": {"accept": "[K]"}}, "B first"),
        ({"coins": SHAPES, "coin_dtype": "bfloat16"}, "choose float64 or float32"),
        ({"coins": SHAPES, "coin_arrays": "jax"}, "choose torch or numpy"),
        ({"coin_arrays": "numpy"}, "but no coins"),
        ({"coins": Coins(SHAPES, "float64")}, "coin_dtype='float32'"),
    ],
)
def test_coins_that_fit_no_call_are_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        subject(kind="rule", name="mine", **declared)(fed)


def test_only_a_rule_has_coins() -> None:
    with pytest.raises(UsageError, match="only a rule takes its uniforms"):
        subject(kind="transform", name="mine", coins=SHAPES)(lambda **_: None)


def test_a_transform_may_be_a_class_and_a_builtin_is_taken_at_its_word() -> None:
    class Scale:
        """Scales."""

    subject(kind="transform", name="scale", reference="temperature")(Scale)
    assert isinstance(load_subject("scale"), Subject)
    assert load_subject("scale").reference == "temperature"
    assert load_subject("builtins:max", kind="rule").kind == "rule"
