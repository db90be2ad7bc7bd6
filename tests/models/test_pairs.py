import pickle
import shutil
import sys
from importlib.metadata import EntryPoint

import pytest

from specverify import lookup
from specverify.errors import UsageError, VocabularyMismatch
from specverify.models import pairs
from specverify.models.glass_box import GlassBoxModel
from specverify.models.mapped import MappedModel
from specverify.models.pairs import Pair, load_pair, pair_names
from specverify.models.table import TableModel
from specverify.models.vocabulary import Vocabulary


def tables(model_class):
    return TableModel.random(3, 1, 0), TableModel.random(3, 1, 1)


def known(target, draft):
    def load(model_class):
        return tuple(
            TableModel(TableModel.random(3, 1, 0).logits, 1, vocabulary=Vocabulary(tuple(words)))
            for words in (target, draft)
        )

    return Pair(
        "known", "", ((0,),), load, read_vocabularies=lambda: tuple(m.vocabulary for m in load(""))
    )


PLAIN = Pair("plain", "two tables", ((0,), (1, 2)), tables)


@pytest.fixture
def registered(monkeypatch):
    """Registers two pairs for the time of a test, one of them wrongly."""
    monkeypatch.setitem(sys.modules, "pairs_for_tests", sys.modules[__name__])
    entries = [
        EntryPoint("plain", "pairs_for_tests:PLAIN", pairs.GROUP),
        EntryPoint("broken", "pairs_for_tests:ABSENT", pairs.GROUP),
    ]
    monkeypatch.setattr(lookup, "entry_points", lambda group: entries)


def test_open_returns_the_models_of_a_class():
    target, draft = PLAIN.open("language_model")
    assert target.vocab_size == draft.vocab_size == 3
    assert PLAIN.vocabularies == (None, None)
    assert PLAIN.relation is None


def test_an_unknown_model_class_is_refused():
    with pytest.raises(UsageError, match="'gguf'; it offers language_model, transformers"):
        PLAIN.open("gguf")  # type: ignore[arg-type]


def test_a_permuted_draft_opens_as_language_model_only():
    pair = known("abc", "bca")
    assert isinstance(pair.open("language_model")[1], MappedModel)
    with pytest.raises(UsageError, match="can only be opened as 'language_model'"):
        pair.open("transformers")


def test_shared_ids_open_as_anything():
    pair = known("abc", "abc")
    assert len(pair.open("transformers")) == 2
    assert not isinstance(pair.open("language_model")[1], MappedModel)


@pytest.mark.parametrize("model_class", ["language_model", "transformers"])
def test_models_without_vocabularies_need_one_size(model_class):
    def load(model_class):
        models = [TableModel.random(size, 1, 0) for size in (3, 4)]
        if model_class == "language_model":
            return models
        return [GlassBoxModel.from_table(model) for model in models]

    with pytest.raises(VocabularyMismatch, match="the target has 3 token ids, the draft 4"):
        Pair("sizes", "", (), load).open(model_class)


def test_different_vocabularies_never_open():
    for model_class in ("language_model", "transformers"):
        with pytest.raises(VocabularyMismatch, match="'c' in the target and 'x' in the draft"):
            known("abc", "abx").open(model_class)


def test_one_vocabulary_is_not_enough():
    pair = Pair("half", "", (), tables, read_vocabularies=lambda: (Vocabulary(("a",)), None))
    with pytest.raises(VocabularyMismatch, match="no vocabulary for its draft"):
        pair.open("transformers")


def test_registered_names(registered):
    assert pair_names() == ("broken", "plain")
    assert load_pair("plain") is PLAIN


def test_an_unknown_name_lists_the_known_ones(registered):
    with pytest.raises(UsageError) as caught:
        load_pair("plan")
    assert "unknown pair 'plan' (did you mean 'plain'?); choose one of broken, plain" in str(
        caught.value
    )
    with pytest.raises(UsageError) as caught:
        load_pair("zzz")
    assert "did you mean" not in str(caught.value)


def test_by_module(registered):
    assert load_pair("pairs_for_tests:PLAIN") is PLAIN


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("broken", "ABSENT"),
        ("no_such_module:PAIR", "there is no module .no_such_module."),
        ("pairs_for_tests:ABSENT", "ABSENT"),
        ("pairs_for_tests:tables", "names a function, not a Pair"),
        (":PAIR", "cannot read"),
    ],
)
def test_what_cannot_be_loaded_says_why(registered, spec, message):
    with pytest.raises(UsageError, match=message):
        load_pair(spec)


def test_modules_of_the_current_folder_are_found(tmp_path, monkeypatch):
    (tmp_path / "my_pairs_for_tests.py").write_text(
        "from specverify.models.pairs import Pair\nPAIR = Pair('mine', '', (), None)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert load_pair("my_pairs_for_tests:PAIR").name == "mine"


def test_directories_that_hold_no_model(tmp_path):
    with pytest.raises(UsageError, match="absent is not a directory"):
        load_pair(f"{tmp_path}/absent,{tmp_path}")
    with pytest.raises(UsageError, match=r"has no config.json; .*save_pretrained"):
        load_pair(f"{tmp_path},{tmp_path}")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, make_tiny):
    """Directories of a Llama with tokenizers: `target`, `same`, and `permuted` ids."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("models")
    words = ["<unk>", *"abcdefghijklmno"]
    orders = {"target": words, "same": words, "permuted": ["<unk>", *reversed(words[1:])]}
    for name, order in orders.items():
        make_tiny("llama").save_pretrained(root / name)
        backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(order)}, "<unk>"))
        PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained(
            root / name
        )
    make_tiny("llama").save_pretrained(root / "bare")
    return root


def test_two_directories(saved):
    pair = load_pair(f"{saved}/target,{saved}/same")
    assert pair.name == "target,same"
    assert len(pair.prompts) > 1
    target, draft = pair.open("transformers")
    assert type(target).__name__ == type(draft).__name__ == "LlamaForCausalLM"
    wrapped, _ = pair.open("language_model")
    assert wrapped.vocabulary == pair.vocabularies[0]
    assert wrapped.vocabulary.tokens[16] is None  # logits of 17, tokenizer of 16
    assert pickle.loads(pickle.dumps(pair)).prompts == pair.prompts


def test_a_directory_with_permuted_ids(saved):
    pair = load_pair(f"{saved}/target,{saved}/permuted")
    assert isinstance(pair.open("language_model")[1], MappedModel)
    with pytest.raises(UsageError, match="can only be opened"):
        pair.open("transformers")


def test_a_directory_without_tokenizer(saved):
    with pytest.raises(UsageError, match=r"bare has no tokenizer that loads"):
        load_pair(f"{saved}/bare,{saved}/same")


@pytest.mark.parametrize(
    ("damaged", "keep", "message"),
    [
        ("model.safetensors", 1000, "cannot be read .SafetensorError"),
        ("config.json", 100, "cannot be read .JSONDecodeError"),
        ("config.json", 0, "cannot be read .JSONDecodeError"),
        ("tokenizer.json", 50, "has no tokenizer that loads"),
    ],
)
@pytest.mark.parametrize("model_class", ["language_model", "transformers"])
def test_a_damaged_file_is_named(saved, tmp_path, model_class, damaged, keep, message):
    target = shutil.copytree(saved / "target", tmp_path / "target")
    file = target / damaged
    file.write_bytes(file.read_bytes()[:keep])
    named = "target" if damaged == "tokenizer.json" else damaged
    with pytest.raises(UsageError, match=rf"{named} {message}"):
        load_pair(f"{saved}/same,{target}").open(model_class)


def test_a_config_that_describes_no_model(saved, tmp_path):
    target = shutil.copytree(saved / "target", tmp_path / "target")
    (target / "config.json").write_text("[]")
    with pytest.raises(UsageError, match=r"config\.json holds a JSON list, not an object"):
        load_pair(f"{target},{target}")
    (target / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(UsageError, match=r"target cannot be read \(.*nonsense"):
        load_pair(f"{target},{target}").open("language_model")
