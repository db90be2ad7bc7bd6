"""The public strategies: what they make is valid, and shrinks to what a reader wants to see."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st

from specverify import strategies
from specverify.certification.generated.rows import simplest_row
from specverify.certification.transform_case import PARAMETERS
from specverify.errors import UsageError
from specverify.exact.joint import total_variation
from specverify.exact.round import Round

few = settings(max_examples=25, derandomize=True, database=None, deadline=None)


def smallest(
    strategy: st.SearchStrategy, condition: object = lambda value: True, within: int = 25
) -> object:
    return find(strategy, condition, settings=settings(few, max_examples=within))


class TestRows:
    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_simple_rows_are_exact_and_begin_with_the_simplest(self, size: int) -> None:
        rows = strategies.simple_rows(size, zeros=True)
        assert len(set(rows)) == len(rows)
        for row in rows:
            assert sum(row) == 1
            assert all((entry * 8).is_integer() for entry in row)
        positive = strategies.simple_rows(size)
        assert rows[: len(positive)] == positive
        assert all(min(row) > 0 for row in positive)

    def test_two_tokens_in_order(self) -> None:
        with pytest.raises(UsageError, match="up to 4 tokens"):
            strategies.simple_rows(5)
        assert simplest_row(2) == (0.5, 0.5)
        assert sum(simplest_row(49)) == 1
        assert strategies.simple_rows(2)[:3] == ((0.5, 0.5), (0.75, 0.25), (0.25, 0.75))

    @few
    @given(strategies.distributions())
    def test_distributions_sum_to_exactly_1(self, row: tuple[float, ...]) -> None:
        assert sum(row) == 1
        assert min(row) >= 0

    @few
    @given(strategies.distributions(7, zeros=False))
    def test_large_ones_have_no_zeros_unless_asked(self, row: tuple[float, ...]) -> None:
        assert min(row) > 0
        assert sum(row) == 1

    def test_they_shrink_to_halves(self) -> None:
        assert smallest(strategies.distributions()) == (0.5, 0.5)
        unequal = smallest(strategies.distributions(), lambda row: row[0] != row[1])
        assert unequal == (0.75, 0.25)

    def test_no_tokens_at_all(self) -> None:
        with pytest.raises(UsageError, match="vocab_size=0"):
            strategies.distributions(0)

    @few
    @given(strategies.logit_rows(dtype=torch.float32))
    def test_logits_leave_a_token(self, rows: torch.Tensor) -> None:
        assert rows.dtype == torch.float32
        assert not bool(rows.isnan().any())
        assert bool((rows < torch.inf).all())
        assert bool(rows.isfinite().any(1).all())

    def test_each_kind_of_logits_is_what_it_says(self) -> None:
        masked = smallest(
            strategies.logits(3, kinds=("masked",)), lambda row: bool((row == -torch.inf).any())
        )
        assert int((masked == -torch.inf).sum()) == 1
        assert smallest(strategies.logits(3, kinds=("zeros",))).tolist() == [0.0, 0.0, 0.0]
        peaked = smallest(strategies.logits(3, kinds=("peaked",)))
        assert float(peaked.softmax(0).max()) > 0.99
        dyadic = smallest(strategies.logits(2, kinds=("dyadic",)))
        assert dyadic.softmax(0).tolist() == pytest.approx([0.5, 0.5])
        tied = smallest(strategies.logits(3, kinds=("tied",)))
        assert len(set(tied.tolist())) == 1

    @pytest.mark.parametrize(
        "hard",
        [
            lambda row: len(set(row.tolist())) < len(row),
            lambda row: bool((row == -torch.inf).any()),
            lambda row: bool((row == 0).all()) and len(row) > 2,
            lambda row: float(row.softmax(0).max()) > 1 - 1e-12 and bool(row.isfinite().all()),
        ],
        ids=["ties", "masked", "zeros", "peaked"],
    )
    def test_hard_rows_are_met_within_200_examples(self, hard: object) -> None:
        assert smallest(strategies.logits(), hard, within=200) is not None


class TestPairsOfRows:
    @few
    @given(strategies.row_pairs())
    def test_both_are_distributions(
        self, pair: tuple[tuple[float, ...], tuple[float, ...]]
    ) -> None:
        for row in pair:
            assert sum(row) == pytest.approx(1.0, abs=1e-12)
            assert min(row) >= 0

    def test_the_smallest_of_each_kind(self) -> None:
        half, certain = (0.5, 0.5), (1.0, 0.0)
        expected = {
            "simple": (half, half),
            "equal": (half, half),
            "permuted": (half, half),
            "one-hot draft": (half, certain),
            "one-hot target": (certain, half),
            "any": (half, half),
        }
        for kind, pair in expected.items():
            assert smallest(strategies.row_pairs(kinds=(kind,))) == pair
        target, draft = smallest(strategies.row_pairs(kinds=("disjoint",)))  # type: ignore[misc]
        assert sorted([target, draft]) == [(0.0, 1.0), (1.0, 0.0)]
        target, draft = smallest(strategies.row_pairs(kinds=("close",)))  # type: ignore[misc]
        assert target == half
        assert 0 < half[0] - draft[0] < 1e-15
        target, _ = smallest(strategies.row_pairs(kinds=("peaked",)))  # type: ignore[misc]
        assert target[0] > 0.999

    @pytest.mark.parametrize(
        "hard",
        [
            lambda p, q: p == q,
            lambda p, q: p != q and sorted(p) == sorted(q),
            lambda p, q: all(a == 0 or b == 0 for a, b in zip(p, q, strict=True)),
            lambda p, q: max(p) == 1 and max(q) < 1,
            lambda p, q: max(q) == 1 and max(p) < 1,
            lambda p, q: 1 - 1e-8 < max(p) < 1,
            lambda p, q: 0 < sum(abs(a - b) for a, b in zip(p, q, strict=True)) < 1e-15,
        ],
        ids=["equal", "permuted", "disjoint", "one token", "one draft", "peaked", "an ulp"],
    )
    def test_hard_pairs_are_met_within_200_examples(self, hard: Any) -> None:
        assert smallest(strategies.row_pairs(), lambda pair: hard(*pair), within=200) is not None

    def test_rounds_of_such_rows(self) -> None:
        strategy = strategies.round_tables(kinds=strategies.PAIR_KINDS)
        found = smallest(strategy, lambda tables: tables.target[0] != tables.draft[0])
        assert (found.vocab_size, found.num_draft_tokens) == (2, 1)  # type: ignore[attr-defined]
        tie = smallest(
            strategies.round_tables(kinds=("permuted",)),
            lambda tables: sorted(tables.target[0][0]) != list(tables.target[0][0]),
        )
        assert tie.target[0] == ((0.75, 0.25),)  # type: ignore[attr-defined]

    def test_a_deterministic_draft_is_one_of_the_kinds(self) -> None:
        with pytest.raises(UsageError, match="one_hot or kinds"):
            smallest(strategies.round_tables(one_hot=st.just(True), kinds=strategies.PAIR_KINDS))


class TestTransforms:
    @pytest.mark.parametrize("reference", sorted(PARAMETERS))
    def test_parameters_build_the_reference(self, reference: str) -> None:
        from specverify.transforms import REFERENCE

        @few
        @given(strategies.transform_parameters(reference, 4))
        def built(parameters: dict[str, Any]) -> None:
            assert callable(REFERENCE[reference](**parameters))

        built()

    def test_the_simplest(self) -> None:
        assert smallest(strategies.transform_parameters("top_k", 4)) == {"top_k": 1}
        assert smallest(strategies.transform_parameters("temperature", 4)) == {"temperature": 0.5}

    def test_one_that_is_not_known(self) -> None:
        with pytest.raises(UsageError, match=r"'top_q'.*top_k"):
            strategies.transform_parameters("top_q", 4)

    def test_histories(self) -> None:
        assert smallest(strategies.histories(5)).tolist() == [[0]]  # type: ignore[attr-defined]
        repeated = smallest(
            strategies.histories(5, rows=1), lambda ids: len(set(ids[0].tolist())) < ids.shape[1]
        )
        assert repeated.tolist() == [[0, 0]]  # type: ignore[attr-defined]


class TestRounds:
    @few
    @given(strategies.rounds())
    def test_rows_are_handed_over_as_they_are(self, round: Round) -> None:
        assert 2 <= round.vocab_size <= 4
        assert 1 <= round.num_draft_tokens <= 3
        eighths = round.p(round.num_draft_tokens) * 8
        assert (eighths == eighths.round()).all()

    def test_they_shrink_to_two_tokens_and_one_draft(self) -> None:
        found = smallest(strategies.rounds(), lambda round: round.p(0)[0, 0] != round.q(0)[0, 0])
        assert isinstance(found, Round)
        assert (found.vocab_size, found.num_draft_tokens) == (2, 1)
        assert sorted([found.p(0)[0].tolist(), found.q(0)[0].tolist()]) in (
            [[0.5, 0.5], [0.75, 0.25]],
            [[0.25, 0.75], [0.5, 0.5]],
        )

    @few
    @given(strategies.rounds(one_hot=st.just(True)))
    def test_deterministic_drafts(self, round: Round) -> None:
        tokens, draft, _ = round.inputs(round.blocks)
        assert draft is None
        assert len(tokens) == 1

    @few
    @given(strategies.draft_blocks())
    def test_blocks_are_possible(self, blocks: strategies.DraftBlocks) -> None:
        assert blocks.draft_probs is not None
        drafted = blocks.draft_probs.gather(2, blocks.draft_tokens[..., None])
        assert bool((drafted > 0).all())
        assert blocks.target_probs.shape[1] == blocks.draft_tokens.shape[1] + 1


class TestWorlds:
    @few
    @given(strategies.worlds(rows=st.integers(1, 2)))
    def test_a_world_has_a_distribution(self, world: object) -> None:
        assert sum(world.expected().values()) == pytest.approx(1.0)  # type: ignore[attr-defined]

    def test_they_shrink_to_two_tokens(self) -> None:
        tables = smallest(strategies.world_tables())
        assert isinstance(tables, strategies.WorldTables)
        assert len(tables.target[0]) == 2
        assert (tables.num_draft_tokens, tables.settings.max_new_tokens) == (1, 2)
        assert tables.prompts == ((0,),)
        joint = tables.world.expected()
        assert total_variation(joint, dict.fromkeys(joint, 0.25)) < 1e-12

    def test_worlds_with_other_settings_are_others(self) -> None:
        first = smallest(strategies.world_tables())
        second = smallest(
            strategies.world_tables(
                strategies.settings(2, fields=("top_k",)).filter(
                    lambda contract: contract.top_k == 1
                )
            )
        )
        assert first != second

    @few
    @given(strategies.padded_prompts(3, rows=2))
    def test_padding_is_on_the_left(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        ids, mask = batch
        assert ids.shape == mask.shape
        assert bool((mask.diff(dim=1) >= 0).all())
        assert bool((mask[:, -1] == 1).all())
        assert int(ids.max()) < 3

    @few
    @given(strategies.table_pairs())
    def test_pairs_share_a_vocabulary(self, pair: tuple[object, object]) -> None:
        target, draft = pair
        assert target.vocab_size == draft.vocab_size  # type: ignore[attr-defined]


class TestContracts:
    @few
    @given(strategies.settings(4), strategies.logit_rows(1, 4, kinds=("any", "tied")))
    def test_every_contract_leaves_a_distribution(
        self, contract: object, logits: torch.Tensor
    ) -> None:
        from specverify.transforms.pipeline import Pipeline

        pipeline = Pipeline.from_settings(contract, 4)  # type: ignore[arg-type]
        lengths = torch.tensor([1])
        probs = pipeline.probabilities(
            logits[:, None], torch.zeros(1, 1, dtype=torch.long), lengths, lengths
        )
        assert probs.sum(-1).item() == pytest.approx(1.0)

    def test_the_simplest_contract_is_neutral(self) -> None:
        contract = smallest(strategies.settings(3))
        assert contract.model_dump() == type(contract)(max_new_tokens=4).model_dump()  # type: ignore[union-attr]

    @few
    @given(strategies.schedules(), strategies.pipelines(3))
    def test_schedules_offer_tokens(self, schedule: object, pipeline: object) -> None:
        assert int(schedule.limits(schedule.start(2)).min()) >= 1  # type: ignore[attr-defined]
        assert pipeline is not None


def test_importing_specverify_does_not_load_hypothesis() -> None:
    code = "import sys, specverify, specverify.cli; print('hypothesis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_strategy_is_documented() -> None:
    from pathlib import Path

    page = Path(__file__).resolve().parent.parent / "docs" / "fuzzing.md"
    text = page.read_text(encoding="utf-8")
    for name in strategies.__all__:
        value = getattr(strategies, name)
        assert not callable(value) or value.__doc__
        if name not in ("DraftBlocks", "DraftTree", "RoundTables", "WorldTables"):
            assert f"`{name}`" in text, name


@pytest.mark.parametrize(
    ("strategy", "hard"),
    [
        (strategies.prompts(3, rows=2), lambda found: len(found[0]) != len(found[1])),
        (strategies.padded_prompts(3, rows=2), lambda batch: bool((batch[1] == 0).any())),
        (
            strategies.settings(3),
            lambda contract: contract.stop_sequences and contract.top_k is None,
        ),
        (strategies.schedules(), lambda schedule: int(schedule.limits(schedule.start(1))) == 4),
        (strategies.table_pairs(), lambda pair: bool((pair[0].logits == -torch.inf).any())),
        (strategies.rounds(), lambda round: not round.p(0).all()),
    ],
    ids=["lengths", "padding", "settings", "schedules", "pairs", "rounds"],
)
def test_hard_examples_are_met_within_200(strategy: st.SearchStrategy, hard: object) -> None:
    assert smallest(strategy, hard, within=200) is not None
