"""Foreign words, made fit to print."""

import numpy as np
import pytest

from specverify.quoting import a_type, message_of, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï\ttext\nand more", "plain ünï\ttext\nand more"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("bell\x07 back\x08 return\r", "bell back return"),
        ("\x9b31m c1", "31m c1"),
        ("half \udc80", "half ?"),
    ],
)
def test_controls_go_and_text_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_messages_are_cut() -> None:
    assert message_of(ValueError("x" * 1000)) == "x" * 500
    assert message_of(ValueError("x" * 1000), longest=3) == "xxx"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (3, "an int"),
        (np.zeros(1), "an ndarray"),
        (np.uint8(3), "a uint8"),
        (ValueError(), "a ValueError"),
        (OSError(), "an OSError"),
        ("x", "a str"),
        (None, "a NoneType"),
        (object(), "an object"),
    ],
)
def test_types_have_their_article(value: object, named: str) -> None:
    assert a_type(value) == named
