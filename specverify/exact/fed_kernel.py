"""A verification kernel called with chosen coins, its answers checked and its crashes isolated."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.errors import CannotSteer, SubjectError, SubjectTimeout, UsageError
from specverify.exact.boxes import Ints
from specverify.exact.joint import Tokens
from specverify.exact.round import Round
from specverify.quoting import message_of

_ENTRIES_A_CALL = 1 << 22
_MOST_ROWS_A_CALL = 1 << 14
_ALONE = 16
"""Points evaluated as the only row of a call."""

Feed = Callable[[Ints], dict[str, Any]]
"""Integer coins [N, m] to the keyword arguments of the kernel."""


class FedKernel:
    """Maps draft blocks and integer coins to outcomes: what is emitted, or how the kernel crashes.

    An outcome is an integer, at least 0 for emitted tokens and below 0 for crashes.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        round: Round,
        feed: Feed,
        *,
        numpy_arrays: bool,
        maximum_calls: int,
        rows_per_call: int | None,
    ) -> None:
        self.kernel, self.round, self.feed = kernel, round, feed
        self.numpy_arrays, self.maximum_calls = numpy_arrays, maximum_calls
        self.vocab_size, self.width = round.vocab_size, round.num_draft_tokens + 1
        if (self.vocab_size + 1) ** self.width >= 1 << 62:
            raise UsageError(
                f"{self.width} tokens of a vocabulary of {self.vocab_size} are too many to tell "
                "apart by a 64-bit number; take a smaller round"
            )
        fitting = max(1, _ENTRIES_A_CALL // (self.width * self.vocab_size))
        self.rows_per_call = rows_per_call or min(_MOST_ROWS_A_CALL, fitting)
        self.calls = 0
        self._crashes: dict[tuple[object, ...], int] = {}
        self._texts: list[str] = []
        self._suspects = np.zeros(len(round.blocks), np.bool_)
        self._places = (self.vocab_size + 1) ** np.arange(self.width, dtype=np.int64)

    def outcomes(self, blocks: Ints, points: Ints) -> Ints:
        """Evaluate points.

        Args:
            blocks: [N], indices into `round.blocks`.
            points: [N, m], coins as integers.

        Returns:
            [N].

        Raises:
            SubjectError: the kernel returned no integers [B, K+1] padded right with -1.
            CannotSteer: `maximum_calls` is spent, or a batch raises and neither half of it does.
        """
        codes = np.empty(len(blocks), np.int64)
        # One row that raises costs its whole call: those known to are kept apart.
        suspect = self._suspects[blocks]
        for group in (np.flatnonzero(~suspect), np.flatnonzero(suspect)):
            for start in range(0, len(group), self.rows_per_call):
                part = group[start : start + self.rows_per_call]
                codes[part] = self._isolating(blocks[part], points[part])
        return codes

    def check_rows(
        self, blocks: Ints, points: Ints, generator: np.random.Generator
    ) -> dict[str, str | bytes]:
        """Check that a row's outcome depends on its own arguments and nothing else.

        The same batch is evaluated twice, then in another order, then some of its rows alone.

        Returns:
            States of the global generators, which must not move from now on.

        Raises:
            CannotSteer: an outcome changed, or a global generator moved.
        """
        first = self.outcomes(blocks, points)
        states = _global_states()  # what a kernel does on its first call alone is its own affair
        second = self.outcomes(blocks, points)
        self.check_untouched(states)
        self._check_same(blocks, points, first, second, _HIDDEN)
        order = generator.permutation(len(blocks))
        again = np.empty_like(first)
        again[order] = self.outcomes(blocks[order], points[order])
        self._check_same(blocks, points, first, again, _DEPENDENT)
        some = order[:_ALONE]
        self.confirm(blocks[some], points[some], first[some])
        return states

    def confirm(self, blocks: Ints, points: Ints, codes: Ints) -> None:
        """Check known outcomes, at most 16 of them, on the row alone.

        Raises:
            CannotSteer: a row alone gives another outcome.
        """
        for at in range(min(len(blocks), _ALONE)):
            block, point, code = (a[at : at + 1] for a in (blocks, points, codes))
            alone, again = (self._isolating(block, point) for _ in range(2))
            self._check_same(block, point, alone, again, _HIDDEN)
            self._check_same(block, point, code, alone, _DEPENDENT)

    def check_untouched(self, states: dict[str, str | bytes]) -> None:
        """Check that no global generator moved since `check_rows` returned `states`."""
        now = _global_states()
        moved = [name for name, state in states.items() if now[name] != state]
        if moved:
            raise CannotSteer(
                f"the kernel draws from or seeds {moved[0]}'s global generator, which its coins "
                "do not cover; declare every uniform it uses as a coin"
            )

    def tokens(self, code: int) -> Tokens:
        """The emitted tuple of an outcome of at least 0."""
        emitted = []
        while code:
            code, digit = divmod(code, self.vocab_size + 1)
            emitted.append(digit - 1)
        return tuple(emitted)

    def crash(self, code: int) -> str:
        """What was raised, of an outcome below 0."""
        return self._texts[-1 - code]

    def _isolating(self, blocks: Ints, points: Ints) -> Ints:
        """Evaluate one batch; if it raises, both halves of it on their own."""
        try:
            answer = self._call(blocks, points)
        except (SubjectTimeout, CannotSteer):
            raise
        except Exception as error:
            if len(blocks) == 1:
                self._suspects[blocks] = True
                return np.array([self._crash_code(error)])
            half = len(blocks) // 2
            parts = (slice(half), slice(half, None))
            codes = np.concatenate([self._isolating(blocks[p], points[p]) for p in parts])
            if (codes >= 0).all():
                raise CannotSteer(
                    f"a call of {len(blocks)} rows raises {_described(error)}, and the same rows "
                    "in two calls do not; rows must not depend on the batch they are in"
                ) from error
            return codes
        return self._codes(answer, len(blocks))

    def _call(self, blocks: Ints, points: Ints) -> Any:
        if self.calls >= self.maximum_calls:
            raise CannotSteer(
                f"the boxes of coins are not found after maximum_calls={self.maximum_calls} calls; "
                "allow more, or take a smaller vocabulary or block"
            )
        self.calls += 1
        inputs = self.round.inputs(self.round.blocks[torch.from_numpy(blocks)])
        arguments = [_as_array(tensor) for tensor in inputs] if self.numpy_arrays else inputs
        return self.kernel(*arguments, **self.feed(points))

    def _crash_code(self, error: Exception) -> int:
        """One outcome a place that raises: the message may quote the coins."""
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        frame = root.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = (frame.tb_frame.f_code, frame.tb_lineno) if frame is not None else ()
        key = (type(root), *place)
        if key not in self._crashes:
            self._crashes[key] = -1 - len(self._texts)
            self._texts.append(_described(error))
        return self._crashes[key]

    def _codes(self, answer: Any, rows: int) -> Ints:
        """Check what the kernel returned and number it."""
        tokens = _integers(answer, rows, self.width)
        outside = (tokens < -1) | (tokens >= self.vocab_size)
        if outside.any():
            row, column = np.argwhere(outside)[0].tolist()
            raise SubjectError(
                f"the kernel emitted {int(tokens[row, column])} at [{row}, {column}]; token ids "
                f"run from 0 to {self.vocab_size - 1}, and -1 pads on the right"
            )
        present = tokens >= 0
        broken = (present[:, 1:] & ~present[:, :-1]).any(1) | ~present[:, 0]
        if broken.any():
            row = tokens[int(np.flatnonzero(broken)[0])].tolist()
            raise SubjectError(
                f"the kernel emitted the row {row}; a row holds at least one token, and -1 only "
                "to the right of its tokens"
            )
        return (tokens + 1) @ self._places

    def _check_same(self, blocks: Ints, points: Ints, before: Ints, after: Ints, what: str) -> None:
        differs = np.flatnonzero(before != after)
        if differs.size:
            at = int(differs[0])
            block = tuple(self.round.blocks[int(blocks[at])].tolist())
            raise CannotSteer(
                f"for draft block {block} and the same coins the kernel {self._said(before[at])} "
                f"once and {self._said(after[at])} {what}"
            )

    def _said(self, code: int) -> str:
        code = int(code)
        return f"raised {self.crash(code)}" if code < 0 else f"emitted {self.tokens(code)}"


_HIDDEN = "when called again with the same arguments; it draws from another source than its coins"
_DEPENDENT = "in another batch; its rows depend on each other"


def _described(error: BaseException) -> str:
    said = message_of(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _as_array(tensor: Tensor | None) -> NDArray | None:
    return None if tensor is None else tensor.numpy()


def _integers(answer: Any, rows: int, width: int) -> Ints:
    if isinstance(answer, Tensor):
        answer = answer.detach().cpu().numpy()
    if not isinstance(answer, np.ndarray):
        raise SubjectError(
            f"the kernel returned a {type(answer).__name__}; return the emitted tokens as an "
            f"integer array or tensor [B, K+1], here [{rows}, {width}]"
        )
    if answer.shape != (rows, width) or not np.issubdtype(answer.dtype, np.integer):
        raise SubjectError(
            f"the kernel returned {answer.dtype} of shape {list(answer.shape)}; return the "
            f"emitted tokens as integers [B, K+1], here [{rows}, {width}], padded right with -1"
        )
    return answer.astype(np.int64)


def _global_states() -> dict[str, str | bytes]:
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": str(np.random.get_state(legacy=False)),
        "Python": str(random.getstate()),
    }
