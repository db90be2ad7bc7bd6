"""Settings by name, by file, by JSON, and without what a subject does not honour."""

import json

import pytest

from specverify.certification.presets import CONTRACT_FIELDS, presets, read_settings, restrict
from specverify.errors import SettingsError
from specverify.settings import SamplingSettings

PRESETS = presets(8, 7, (0, 5))


@pytest.mark.parametrize("vocab_size", [1, 2, 8, 50_000])
def test_presets_fit_every_vocabulary(vocab_size):
    made = presets(vocab_size, vocab_size - 1, (0, vocab_size - 1))
    for settings in made.values():
        settings.check_vocabulary(vocab_size)
    assert 1 <= (made["filtered"].top_k or 0) <= max(1, vocab_size - 1)


def test_each_preset_has_an_aim_of_its_own():
    assert PRESETS["plain"] == SamplingSettings()
    assert PRESETS["greedy"].greedy
    assert PRESETS["stopping"].stop_token_ids == (7,)
    assert PRESETS["stopping"].stop_sequences == ((0, 5),)
    assert PRESETS["history"].repetition_penalty > 1
    assert len(set(map(repr, PRESETS.values()))) == len(PRESETS)


class TestRestrict:
    def test_all_honoured(self):
        assert restrict(PRESETS["history"], None) == (PRESETS["history"], [])

    def test_what_is_dropped_is_named(self):
        kept, dropped = restrict(PRESETS["history"], frozenset({"repetition_penalty"}))
        assert kept == SamplingSettings(repetition_penalty=1.2)
        assert dropped == ["frequency_penalty", "no_repeat_ngram_size", "presence_penalty"]

    def test_the_contract_itself_cannot_be_declined(self):
        settings = SamplingSettings(temperature=0.5, max_new_tokens=3)
        assert restrict(settings, frozenset()) == (settings, [])
        assert {"temperature", "max_new_tokens"} <= CONTRACT_FIELDS

    def test_neutral_values_are_not_worth_a_word(self):
        settings = SamplingSettings(top_p=None, presence_penalty=0.0, top_k=3)
        kept, dropped = restrict(settings, frozenset())
        assert dropped == ["top_k"]
        assert kept == SamplingSettings()


class TestReadSettings:
    def test_a_preset(self):
        assert read_settings("filtered", PRESETS) == {"filtered": PRESETS["filtered"]}

    def test_json(self):
        found = read_settings(' {"temperature": 0.7, "stop_token_ids": [3]}', PRESETS)
        assert found == {"custom": SamplingSettings(temperature=0.7, stop_token_ids=(3,))}

    def test_a_file_gives_its_name(self, tmp_path):
        path = tmp_path / "chat.json"
        path.write_text(json.dumps({"top_k": 4}))
        assert read_settings(str(path), PRESETS) == {"chat": SamplingSettings(top_k=4)}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "plane",
                r"no settings named 'plane' \(did you mean 'plain'\?\); choose one of plain",
            ),
            ("{", "not valid JSON"),
            ('{"top_p": 1.5}', r"top_p=1.5"),
            ('{"tempratur": 1}', r"tempratur=1: .* no such field \(did you mean 'temperature'"),
            ('{"topk": 3}', r"topk=3: .* no such field \(did you mean 'top_k'"),
            ('{"self": 3}', r"self=3: .* no such field; the fields are dialect"),
            ("x" * 4000, "cannot be read: File name too long"),
            ("[" * 4000, "not valid JSON"),
            ("[]", r"must be a JSON object of fields, such as .*, not \[\]"),
            ("3", r"must be a JSON object of fields, such as .*, not 3"),
            ("null", r"must be a JSON object of fields, such as .*, not None"),
            ("missing.json", r"no settings file 'missing\.json'.*a preset \(plain, "),
            ("settings/chat", r"no settings file 'settings/chat'"),
            ('{"top_k": 1, "top_k": 2}', "give 'top_k' more than once"),
            ('{"logit_bias": {"1": 1.0, "1": 2.0}}', "give '1' more than once"),
            ('{"top_k": ' + "1" * 5000 + "}", "not valid JSON: Exceeds the limit"),
            ('{"a": ' + "[" * 100_000, "not valid JSON"),
        ],
    )
    def test_anything_else_is_refused(self, text, message):
        with pytest.raises(SettingsError, match=message):
            read_settings(text, PRESETS)

    def test_a_file_that_holds_no_object(self, tmp_path):
        path = tmp_path / "list.json"
        path.write_text("[1]")
        with pytest.raises(SettingsError, match=r"must be a JSON object of fields, .*, not \[1\]"):
            read_settings(str(path), PRESETS)

    def test_a_file_that_is_not_text(self, tmp_path):
        file = tmp_path / "settings.json"
        file.write_bytes(b'\xff\xfe{"top_k": 3}')
        with pytest.raises(SettingsError, match=r"settings\.json' are not text in UTF-8"):
            read_settings(str(file), {})
        file.write_bytes(b'\xef\xbb\xbf{"top_k": 3}')
        assert read_settings(str(file), {}) == {"settings": SamplingSettings(top_k=3)}
