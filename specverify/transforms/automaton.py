"""A finite automaton over token ids, to constrain the output to a regular language."""

from collections import defaultdict
from collections.abc import Hashable, Mapping

from specverify.errors import SettingsError
from specverify.transforms import parameters


class TokenAutomaton:
    """Which tokens may come next, by explicit transitions; fits `SamplingSettings.allowed_tokens`.

    The state is a pure function of the emitted prefix and is never stored, so no rejected token
    can leave a trace in it and nothing needs rolling back.

    Args:
        start: the state before the first emitted token.
        transitions: (state, token id) to the state that follows. A token without a transition
            is forbidden in that state. Give final states a transition on a stop token, or the
            run cannot end there.

    Raises:
        SettingsError: the start state has no transition, or a token id is negative.
    """

    def __init__(
        self, start: Hashable, transitions: Mapping[tuple[Hashable, int], Hashable]
    ) -> None:
        parameters.token_ids("transitions", (token for _, token in transitions))
        allowed: dict[Hashable, list[int]] = defaultdict(list)
        for state, token in transitions:
            allowed[state].append(token)
        if start not in allowed:
            raise SettingsError(
                f"the start state {start!r} has no transition, so no first token is possible; "
                "add one, or name the right start state"
            )
        self.start = start
        self.transitions = dict(transitions)
        self._allowed = {state: tuple(sorted(tokens)) for state, tokens in allowed.items()}

    def __call__(self, emitted: tuple[int, ...]) -> tuple[int, ...]:
        """Token ids that may follow `emitted`; none if it left the language or cannot go on."""
        state = self.start
        for token in emitted:
            if (state, token) not in self.transitions:
                return ()
            state = self.transitions[state, token]
        return self._allowed.get(state, ())
