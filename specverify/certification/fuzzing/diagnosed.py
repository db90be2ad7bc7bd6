"""Which known mistake a rule looks like that only a search found wrong."""

from specverify.certification.case_records import CaseRecord
from specverify.certification.counterexamples.stored import stored_round
from specverify.certification.diagnosis import compared, diagnose
from specverify.certification.fuzzing.problem import Problem
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.signatures import Input, emitted, inputs
from specverify.errors import SubjectError
from specverify.exact.compare_round import completed
from specverify.exact.joint import Joint
from specverify.subjects.protocols import Subject

_NOTHING_LOST = 1 - 1e-9


def diagnosed(case: CaseRecord, problem: Problem) -> CaseRecord:
    """Add the known mistake that a computed failure looks like, if anything can be compared.

    Subjects are compared on the inputs of `signatures`, as elsewhere; a rule that is right on all
    of those is compared on the input that the search found too.
    """
    subject, record = problem.subject, case.counterexample
    if record is None or record.total_variation is None or record.kind == "row":
        return case
    found = diagnose(subject)
    if found is None and record.kind == "round":
        known = {input: emitted(subject, input) for input in inputs("rule")}
        round = stored_round(record).round

        def emits(subject: Subject) -> Joint:
            trial = RuleTrial(subject, "diagnosis", "", problem.seed, problem.time_limit)
            joint = trial.joint(round).probabilities
            if sum(joint.values()) < _NOTHING_LOST:
                raise SubjectError("it fails with some probability")
            return completed(round, joint)

        first = {(token,): mass for token, mass in enumerate(round.p(0)[0].tolist()) if mass > 0}
        searched = Input(f"search {record.text}", emits, completed(round, first))
        known[searched] = emitted(subject, searched)
        found = compared("rule", known)
    return case.model_copy(update={"diagnosis": found})
