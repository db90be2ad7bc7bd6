"""`specverify certify`: the command that makes a certificate.

Only click is imported at load.
"""

from pathlib import Path
from typing import Any

import click

from specverify.certification.verdict import worst_exit_code
from specverify.cli_certify.options import certify_options
from specverify.cli_certify.output import finish, host_free
from specverify.cli_certify.running import load_subjects, request, run
from specverify.cli_configuration import ConfiguredCommand, given
from specverify.cli_options import Invocation
from specverify.cli_streams import Streams
from specverify.errors import UsageError
from specverify.pyproject import TABLE

__all__ = ["certify", "host_free"]


@click.command(cls=ConfiguredCommand)
@certify_options
@click.pass_obj
def certify(
    options: Invocation,
    subject: str | None,
    kind: str | None,
    pair_name: str,
    settings_texts: tuple[str, ...],
    profile: str,
    only: tuple[str, ...],
    seed: int,
    alpha: float,
    out: Path | None,
    report_forms: tuple[str, ...],
    num_draft_tokens: int | None,
    tokens: int | None,
    time_limit: float,
    run_length: int | None,
    jobs: int,
    resume: Path | None,
    expected: Path | None,
    fuzz_time: float | None,
    fuzz_inputs: int | None,
    database: Path | None,
    *,
    isolate: bool,
    strict: bool,
    no_early_stop: bool,
    no_shrink: bool,
    one_row_a_call: bool,
    reference_transform: str | None,
) -> int:
    """Certify SUBJECT, an implementation of speculative decoding or of a part of it.

    SUBJECT is a name from `specverify subjects`, or your own package.module:object. Without it,
    those of [tool.specverify] in pyproject.toml are certified, which may set options too.

    \b
    Examples:
      specverify certify reference
      specverify certify reference-block --pair trained --profile standard
      specverify certify transformers --settings '{"temperature": 0.7, "top_k": 20}'
      specverify certify mylib.decoding:generate --kind decoder --out certificates
      specverify certify mylib.decoding:generate --profile fuzz --fuzz-time 3600 --database found
      specverify certify mylib.sampling:TopK --kind transform --reference-transform top_k
    """
    from specverify.certification.expected import expectations_of
    from specverify.reporting.formats import read_formats
    from specverify.reporting.json_file import prepare_directory

    streams = Streams()
    search = {"fuzz_time": fuzz_time, "fuzz_inputs": fuzz_inputs, "database": database}
    if profile != "fuzz":
        # Configured limits are for runs that search; those that are given here say a slip.
        search = {name: search[name] if name in given(name) else None for name in search}
    forms = read_formats(report_forms)
    if forms and out is None:
        raise UsageError(
            f"--report {','.join(forms)} writes files; say where with --out, the folder of the "
            f"certificate, or by `out` of [{TABLE}]"
        )
    # A subject may change the current folder.
    folder = None if out is None else out.absolute()
    with streams.kept_for_the_report():
        requests = [
            request(found, pair_name, settings_texts, reference_transform, one_row_a_call)
            for found in load_subjects(subject, kind)
        ]
    for asked in requests:
        expectations_of(expected, asked.subject)
    if folder is not None:
        prepare_directory(folder)
    common: dict[str, Any] = {
        "profile": profile,
        "only": only or ("*",),
        "seed": seed,
        "alpha": alpha,
        "time_limit": time_limit,
        "num_draft_tokens": num_draft_tokens,
        "tokens": tokens,
        "run_length": run_length,
        "jobs": jobs,
        "isolate": isolate,
        "resume": None if resume is None else resume.absolute(),
        "stop_early": not no_early_stop,
        "shrink": not no_shrink,
        "expected": None if expected is None else expected.absolute(),
        "strict": strict,
        **{key: v.absolute() if isinstance(v, Path) else v for key, v in search.items()},
        "command": host_free(("specverify", *options.argv)),
    }
    codes = []
    for asked in requests:
        with streams.kept_for_the_report():
            certificate = run(asked, common)
        streams.restore()
        codes.append(finish(certificate, asked.subject, folder, out, forms))
        if certificate.interrupted:
            break
    return worst_exit_code(codes)
