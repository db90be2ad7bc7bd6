"""The exact check of one position, held against the exact distribution of small rounds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from specverify.errors import CannotSteer, SubjectError, UsageError
from specverify.exact import Round, compare_round, joint_distribution
from specverify.exact.forcing import Rule
from specverify.exact.large import DraftedPosition, check_position
from specverify.exact.large.check import chunk_size
from specverify.exact.large.from_models import drafted_positions
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.fixtures.pairs.toy import tables
from specverify.verification import get_verification

V = 6
MUTANTS = {mutant.id: mutant for mutant in RULE_MUTANTS if not mutant.one_hot}
AT_ONE_TOKEN = [
    "residual-not-subtracted",
    "correction-next-row",
    "bonus-previous-row",
    "residual-clamped",
    "coin-reused-for-correction",
    "bonus-from-draft",
    "always-accept",
    "lenient",
    "greedy-test",
    "ratio-not-renormalised",
    "coins-in-bfloat16",
    "test-closed",
]
AT_A_LATER_POSITION = [
    "residual-not-subtracted",
    "correction-next-row",
    "correction-next-draft-row",
    "one-coin-per-block",
    "block-stops-at-first-failure",
    "block-coins-from-weights",
    "residual-clamped",
]


def reference(algorithm: str) -> Rule:
    verification = get_verification(algorithm)
    return lambda tokens, q, p, generator: verification(tokens, q, p, generator).tokens


def position_of(round: Round, block: tuple[int, ...], place: int = 0) -> DraftedPosition:
    """Position `place`, from 0, of a round's block; later draft tokens are certain."""

    def row(tables: tuple[Tensor, ...], prefix: tuple[int, ...]) -> Tensor:
        code = 0
        for token in prefix:
            code = code * round.vocab_size + token
        return tables[len(prefix)][code]

    prefix, following = block[:place], block[place + 1 :]

    def after(tokens: Tensor) -> Tensor:
        contexts = [
            [(*prefix, token, *following[:n]) for n in range(len(following) + 1)]
            for token in tokens.tolist()
        ]
        return torch.stack(
            [torch.stack([row(round.handed_target, c) for c in rows]) for rows in contexts]
        )

    target = torch.stack([row(round.handed_target, prefix[:n]) for n in range(place + 1)])
    draft = torch.stack([row(round.handed_draft, prefix[:n]) for n in range(place + 1)])
    return DraftedPosition(target, draft, after, prefix, following)


def one_chunk_each(position: DraftedPosition, tokens: int = 2) -> int:
    """Memory for so many draft tokens a chunk."""
    memory = 1
    while True:
        try:
            if chunk_size(position, memory) == tokens:
                return memory
        except UsageError:
            pass
        memory += 500


@pytest.mark.parametrize("name", AT_ONE_TOKEN)
def test_one_draft_token_brackets_the_whole_distribution(name: str) -> None:
    round = Round.random(V, 1, seed=3)
    subject = MUTANTS[name].subject
    exact = compare_round(round, joint_distribution(subject, round).probabilities)
    result = check_position(subject.call, position_of(round, (0,)))
    assert exact.total_variation > 1e-9
    assert result.token_deviation == pytest.approx(exact.first_token_total_variation, abs=1e-14)
    assert result.lower - 1e-14 <= exact.total_variation <= result.upper + 1e-14
    assert result.lower > 1e-9
    if result.token_deviation < 1e-14 or result.next_deviation < 1e-14:
        assert result.upper == pytest.approx(exact.total_variation, abs=1e-13)
    assert result.largest_ratio == pytest.approx(exact.largest_ratio, rel=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "count"),
    [("token", 1), ("token", 2), ("token", 3), ("block", 2), ("block", 3), ("match", 1)],
)
def test_right_rules_pass_at_every_position(algorithm: str, count: int) -> None:
    round = Round.random(V, count, seed=count)
    for place in range(count):
        result = check_position(reference(algorithm), position_of(round, (2, 4, 1)[:count], place))
        assert result.upper < 1e-13
        assert result.largest_ratio == pytest.approx(1, abs=1e-11)
        assert result.reach > 0.1
        assert result.outside_mass == result.missing == result.unchecked == 0


@pytest.mark.parametrize("name", AT_A_LATER_POSITION)
def test_mistakes_in_longer_blocks_are_found(name: str) -> None:
    round = Round.random(V, 3, seed=1)
    found = [
        check_position(MUTANTS[name].subject.call, position_of(round, (2, 4, 1), place)).lower
        for place in range(3)
    ]
    assert max(found) > 1e-7


def test_a_prefix_that_is_never_emitted_leaves_nothing_to_compare() -> None:
    round = Round.random(V, 2, seed=1)
    position = position_of(round, (2, 4), 1)
    target = position.target.clone()
    target[0, 2] = 0
    target[0] /= target[0].sum()
    result = check_position(reference("token"), replace(position, target=target))
    assert (result.reach, result.upper) == (0.0, 0.0)


@pytest.mark.parametrize("algorithm", ["token", "block"])
def test_float32_rows_deviate_by_their_rounding_alone(algorithm: str) -> None:
    round = Round.random(V, 1, seed=2, dtype=torch.float32)
    assert check_position(reference(algorithm), position_of(round, (0,))).upper < 1e-7


def test_mass_outside_the_support_is_named() -> None:
    round = Round.random(V, 1, seed=2)
    position = position_of(round, (0,))
    target = position.target.clone()
    target[0, 3] = 0
    target[0] /= target[0].sum()
    position = replace(position, target=target)
    wrong = check_position(MUTANTS["residual-clamped"].subject.call, position)
    assert [entry.token for entry in wrong.outside_support] == [3]
    assert wrong.outside_mass == wrong.outside_support[0].mass > 1e-8
    assert wrong.largest_ratio == torch.inf
    assert check_position(reference("token"), position).outside_mass == 0


def test_followers_outside_the_support_count() -> None:
    whole = position_of(Round.random(V, 1, seed=2), (0,))

    def after(tokens: Tensor) -> Tensor:
        rows = whole.after(tokens).clone()
        rows[..., 1] = 0
        return rows / rows.sum(-1, keepdim=True)

    position = replace(whole, after=after)
    wrong = check_position(MUTANTS["bonus-previous-row"].subject.call, position)
    assert wrong.outside_support == ()
    assert wrong.outside_mass > 0.01
    assert wrong.largest_ratio == torch.inf
    assert check_position(reference("token"), position).outside_mass == 0


def test_rounds_without_tokens_are_missing() -> None:
    def nothing(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        return torch.full((len(tokens), tokens.shape[1] + 1), -1)

    result = check_position(nothing, position_of(Round.random(V, 1), (0,)))
    assert (result.missing, result.lower, result.upper) == (1.0, 1.0, 1.0)


def test_ids_outside_the_vocabulary_are_outside_the_support() -> None:
    def beyond(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        return torch.cat([torch.full_like(tokens[:, :1], V), tokens * 0 - 1], 1)

    result = check_position(beyond, position_of(Round.random(V, 1), (0,)))
    assert [(e.token, round(e.mass, 12)) for e in result.outside_support] == [(-1, 1.0)]
    assert result.lower == pytest.approx(1.0)


def test_a_bonus_behind_a_correction_is_reported_as_not_compared() -> None:
    """A token of the target's own, one of the row behind it; right only where rows are alike."""

    def goes_on(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        return torch.cat([torch.multinomial(p[:, n], 1, generator=generator) for n in (0, 1)], 1)

    round = Round.random(V, 1, seed=4)
    exact = compare_round(round, joint_distribution(goes_on, round).probabilities)
    result = check_position(goes_on, position_of(round, (0,)))
    assert result.unchecked == pytest.approx(1.0)
    assert result.lower < 1e-12 < 0.1 < exact.total_variation <= result.upper


def test_tokens_behind_another_than_the_drafted_one_are_bounded() -> None:
    """Emits draft token 0 always and the bonus token of the drafted one behind it."""

    def stray(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        return torch.cat([tokens * 0, torch.multinomial(p[:, 1], 1, generator=generator)], 1)

    round = Round.random(V, 1, seed=4)
    exact = compare_round(round, joint_distribution(stray, round).probabilities)
    result = check_position(stray, position_of(round, (0,)))
    assert result.stray_deviation > 0.1
    assert result.lower <= exact.total_variation <= result.upper


def raising_for(token: int) -> Rule:
    rule = reference("token")

    def call(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        if bool((tokens == token).any()):
            raise ZeroDivisionError("no")
        return rule(tokens, q, p, generator)

    return call


def test_crashes_are_traced_to_their_draft_tokens() -> None:
    round = Round.random(V, 1, seed=2)
    result = check_position(raising_for(4), position_of(round, (0,)))
    assert result.crashes == {"ZeroDivisionError: no": pytest.approx(round.q(0)[0, 4])}
    assert result.reach == pytest.approx(1 - round.q(0)[0, 4])


def test_a_rule_that_always_raises_is_told_at_once() -> None:
    calls = 0

    def broken(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        nonlocal calls
        calls += 1
        raise TypeError("no")

    with pytest.raises(SubjectError, match="each of 6 draft tokens tried: TypeError"):
        check_position(broken, position_of(Round.random(V, 1), (0,)))
    assert calls < 20


def test_one_row_a_call() -> None:
    widths = set()

    def single(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        widths.add(len(tokens))
        return reference("token")(tokens, q, p, generator)

    result = check_position(single, position_of(Round.random(V, 1), (0,)), batch=False)
    assert widths == {1}
    assert result.upper < 1e-13


def test_rows_that_share_a_coin_are_refused() -> None:
    def shared(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        coin = torch.rand((), dtype=p.dtype, generator=generator)
        kept = coin < p[:, 0].gather(1, tokens) / 2
        last = torch.multinomial(p[:, 0], 1, generator=generator)
        return torch.cat([tokens.where(kept, last), last.where(kept, -1)], 1)

    with pytest.raises(CannotSteer):
        check_position(shared, position_of(Round.random(V, 1), (0,)))


def test_a_row_that_looks_at_the_others_is_refused() -> None:
    def together(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        kept = torch.rand(len(tokens), 1, dtype=p.dtype, generator=generator) < 0.5
        last = torch.multinomial(p[:, 1], 1, generator=generator)
        return torch.cat([tokens.where(kept.all(), last), last.where(kept, -1)], 1)

    with pytest.raises(CannotSteer):
        check_position(together, position_of(Round.random(V, 1), (0,)))


def test_wrong_output_is_the_subjects_error() -> None:
    position = position_of(Round.random(V, 1), (0,))
    with pytest.raises(SubjectError, match="padded right"):
        check_position(lambda tokens, q, p, generator: tokens, position)
    with pytest.raises(SubjectError, match="padding"):
        check_position(
            lambda tokens, q, p, generator: torch.cat([tokens * 0 - 1, tokens], 1), position
        )


class Interrupting:
    """The reference rule, interrupted at one of its calls."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return MUTANTS["residual-not-subtracted"].subject.call(tokens, q, p, generator)


@pytest.mark.parametrize("call", [1, 3, 6])
def test_an_interrupted_check_continues_bit_by_bit(tmp_path: Path, call: int) -> None:
    position = position_of(Round.random(V, 1, seed=5), (0,))
    memory = one_chunk_each(position)
    rule = MUTANTS["residual-not-subtracted"].subject.call
    whole = check_position(rule, position, memory=memory)
    counted = Interrupting(-1)
    check_position(counted, position, memory=memory)
    file = tmp_path / "deep" / "progress.npz"
    steps: list[tuple[int, int]] = []

    def check(rule: Rule) -> object:
        return check_position(
            rule,
            position,
            memory=memory,
            resume=file,
            progress=lambda done, total: steps.append((done, total)),
        )

    before_chunks = -1 - counted.left - whole.runs
    with pytest.raises(KeyboardInterrupt):
        check(Interrupting(before_chunks + call))
    done = steps[-1][0] if steps else 0
    assert 0 <= done < V
    steps.clear()
    assert check(rule) == whole
    assert steps[0] == (done + 2, V)
    assert check(rule) == whole
    assert len(list(file.parent.iterdir())) == 1


@pytest.mark.parametrize("change", ["rule", "rows", "chunk", "seed", "garbage"])
def test_progress_of_another_computation_is_refused(tmp_path: Path, change: str) -> None:
    position = position_of(Round.random(V, 1, seed=5), (0,))
    file = tmp_path / "progress.npz"

    def check(position: DraftedPosition = position, **options: object) -> None:
        check_position(reference("token"), position, resume=file, **{"name": "a"} | options)  # pyright: ignore

    check()
    content = file.read_bytes()
    actions: dict[str, Callable[[], object]] = {
        "rule": lambda: check(name="b"),
        "rows": lambda: check(position_of(Round.random(V, 1, seed=6), (0,))),
        "chunk": lambda: check(memory=one_chunk_each(position)),
        "seed": lambda: check(seed=1),
        "garbage": lambda: check(),
    }
    if change == "garbage":
        file.write_bytes(content := content[:100])
    differing = {
        "rule": "another check: subject is a there and b here; ",
        "rows": "another check: distributions is .* there",
        "chunk": "another check: chunk size is .* there and 2 here; ",
        "seed": "another check: seed is 0 there and 1 here; ",
        "garbage": "holds no progress",
    }
    with pytest.raises(UsageError, match=f"{differing[change]}.*delete it"):
        actions[change]()
    assert file.read_bytes() == content


def test_memory_bounds_the_rows_of_a_call() -> None:
    position = position_of(Round.random(V, 1), (0,))
    widths: list[int] = []

    def rule(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        widths.append(len(tokens))
        return reference("token")(tokens, q, p, generator)

    check_position(rule, position, memory=one_chunk_each(position, 4), batch=True)
    assert set(widths[-4:]) == {4, 3}  # two tokens left, which is a dimension of the block
    with pytest.raises(UsageError, match="not a single row"):
        check_position(rule, position, memory=100)


def test_bad_positions_are_refused() -> None:
    position = position_of(Round.random(V, 2), (0, 1))
    with pytest.raises(UsageError, match="target is"):
        replace(position, prefix=(1,))
    with pytest.raises(UsageError, match="no distributions"):
        replace(position, target=position.target * 2)
    with pytest.raises(UsageError, match="token 6"):
        replace(position, following=(6,))
    with pytest.raises(UsageError, match="`after` returned"):
        replace(position, following=()).rows_after(torch.tensor([0]))


@pytest.mark.slow
def test_a_real_vocabulary() -> None:
    """More probabilities than `multinomial` really draws from while it is steered."""
    size, drafted = 30_000, 40
    generator = Generator().manual_seed(0)
    rows = torch.randn(drafted + 2, size, generator=generator).mul_(3)
    rows[1, drafted:] = -torch.inf
    p, q, after = rows.softmax(-1).split([1, 1, drafted])

    def rule_of(residual: Callable[[Tensor, Tensor], Tensor]) -> Rule:
        def rule(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
            assert q is not None
            x = tokens.unsqueeze(2)
            ratio = (p[:, :1].gather(2, x) / q.gather(2, x)).squeeze(2)
            kept = torch.rand(ratio.shape, dtype=p.dtype, generator=generator) < ratio
            weights = torch.where(kept, p[:, 1], residual(p[:, 0], q[:, 0]))
            last = torch.multinomial(weights, 1, generator=generator)
            return torch.cat([tokens.where(kept, last), last.where(kept, -1)], 1)

        return rule

    position = DraftedPosition(p, q, lambda tokens: after[tokens].unsqueeze(1))
    right = check_position(rule_of(lambda p, q: (p - q).clamp(min=0)), position)
    assert right.upper < 1e-6
    assert right.runs == 2
    wrong = check_position(rule_of(lambda p, q: (p - q).clamp(min=1e-7)), position)
    clamped = (p.double() - q.double()).clamp(min=0)
    floored = clamped.clamp(min=1e-7)
    gap = (clamped / clamped.sum() - floored / floored.sum()).abs().sum() / 2
    assert wrong.token_deviation == pytest.approx(float(gap * clamped.sum()), rel=1e-2)


class TestFromModels:
    def test_rows_are_those_of_the_models(self) -> None:
        target, draft = tables()
        prompt = (0, 5)
        first, second, third = drafted_positions(
            target, draft, prompt, 3, seed=2, dtype=torch.float64
        )
        assert [p.num_draft_tokens for p in (first, second, third)] == [3, 3, 3]
        assert first.following == (third.prefix[1], *second.following)
        assert second.prefix == third.prefix[:1]
        for position in (first, second, third):
            context = torch.tensor([[*prompt, *position.prefix]])
            for model, rows in ((target, position.target), (draft, position.draft)):
                session = model.start(context)
                expected = session.extend(context[:, -1:])[0, -1].double().softmax(-1)
                torch.testing.assert_close(rows[-1], expected)

    def test_rows_after_follow_each_token(self) -> None:
        target, draft = tables()
        position = drafted_positions(target, draft, (0, 5), 2, dtype=torch.float64)[0]
        tokens = torch.arange(target.vocab_size).repeat(5)
        rows = position.rows_after(tokens)
        for index in (0, 3, len(tokens) - 1):
            context = torch.tensor([[0, 5, int(tokens[index]), *position.following]])
            session = target.start(context[:, :2])
            expected = session.extend(context[:, 1:])[0, 1:].double().softmax(-1)
            torch.testing.assert_close(rows[index], expected)

    def test_more_blocks_have_prefixes_of_their_own(self) -> None:
        found = drafted_positions(*tables(), (0, 5), 2, samples=3)
        assert [len(position.prefix) for position in found] == [0, 1, 1, 1]
        assert len({position.prefix for position in found[1:]}) > 1

    def test_the_reference_passes_and_a_mutant_fails(self) -> None:
        for position in drafted_positions(*tables(), (0, 5), 2, samples=2):
            assert check_position(reference("block"), position).upper < 1e-6
            wrong = MUTANTS["residual-not-subtracted"].subject.call
            assert check_position(wrong, position).lower > 1e-6
