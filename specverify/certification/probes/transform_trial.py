"""What a probed property may do with a transform: build it and call it."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any

from torch import Tensor

from specverify.certification.probes.transform_laws import Parameters
from specverify.certification.probes.trial import Trial
from specverify.certification.registry import Outcome
from specverify.errors import SubjectError
from specverify.subjects.calling import build_transform, call_transform
from specverify.subjects.checks import UndefinedLogits
from specverify.subjects.protocols import Transform

Apply = Callable[[Tensor, Tensor], Tensor]
"""A transform of the subject, called under guard with histories and logits."""


class TransformTrial(Trial):
    """A property of a transform on one of its inputs."""

    @property
    def reference(self) -> str:
        """Name of the transform that the subject claims to equal."""
        return str(self.subject.reference)

    def build(self, **parameters: Any) -> Transform:
        """The transform with these parameters; see `build_transform`."""
        return build_transform(self.subject, time_limit=self.time_limit, **deepcopy(parameters))

    def call(self, transform: Transform, input_ids: Tensor, logits: Tensor) -> Tensor:
        """Logits [B, V] as they were returned, which later calls may change."""
        result = call_transform(
            self.subject,
            transform,
            input_ids,
            logits,
            generator=self.generator(),
            time_limit=self.time_limit,
            copy_result=False,
        )
        self.note(result.findings)
        return result.value

    def accepts(self, parameters: Parameters) -> bool:
        """Whether the transform can be built with these parameters."""
        try:
            self.build(**parameters)
        except SubjectError:
            return False
        return True

    def each(
        self, choices: Iterable[Parameters], check: Callable[[Parameters, Apply], str | None]
    ) -> Outcome:
        """The outcome of a check for every choice of parameters.

        Logits that are NaN, +inf or all masked where a distribution was handed in contradict any
        law, so they are violations here and no error.

        Args:
            choices: parameters to build the transform with.
            check: says what is wrong, or None.
        """
        violations: list[str] = []
        for parameters in choices:
            apply = partial(self.call, self.build(**parameters))
            try:
                said = check(parameters, apply)
            except UndefinedLogits as error:
                said = str(error)
            if said is not None:
                violations.append(f"with {parameters}: {said}")
        return Outcome(violations=tuple(violations))
