"""Draft trees that are drawn: valid, of every shape, and small once they have shrunk."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st

from specverify import strategies
from specverify.certification.generated.trees import ROOT, DraftTree
from specverify.errors import UsageError

few = settings(max_examples=40, derandomize=True, database=None, deadline=None)
HALF = (0.5, 0.5)
SMALLEST = DraftTree((0,), (ROOT,), (HALF, HALF), (HALF, HALF))


def smallest(
    strategy: st.SearchStrategy[DraftTree],
    condition: Callable[[DraftTree], bool] = lambda tree: True,
    within: int = 200,
) -> DraftTree:
    return find(strategy, condition, settings=settings(few, max_examples=within))


def check(tree: DraftTree) -> None:
    """All that a kernel relies on."""
    assert tree.num_nodes == len(tree.parents) >= 1
    assert tree.target_probs.shape == (tree.num_nodes + 1, tree.vocab_size)
    assert tree.draft_probs.shape == tree.target_probs.shape
    for row in (*tree.target, *tree.draft):
        assert min(row) >= 0
        assert sum(row) == pytest.approx(1.0, abs=1e-12)
    seen: dict[tuple[int, ...], tuple[object, object]] = {(): (tree.target[0], tree.draft[0])}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        assert ROOT <= parent < node
        assert tree.draft[parent + 1][token] > 0
        rows = tree.target[node + 1], tree.draft[node + 1]
        assert seen.setdefault(tree.paths[node], rows) == rows


class TestValid:
    @few
    @given(strategies.trees())
    def test_every_tree_is_one(self, tree: DraftTree) -> None:
        check(tree)
        assert tree.distinct
        assert tree.num_nodes <= 8
        assert max(tree.depth, tree.width) <= 3
        assert 2 <= tree.vocab_size <= 4

    @few
    @given(strategies.trees(distinct=False, depth=2, width=4, nodes=6))
    def test_so_are_those_with_equal_siblings(self, tree: DraftTree) -> None:
        check(tree)
        assert tree.num_nodes <= 6
        assert tree.depth <= 2
        assert tree.width <= 4

    @few
    @given(strategies.trees(kinds=strategies.PAIR_KINDS, vocab_sizes=st.integers(5, 6)))
    def test_so_are_those_of_related_rows(self, tree: DraftTree) -> None:
        check(tree)
        assert tree.vocab_size in (5, 6)

    @few
    @given(strategies.trees(distinct=False, zeros=False, dtypes=("float32",)))
    def test_tensors_say_what_the_numbers_say(self, tree: DraftTree) -> None:
        assert tree.target_probs.dtype == torch.float32
        assert bool((tree.draft_probs > 0).all())
        assert tree.token_ids.tolist() == list(tree.tokens)
        assert tree.parent_indices.tolist() == list(tree.parents)
        drawn = tree.draft_probs[tree.parent_indices + 1]
        assert drawn.shape == (tree.num_nodes, tree.vocab_size)
        for node, path in enumerate(tree.paths):
            seen = tree.attention_mask[node].nonzero()[:, 0].tolist()
            assert [tree.tokens[one] for one in seen] == list(path)
        assert sorted(node for under in tree.children for node in under) == list(
            range(tree.num_nodes)
        )


class TestShapes:
    @few
    @given(strategies.trees(shapes=("chain",), depth=4))
    def test_a_chain_is_one_path(self, tree: DraftTree) -> None:
        assert tree.parents == tuple(range(-1, tree.num_nodes - 1))
        assert tree.depth == tree.num_nodes <= 4

    @few
    @given(strategies.trees(shapes=("star",), zeros=False))
    def test_a_star_has_leaves_alone(self, tree: DraftTree) -> None:
        assert set(tree.parents) == {ROOT}
        assert 2 <= tree.width == tree.num_nodes <= 3

    @pytest.mark.parametrize(
        "hard",
        [
            lambda tree: tree.depth == tree.num_nodes == 3,
            lambda tree: tree.width == tree.num_nodes == 3,
            lambda tree: tree.width == 2 < tree.depth < tree.num_nodes - 1,
            lambda tree: tree.parents != tuple(sorted(tree.parents)),
            lambda tree: 0.0 in tree.draft[0],
        ],
        ids=["chain", "star", "uneven", "not by breadth", "impossible token"],
    )
    def test_hard_trees_are_met_within_200(self, hard: Callable[[DraftTree], bool]) -> None:
        met = smallest(strategies.trees(), lambda tree: tree.num_nodes >= 3 and hard(tree))
        check(met)

    def test_equal_siblings_are_met_where_they_may_be(self) -> None:
        met = smallest(strategies.trees(distinct=False), lambda tree: not tree.distinct)
        assert met.tokens == (0, 0)
        assert met.parents == (ROOT, ROOT)
        assert met.vocab_size == 2

    def test_equal_siblings_with_children_share_their_rows(self) -> None:
        def twice(tree: DraftTree) -> bool:
            return len(set(tree.paths)) < tree.num_nodes and tree.target[1] != HALF

        check(smallest(strategies.trees(distinct=False), twice))


class TestShrinking:
    def test_to_one_token_of_two(self) -> None:
        assert smallest(strategies.trees()) == SMALLEST
        assert smallest(strategies.trees(distinct=False, kinds=("simple",))) == SMALLEST
        related = smallest(strategies.trees(kinds=strategies.PAIR_KINDS))
        assert (related.num_nodes, related.vocab_size) == (1, 2)

    def test_to_a_chain(self) -> None:
        for shapes in (strategies.TREE_SHAPES, ("any",)):
            found = smallest(strategies.trees(shapes=shapes), lambda tree: tree.num_nodes >= 3)
            assert found.parents == (ROOT, 0, 1)
            assert found.tokens == (0, 0, 0)
            assert set(found.target) == set(found.draft) == {HALF}

    def test_to_round_probabilities(self) -> None:
        found = smallest(strategies.trees(), lambda tree: tree.target[0] != tree.draft[0])
        assert (found.num_nodes, found.vocab_size) == (1, 2)
        assert {entry * 4 % 1 for row in (*found.target, *found.draft) for entry in row} == {0.0}

    def test_a_star_to_two_leaves(self) -> None:
        found = smallest(strategies.trees(shapes=("star",)), lambda tree: tree.num_nodes > 1)
        assert (found.tokens, found.parents) == ((0, 1), (ROOT, ROOT))


class TestErrors:
    @pytest.mark.parametrize("limit", ["depth", "width", "nodes"])
    def test_limits_that_leave_no_node(self, limit: str) -> None:
        with pytest.raises(UsageError, match=rf"{limit}=0; .*give 1"):
            strategies.trees(**{limit: 0})

    def test_names_that_are_not_known(self) -> None:
        with pytest.raises(UsageError, match=r"no shape 'chian' .*'chain'.*star"):
            strategies.trees(shapes=("chian",))
        with pytest.raises(UsageError, match=r"no kind 'peeked' .*'peaked'"):
            strategies.trees(kinds=("peeked",))
        with pytest.raises(UsageError, match=r"shapes is empty; .*chain"):
            strategies.trees(shapes=())

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"tokens": ()}, "0 tokens, 1 parents, 2 rows"),
            ({"parents": (ROOT, 0)}, "1 tokens, 2 parents"),
            ({"target": (HALF,)}, "1 rows of the target and 2 of the draft"),
            ({"draft": (HALF, (0.5, 0.25, 0.25))}, r"rows have \[2, 3\] entries"),
            ({"parents": (0,)}, r"parents\[0\]=0; a parent comes before its child"),
            ({"parents": (-2,)}, r"parents\[0\]=-2"),
            ({"tokens": (2,)}, r"tokens\[0\]=2 lies outside 0 to 1"),
        ],
    )
    def test_numbers_that_are_no_tree(self, change: dict[str, object], told: str) -> None:
        whole = {name: getattr(SMALLEST, name) for name in ("tokens", "parents", "target", "draft")}
        with pytest.raises(UsageError, match=told):
            DraftTree(**whole | change)
