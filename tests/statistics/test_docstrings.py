"""Public docstrings of the statistics package say what is computed, and when it may be believed.

Read from the source, so nothing is imported. Whether a formula or a source is right, no test here
can tell: the tests beside this one compare the code with closed forms and simulations.
"""

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "specverify" / "statistics"
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")

Definition = ast.FunctionDef | ast.ClassDef

DECIDES = re.compile(
    r"test|bound|upper|lower|p_value|[Pp]rocess|log_e|samples_needed|detectable"
    r"|e_value|_p$|_band|chi_squared|homogeneity|holm|hits_to_reject|^rejects$"
    r"|^log_(cells|dirichlet|kt|mixture|independence|threshold)$"
)
"""Names of tests, bounds, e-processes and predictions of power; not of records such as TVBound."""

FORMULA = re.compile(r"\S (=|<=|>=|<|>|~|\+=|\+|-|/|\|\|) \S|\w\^|sum_\w")
SENTENCE = re.compile(r"[.](?=\s|$)")
VALIDITY = re.compile(
    r"\bvalid|\bholds?\b|under the null|\bfixed\b|not a guarantee|probability at most alpha",
    re.IGNORECASE,
)
SOURCE = re.compile(r"\b(1[89]|20)\d\d\b|elementary|union bound|\bProof\b")
"""A year, or the name of an argument in place of a paper."""

REFERENCE = re.compile(r"`(?:\w+\.)*(\w+)`")
"""A name in code; that of another function stands for the source given there."""


def public(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
    """Public functions and classes, and the public methods of these, with their names."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            name = f"{prefix}.{node.name}"
            if not returns_a_field(node):
                yield name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, name)


def returns_a_field(node: Definition) -> bool:
    """Whether this is a property that hands out an attribute and does nothing else."""
    is_property = any(getattr(d, "id", "") == "property" for d in node.decorator_list)
    last = node.body[-1]
    return (
        is_property
        and len(node.body) <= 2
        and isinstance(last, ast.Return)
        and isinstance(last.value, ast.Attribute)
    )


def faults(node: Definition) -> list[str]:
    """What its docstring lacks; arguments, returns and errors do not count as text."""
    docstring = ast.get_docstring(node)
    if not docstring:
        return ["a docstring"]
    text = " ".join(re.split(r"\n\n(?:Args|Returns|Raises):", docstring)[0].split())
    lacking = []
    if not FORMULA.search(text) and len(SENTENCE.findall(text)) < 2:
        lacking.append("a formula or a second sentence")
    if DECIDES.search(node.name):
        if not VALIDITY.search(text):
            lacking.append("validity")
        elsewhere = FUNCTIONS & set(REFERENCE.findall(text)) - {node.name}
        if not SOURCE.search(text) and not elsewhere:
            lacking.append("a source")
    return lacking


DEFINITIONS = dict(
    pair
    for module in MODULES
    for pair in public(ast.parse((FOLDER / f"{module}.py").read_text()).body, module)
)
FUNCTIONS = {node.name for node in DEFINITIONS.values() if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_docstring_says_what_is_computed_and_when_it_holds(name):
    lacking = faults(DEFINITIONS[name])
    assert not lacking, f"the docstring of {name} lacks {' and '.join(lacking)}"


def test_the_package_names_every_module():
    docstring = ast.get_docstring(ast.parse((FOLDER / "__init__.py").read_text())) or ""
    assert set(MODULES) == set(re.findall(r"`(\w+)`", docstring))


def test_a_missing_docstring_is_seen_anywhere():
    for name, node in DEFINITIONS.items():
        bare = copy.copy(node)
        bare.body = node.body[1:]
        assert faults(bare) == ["a docstring"], name


ALL = ["a formula or a second sentence", "validity", "a source"]


@pytest.mark.parametrize(
    ("name", "docstring", "lacking"),
    [
        ("level", "Level of each test.", ALL[:1]),
        ("level", "Level alpha / m.", []),
        ("level", "Level of each test. They share it.", []),
        (
            "level",
            "Level of each test.\n\nArgs:\n    m: tests. Valid, n = 3. Source: 1939.",
            ALL[:1],
        ),
        ("tail_bound", "Bound on the tail.", ALL),
        ("tail_bound", "exp(-G / 2).\n\nReturns:\n    A bound that holds (1900).", ALL[1:]),
        ("tail_bound", "exp(-G / 2), for a fixed n.", ALL[2:]),
        ("tail_bound", "exp(-G / 2), for a fixed n (Hoeffding 1963).", []),
        ("tail_bound", "exp(-G / 2), for a fixed `n` as in `tail_bound`.", ALL[2:]),
        ("tail_bound", "exp(-G / 2), for a fixed n as in `goodness.g_test`.", []),
        ("samples_needed_e", "n = x / KL. Of 2,000 and 1024 runs some were longer.", ALL[1:]),
    ],
)
def test_what_is_asked_of_a_docstring(name, docstring, lacking):
    (node,) = ast.parse(f"def {name}():\n    {docstring!r}").body
    assert isinstance(node, Definition)
    assert faults(node) == lacking


def test_only_a_property_that_hands_out_a_field_goes_without():
    code = """
class A:
    '''A = B.'''
    @property
    def field(self):
        return self._field
    @property
    def square(self):
        return self._field**2
    def method(self):
        return self._field
    def _private(self): ...
    def __add__(self, other): ...
"""
    names = [name for name, _ in public(ast.parse(code).body, "m")]
    assert names == ["m.A", "m.A.square", "m.A.method"]
