import io
import json

from rich.console import Console

from specverify.reporting.power_table import MEANINGS, PowerPlan, PowerRow, print_plan, to_json
from specverify.statistics.budget import Budget
from specverify.statistics.triples import triples

SEEN = PowerRow("leak towards q of", "mixture e-process", "sees", "tokens", 1234, 1234, 0.0213)
NOT = PowerRow(
    "leak towards q of", "mixture e-process", "sees", "tokens", None, None, None, "there is none"
)
BOUND = PowerRow("TV at most", "agnostic bound", "bounds", "first tokens", 10**12, 6 * 10**12, None)


def plan(*rows, vocab_size=8, tokens=None):
    return PowerPlan(vocab_size, 0.02, 1e-6, 10, 0.999, 0.7, 6.0, tokens, rows)


def printed(asked):
    out = io.StringIO()
    print_plan(asked, Console(file=out, width=140))
    return out.getvalue()


def test_counts_and_what_is_seen():
    text = printed(plan(SEEN, BOUND, tokens=5000))
    assert "1,234" in text
    assert "sees 0.021" in text
    assert "at 5,000 tokens" in text
    assert "6.00e+12" in text
    assert "nothing" in text
    assert "there is none" not in text


def test_without_tokens_there_is_no_such_column():
    text = printed(plan(SEEN))
    assert "sees" not in text
    assert "predictions" in text


def test_what_cannot_be_has_a_reason():
    assert "mixture e-process: there is none." in printed(plan(NOT))


def test_the_price_of_the_agnostic_bound_is_said_above_64():
    assert "`preserved` asks" in printed(plan(BOUND, vocab_size=65))
    assert "`preserved` asks" not in printed(plan(BOUND, vocab_size=64))


def test_every_check_has_its_meaning():
    assert {triple.method for triple in triples(8, Budget())} == set(MEANINGS)


def test_json_has_the_numbers_unrounded():
    content = json.loads(to_json(plan(SEEN, NOT)))
    assert content["rows"][0]["at_tokens"] == 0.0213
    assert content["rows"][1]["needed"] is None
    assert content["rows"][0]["meaning"] == MEANINGS["mixture e-process"]
