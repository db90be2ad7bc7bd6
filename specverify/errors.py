"""The errors specverify raises; the class decides the exit code of the command line."""


class SpecverifyError(Exception):
    """Base of every error raised on purpose. `exit_code` is what the command line returns."""

    exit_code = 3


class UsageError(SpecverifyError, ValueError):
    """The caller asked for something impossible: bad settings, an unknown name, a wrong pair.

    Raised before work starts. The message names the offending value and the remedy.
    """

    exit_code = 4


class SettingsError(UsageError):
    """A field of `SamplingSettings` is out of range or contradicts another one."""


class VocabularyMismatch(UsageError):
    """Target and draft do not share their token ids and cannot be mapped onto each other."""


class CacheNotRollable(UsageError):
    """The model's cache cannot forget tokens, so rejected drafts would stay in it."""


class SubjectError(SpecverifyError):
    """The implementation under test raised, or returned something of the wrong shape or range."""


class MalformedOutput(SubjectError):
    """The implementation under test returned something of the wrong type, shape or range."""


class SubjectTimeout(SubjectError):
    """A call into the implementation under test ran past its time limit."""


class CannotSteer(SpecverifyError):
    """The randomness of a subject cannot be followed exactly; sampled evidence still can be had.

    The message names the operation and, where there is one, the line of the subject.
    """


class OutsideRandomness(CannotSteer):
    """Something that is not steered decides, so that nothing computed for the subject holds."""


class CoupledRandomness(CannotSteer):
    """One random number decides twice, in a way that leaves no exact distribution to follow.

    Of the two refusals it is the worse one: what cannot be followed here is a mistake.
    """


class RowsDepend(CannotSteer):
    """What a row of a batch emits depends on the others, so they cannot be followed together."""
