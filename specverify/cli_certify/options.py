"""What `specverify certify` is asked, and what a configuration says where nobody asks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from specverify.certification.limits import ALPHA, LARGEST_ALPHA, LARGEST_SEED, SMALLEST_ALPHA
from specverify.cli_options import Folder, time_limit_option

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("subject", required=False),
    click.option(
        "--kind",
        type=click.Choice(["rule", "transform", "decoder"]),
        help="What SUBJECT is, where it does not say so itself.",
    ),
    click.option(
        "--pair",
        "pair_name",
        metavar="NAME",
        default="toy",
        show_default=True,
        help="Target and draft to test on: a name from `specverify pairs`, package.module:object, "
        "or TARGET_DIR,DRAFT_DIR.",
    ),
    click.option(
        "--settings",
        "settings_texts",
        metavar="NAME|FILE|JSON",
        multiple=True,
        help="Sampling settings: a preset, a JSON file, or JSON itself. May be repeated; all "
        "presets when omitted.",
    ),
    click.option(
        "--profile",
        type=click.Choice(["quick", "standard", "thorough", "fuzz"]),
        default="quick",
        show_default=True,
        help="How many tokens to sample; fuzz samples as quick does, and then searches random "
        "inputs.",
    ),
    click.option(
        "--only",
        metavar="PROPERTY",
        multiple=True,
        help="Check only this property of `specverify properties`, or those of a pattern such as "
        "'joint.*'; may be repeated. All still share the budget.",
    ),
    click.option(
        "--seed", type=click.IntRange(min=0, max=LARGEST_SEED), default=0, show_default=True
    ),
    click.option(
        "--alpha",
        type=click.FloatRange(min=SMALLEST_ALPHA, max=LARGEST_ALPHA),
        metavar="P",
        default=ALPHA,
        show_default=True,
        help="False-alarm budget: how likely a right implementation may be called violated.",
    ),
    click.option(
        "--out",
        type=Folder(),
        metavar="DIR",
        help="Folder for the certificate, a JSON file; also written after an error or Ctrl-C.",
    ),
    click.option(
        "--report",
        "report_forms",
        metavar="FORM",
        multiple=True,
        help="Beside it write html, markdown, badge or junit; several with commas, or repeat it.",
    ),
    click.option(
        "--num-draft-tokens",
        type=click.IntRange(min=1),
        metavar="K",
        help="Draft tokens a round; the pair's own number when omitted.",
    ),
    click.option(
        "--tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens to sample at most, over all settings, in place of the profile's number.",
    ),
    click.option(
        "--run-length",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens a run has at most; K + 2 when omitted.",
    ),
    click.option(
        "-j",
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        default=1,
        show_default=True,
        help="Processes that sample; the certificate does not depend on it.",
    ),
    click.option(
        "--isolate/--no-isolate",
        default=False,
        help="Run SUBJECT in processes of its own: when it ends one, or a call never returns, that "
        "case is an error and the others go on.",
    ),
    click.option(
        "--resume",
        type=Folder(file_okay=False),
        metavar="DIR",
        help="Keep finished shards in DIR while the run lasts; the same command goes on where a "
        "killed or interrupted one was.",
    ),
    click.option(
        "--no-early-stop",
        is_flag=True,
        help="Sample the planned number even after a violation, or once the bounds are reached.",
    ),
    click.option(
        "--no-shrink",
        is_flag=True,
        help="Leave violations unexplained: no search for the smallest input, no diagnosis.",
    ),
    click.option(
        "--expected",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Known failures, [[expected]] entries with property and reason: the verdict is formed "
        "without them, and one that passes fails the run.",
    ),
    click.option(
        "--strict/--no-strict",
        default=False,
        help="Count findings, deviations below the tolerance that have a cause, as violations.",
    ),
    click.option(
        "--fuzz-time",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Of profile fuzz: how long to search; 60 when neither limit is given.",
    ),
    click.option(
        "--fuzz-inputs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Of profile fuzz: inputs after which to stop, the same ones on every machine.",
    ),
    click.option(
        "--database",
        type=Folder(file_okay=False),
        metavar="DIR",
        help="Of profile fuzz: keep inputs that failed in DIR, and try them first; the next search "
        "goes on where this one ended.",
    ),
    time_limit_option,
    click.option(
        "--one-row-a-call",
        is_flag=True,
        help="Hand SUBJECT a single prompt a call, as batch=False in its declaration does.",
    ),
    click.option(
        "--reference-transform",
        metavar="NAME",
        help="For a transform: the specverify transform it must equal.",
    ),
)


def certify_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function all arguments and options of the command, in the order of the help text."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
