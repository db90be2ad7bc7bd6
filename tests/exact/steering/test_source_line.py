import copy
import inspect

import numpy as np
import pytest
import torch

from specverify.exact.steering.source_line import Line, current_line
from tests.exact.steering.following import refused, uniform


def test_line_of_a_caller():
    line = current_line()
    assert line.path == __file__
    assert str(line).endswith(f"test_source_line.py:{line.number}: line = current_line()")


def test_line_without_source():
    assert str(Line("/nowhere/at/all.py", 3)) == "at/all.py:3"


@pytest.mark.parametrize(
    "use",
    [
        lambda u: torch.nn.functional.softplus(u),
        lambda u: torch.special.logit(u),
        lambda u: np.log(u),
        lambda u: copy.deepcopy([u]),
    ],
)
def test_libraries_are_passed_over(use):
    number = inspect.getsourcelines(use)[1]
    refused(lambda g: use(uniform(g, 1)), rf"test_source_line\.py:{number}: ")
