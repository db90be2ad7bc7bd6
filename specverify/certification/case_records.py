"""The parts of a certificate: what one case was, and what every test on it found.

Records are frozen pydantic models that forbid unknown fields. Infinite numbers are written as the
strings "Infinity" and "-Infinity".
"""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from specverify.certification.verdict import SMALL, Verdict

Evidence = Literal["exact", "sampled", "structural"]
Decision = Literal["pass", "violated", "blocked", "suspect", "undecided", "reported"]
"""blocked: violated, as it may be where a property it builds on is; suspect: an alarm that rests on
what the subject reports of its rounds; undecided: too little evidence for the claim; reported: a
test that decides nothing, since it holds for a fixed n only."""


class Record(BaseModel):
    """Base of all parts of a certificate."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class CellRecord(Record):
    """One cell of a comparison: a token, a run of tokens, or several of them pooled."""

    stratum: int = 0
    cell: int
    observed: int
    expected: float
    label: str = ""
    """What the cell stands for, where there are words for it."""


class SequenceRecord(Record):
    """A sequence of tokens whose probability was computed, not counted."""

    tokens: tuple[int, ...]
    observed: float
    expected: float


class ExactRecord(Record):
    """A joint distribution that was computed, against the one it should be."""

    total_variation: float
    """Of whole sequences, between 0 and 1."""
    tolerance: float
    """Largest total variation of an implementation that is right."""
    largest_ratio: float
    """Largest observed / expected; infinite outside the support."""
    outside_support: float
    """Mass of what the target excludes."""
    crashing: float
    """Mass of the calls that raise."""
    method: Literal["branching", "forcing", "coins"]
    """How the subject's randomness was steered."""
    runs: int
    """Calls of the subject."""
    worst: tuple[SequenceRecord, ...] = ()
    """Largest absolute differences, largest first."""


class TestRecord(Record):
    """One property judged on one case by one test, or without statistics."""

    __test__: ClassVar[bool] = False  # keeps pytest from collecting the class

    property: str
    claim: str
    """What the property says, in one sentence."""
    evidence: Evidence
    decision: Decision
    test: str | None = None
    """e-process, support, chi-squared, G, band ...; None where a single observation decides."""
    statistic: float | None = None
    """ln E of an e-process and of the support test, which is one."""
    df: int | None = None
    p_value: float | None = None
    """For an e-process min(1, 1/E), which holds at every look; others hold for a fixed n."""
    p_adjusted: float | None = None
    """Of a reported test: adjusted for all reported tests of the run (Holm 1979)."""
    n: int = 0
    """Observations."""
    cells: int | None = None
    """Cells compared after pooling."""
    strata: int | None = None
    impossible: int = 0
    """Observations on cells of probability 0."""
    alpha: float | None = None
    """The test's share of the run's false-alarm budget."""
    boundaries: bool = False
    """Whether it rests on where rounds end, as the subject reports it."""
    detectable: float | None = None
    """Smallest deviation that would have been seen with probability 0.999."""
    detectable_what: str = ""
    """What `detectable` measures."""
    components: dict[str, float] = {}
    """ln of what each part of a mixture contributes to E, the largest ones."""
    detail: str = ""
    """The contradiction in words, or what it would take to decide."""
    worst_cells: tuple[CellRecord, ...] = ()
    exact: ExactRecord | None = None
    """What was computed, where nothing was sampled."""


class BoundRecord(Record):
    """An upper confidence bound that was reached, and what it bounds."""

    name: str
    value: float
    alpha: float
    """Probability that it fails."""
    n: int
    limit: float | None = None
    """Largest value at which the case is preserved; None for one that is only reported."""


class LooksRecord(Record):
    """How a sampled case stood after some of its shards, the last ones included.

    Arrays have one entry a look, see `looks.path_schedule`. None where a test had seen nothing yet,
    or a bound was not claimed: one of a fixed n holds at the looks that were fixed beforehand only.
    """

    shards: tuple[int, ...]
    runs: tuple[int, ...]
    tokens: tuple[int, ...]
    log_e: dict[str, tuple[float | None, ...]] = {}
    """ln E by property: that of every token, and those that came highest."""
    bounds: dict[str, tuple[float | None, ...]] = {}
    """Values by name of the bounds that are asked for."""


class KillTableRecord(Record):
    """What the suite makes of the implementations that it is tried on, see `selftest`."""

    mutants: dict[str, dict[str, tuple[Evidence, int]]]
    """Wrong implementations, each with the properties that catch it; none for one that shows as an
    error or a finding. Beside each stands by what evidence, and at what cost: runs that were
    followed, or tokens that were sampled until it was rejected; 0 where one look is enough."""
    lookalikes: tuple[str, ...] = ()
    """Right implementations that look wrong."""
    wrong: tuple[str, ...] = ()
    """Mutants that survive and look-alikes that are accused, among the above."""
    seed: int = 0
    """Of the self-test."""


class NotApplicable(Record):
    """A property that was not checked, and why."""

    property: str
    reason: str


class ExpectationRecord(Record):
    """A failure that is known, and what became of it; see `expected`."""

    property: str
    reason: str
    """Why it is accepted for now."""
    case: str = "*"
    """Pattern of the cases in which it may fail."""
    subject: str | None = None
    expires: str | None = None
    """The last day on which it counts, as YYYY-MM-DD."""
    error: bool = False
    """Whether the subject may crash, hang or return nonsense in these cases too."""
    state: Literal["failed as expected", "passes", "undecided", "expired", "not checked"]
    """expired: counts as if it were absent, whatever the day was; undecided: too little was seen to
    say that it passes; not checked: nothing in this run asked for it."""
    cases: tuple[str, ...] = ()
    """Where it failed as expected."""


class SearchRecord(Record):
    """What a search by random inputs tried, see `fuzzing`.

    How many inputs fit into a time depends on the machine; a search with `fuzz_inputs` set to
    `inputs` tries the same ones, in the same order, with the same database.
    """

    inputs: int
    """Inputs that were tried before anything was made smaller."""
    regions: dict[str, int] = {}
    """How many of them by size and kind, see the problem of the subject's kind."""
    stored: int = 0
    """How many of them were in the database."""
    computed: int = 0
    sampled: int = 0
    """How many of them, those that made a failure smaller included."""
    samples: int = 0
    """Samples of all of them and of confirmations."""
    passed_over: int = 0
    """Inputs on which a right subject may answer either way, or that it does not take."""
    crashed: int = 0
    confirmations: int = 0
    """Sampled inputs that looked wrong, and were sampled anew on fresh randomness."""
    unconfirmed: int = 0
    """Those of them that were not wrong then: no alarm."""
    alpha: float = 0.0
    """False-alarm budget of all confirmations; 0 where nothing was sampled."""
    ended: Literal["time", "inputs", "violation", "interrupt", "exhausted"]
    """exhausted: there were no further inputs to draw."""
    refusal: str = ""
    """Why the subject cannot be steered, where it was sampled."""


class OutcomeRecord(Record):
    """How often something is emitted, and how often it should be."""

    what: str
    """In words: the tokens, or the cell of a sampled comparison."""
    tokens: tuple[int, ...] = ()
    """-1 stands between the rows of a batch; empty for a cell."""
    observed: float
    expected: float
    """A probability, or in a `cell` a number of samples."""


class CounterexampleRecord(Record):
    """The smallest input known on which a property fails, in plain numbers."""

    kind: Literal["round", "world", "row", "transform", "case", "cell"]
    """round: one call of a rule; world: one run of a decoder; transform: one row of logits that a
    transform is handed; row: one call of a transform in a search by random inputs: these are
    searched for, and can be run again from `inputs`. case: the computed case itself; cell: the
    worst cell of a sampled one."""
    property: str
    """That fails."""
    inputs: dict[str, JsonValue] = {}
    """What the subject is handed, see `counterexamples.stored`; empty for a case or a cell."""
    outcomes: tuple[OutcomeRecord, ...]
    """Of a round all sequences of K+1 tokens, of a world all runs, of a transform's row all tokens;
    else the worst ones."""
    total_variation: float | None = None
    """Between the two distributions, where they are computed; None where only the support of a
    transform's row differs."""
    tolerance: float | None = None
    """Largest total variation of an implementation that is right."""
    text: str
    """The argument in words."""
    tried: int = 0
    """Inputs that were computed to find it."""
    complete: bool = True
    """Whether the search ended by itself, not because its time was up: then it may be smaller on a
    faster machine."""


class SuspectRecord(Record):
    """A known mistake that explains what a subject does, more or less."""

    mutant: str
    kind: str
    """Family of mistakes."""
    probability: float


class DiagnosisRecord(Record):
    """Which known mistake the subject looks like."""

    kind: str
    """Family of mistakes, or `unknown`."""
    confidence: float
    """Probability of the kind among all known ones and an unknown one."""
    mutant: str = ""
    """The known mistake of that kind that fits best."""
    description: str = ""
    """The one change that it makes."""
    basis: Literal["exact", "bets"]
    """What was compared: computed distributions, or the bets that gained on sampled tokens."""
    suspects: tuple[SuspectRecord, ...] = ()
    """The ones that fit best, the best first."""


class CaseRecord(Record):
    """One subject on one pair under one set of settings."""

    id: str
    verdict: Verdict
    reason: str = ""
    settings: dict[str, JsonValue] = {}
    """Fields that differ from their neutral values, see `settings_record`."""
    num_draft_tokens: int | None = None
    rows: int | None = None
    """Rows of a batch, at most."""
    tests: tuple[TestRecord, ...] = ()
    runs: int = 0
    tokens: int = 0
    planned_runs: int = 0
    shards: int = 0
    """Shards that were judged: the runs stand for the first so many of the plan."""
    stopped: Literal["", "violated", "bounds reached"] = ""
    """Why sampling ended before the planned number of runs."""
    bounds: tuple[BoundRecord, ...] = ()
    looks: LooksRecord | None = None
    """How ln E and bounds came about, where runs were sampled."""
    tv_bound: float | None = None
    """Upper bound on the total variation distance of the first token's distribution; in a case with
    exact evidence the distance itself, of whole sequences."""
    tv_bound_alpha: float | None = None
    """Probability that the bound fails; 0 for what was computed."""
    missing: str | None = None
    """What it would take to decide, where the evidence is too thin."""
    error: str = ""
    """How the subject failed, where the verdict is violated in spite of it."""
    counters: dict[str, JsonValue] = {}
    """Counts that the seed determines: rounds, passes, drafted, accepted, ..."""
    measurements: dict[str, float] = {}
    """What differs from run to run: seconds by phase, tokens per second, peak memory."""
    findings: tuple[str, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    counterexample: CounterexampleRecord | None = None
    """On the first case that shows a violated property."""
    diagnosis: DiagnosisRecord | None = None
    """Likewise."""
    search: SearchRecord | None = None
    """Of a case that a search made."""
    seconds: float = 0.0

    @property
    def small(self) -> bool:
        """Whether it is one of dozens that were computed or probed, not sampled on the pair."""
        return self.id.startswith(SMALL)
