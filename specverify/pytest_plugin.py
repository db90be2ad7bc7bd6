"""The pytest plugin: options, items without a test file, and what is told at the end.

Loaded by every pytest that finds specverify installed, so nothing heavy is imported before there is
a conformance item, or a table [tool.specverify].
"""

import sys
from collections.abc import Generator, Mapping
from importlib.metadata import entry_points, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specverify import __version__
from specverify.errors import SpecverifyError
from specverify.pyproject import find_table
from specverify.session import Found, Session, close_session, open_session

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate
    from specverify.certification.configuration import Configuration

_PREFIX = "specverify"
"""What node ids of items without a test file begin with."""

_MARKER = (
    "specverify(property, chapter): a conformance item; specverify sets it, for -m specverify or "
    "-m \"specverify(chapter='joint')\""
)
_CERTIFY = (
    "pair",
    "profile",
    "seed",
    "alpha",
    "tokens",
    "num_draft_tokens",
    "run_length",
    "isolate",
    "time_limit",
    "expected",
    "strict",
)
"""Options that checks take."""

_ADDOPTIONS: dict[str, dict[str, Any]] = {
    "kind": {
        "choices": ("rule", "transform", "decoder"),
        "help": "what the subjects are, where they do not say so themselves",
    },
    "pair": {"metavar": "NAME", "help": "target and draft to test on"},
    "profile": {
        "choices": ("quick", "standard", "thorough"),
        "help": "how many tokens to sample",
    },
    "seed": {"type": int, "metavar": "N", "help": "everything random derives from it"},
    "alpha": {"type": float, "metavar": "P", "help": "false-alarm budget of each subject"},
    "tokens": {"type": int, "metavar": "N", "help": "tokens to sample at most"},
    "num-draft-tokens": {"type": int, "metavar": "K", "help": "draft tokens a round"},
    "run-length": {"type": int, "metavar": "N", "help": "tokens a run has at most"},
    "isolate": {
        "action": "store_true",
        "default": None,
        "help": "run subjects in processes of their own, which they may end",
    },
    "time-limit": {"type": float, "metavar": "SECONDS", "help": "longest a single call may take"},
    "expected": {"metavar": "FILE", "help": "known failures, [[expected]] entries"},
    "strict": {"action": "store_true", "default": None, "help": "findings are violations"},
    "report": {"metavar": "DIR", "help": "write the certificates there, as JSON"},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; [tool.specverify] of pyproject.toml has their defaults."""
    group = parser.getgroup("specverify", "conformance of speculative decoders")
    group.addoption(
        "--specverify-subject",
        action="append",
        default=[],
        metavar="NAME",
        help="make an item for each property of NAME, one of `specverify subjects` or "
        "package.module:object; may be repeated",
    )
    group.addoption(
        "--specverify",
        action="store_true",
        dest="specverify_configured",
        help="the same for the subjects of [tool.specverify]",
    )
    for name, options in _ADDOPTIONS.items():
        group.addoption(f"--specverify-{name}", **options)
    for name in ("isolate", "strict"):
        group.addoption(
            f"--specverify-no-{name}",
            action="store_false",
            default=None,
            dest=f"specverify_{name}",
            help=f"the opposite of --specverify-{name}, where it is configured",
        )


class _State:
    """What the user asked of specverify in this run of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self.given = _given(config)
        self.configured = _configuration(config)
        self.selected = _take_node_ids(config)
        self.subjects = self._subjects(config)
        self.options = self._options()
        kind: str | None = self._one("kind")
        report: str | None = self.given.get("report") or getattr(self.configured, "out", None)
        self.report = None if report is None else config.invocation_params.dir / report
        self.session = Session(
            self.options,
            # As a user types it: the current folder seldom changes between the test and the eye.
            None if report is None else Path(report),
            {} if kind is None else dict.fromkeys(self.subjects, kind),
        )

    def _one(self, key: str) -> Any:
        """What the command line says, or else the configuration."""
        value = self.given.get(key)
        return getattr(self.configured, key, None) if value is None else value

    def _subjects(self, config: pytest.Config) -> tuple[str, ...]:
        wanted: tuple[str, ...] = ()
        if config.getoption("specverify_configured"):
            if self.configured is not None:
                wanted = self.configured.subjects
            if not wanted:
                raise pytest.UsageError(
                    "--specverify is about the subjects of [tool.specverify], and there are none; "
                    'set subject = "..." there, or name one by --specverify-subject'
                )
        named = config.getoption("specverify_subject") or []
        return tuple(dict.fromkeys((*named, *wanted, *self.selected)))

    def _options(self) -> dict[str, Any]:
        found = {key: self._one(key) for key in _CERTIFY}
        texts = () if self.configured is None else self.configured.settings_texts
        found["settings_texts"] = texts or None
        return {key: value for key, value in found.items() if value is not None}


_STATE = pytest.StashKey[_State]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and open a session that checks in test files follow."""
    config.addinivalue_line("markers", _MARKER)
    try:
        state = _State(config)
        if state.report is not None and not hasattr(config, "workerinput"):
            from specverify.reporting.json_file import prepare_directory

            prepare_directory(state.report)
    except SpecverifyError as error:
        raise pytest.UsageError(f"specverify: {error}") from None
    config.stash[_STATE] = state
    open_session(state.session)
    config.pluginmanager.register(
        _Results(state.report, state.session.report), "specverify-results"
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the session."""
    if (state := config.stash.get(_STATE, None)) is not None:
        close_session(state.session)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is tested and how, if anything of specverify was asked for."""
    state = config.stash[_STATE]
    if not (state.subjects or state.given or state.configured):
        return None
    from specverify.certification.limits import ALPHA

    options = {"profile": "quick", "seed": 0, "alpha": ALPHA, **state.options}
    options.pop("settings_texts", None)
    subjects = [f"subject {name}{_version_of(name)}" for name in state.subjects]
    said = [f"{key} {value}" for key, value in options.items()]
    return f"specverify {__version__}: {' · '.join((*subjects, *said))}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the items of subjects, and mark those that share a run, before anybody selects."""
    state = config.stash[_STATE]
    if state.subjects:
        from specverify.pytest_items import subject_items

        try:
            items += subject_items(session, state.subjects, state.selected)
        except SpecverifyError as error:
            raise pytest.UsageError(f"specverify: {error}") from None
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if group := getattr(_check_of(item), "group", ""):
                item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the counterexample without a traceback, and attach what was certified."""
    session = item.config.stash[_STATE].session
    for judged in session.judged:
        item.user_properties += [
            ("specverify_property", judged.property),
            ("specverify_verdict", judged.verdict),
            ("specverify_sha256", judged.sha256),
        ]
    report = yield
    _show_counterexample(report, call)
    if session.found:
        # Under xdist this is how it reaches the process that reports.
        setattr(report, _PREFIX, [_as_sent(item, found) for found in session.found])
    session.found.clear()
    session.judged.clear()
    return report


def _as_sent(item: pytest.Item, found: Found) -> tuple[str, str]:
    """The run that a certificate is a part of, empty for a whole one, and the certificate."""
    made, run = found.certificate, ""
    if found.part:
        parent = "" if item.parent is None else item.parent.nodeid
        test = getattr(item, "originalname", "")
        facts = (parent, test, made.subject.name, made.pair, made.seed, made.alpha, made.tests)
        run = " ".join(map(str, facts))
    return run, made.model_dump_json(exclude={"sha256"})


class _Results:
    """What was certified, in this process or in workers."""

    def __init__(self, directory: Path | None, shown: Path | None) -> None:
        self.directory, self.shown = directory, shown
        self.runs: list[list[str]] = []
        """Certificates as JSON, those of one run together."""
        self.certificates: list[Certificate] = []
        self.paths: dict[int, Path] = {}
        self._parts: dict[str, list[str]] = {}
        self.failure = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a report carries."""
        for run, text in getattr(report, _PREFIX, ()):
            if run in self._parts:
                self._parts[run].append(text)
                continue
            self.runs.append([text])
            if run:
                self._parts[run] = self.runs[-1]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Put the parts together, and write them once."""
        if not self.runs or hasattr(session.config, "workerinput"):
            return
        from specverify.certification.certificate import Certificate
        from specverify.certification.merged import merged
        from specverify.certification.overall import only_together

        in_parts = {id(texts) for texts in self._parts.values()}
        untold = False
        for texts in self.runs:
            made = [Certificate.model_validate_json(text) for text in texts]
            if id(texts) in in_parts:
                made = [merged(made)]
                untold |= only_together(made[0])
            self.certificates += made
        if session.exitstatus == pytest.ExitCode.OK and untold:
            # No item failed, and the section is to agree with how the session ends. A whole run has
            # failed in its test already, if only in a `pytest.raises` there.
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.directory is not None:
            from specverify.reporting.session import write_all

            try:
                written = write_all(self.certificates, self.directory)
                folder = self.shown or self.directory
                self.paths = {place: folder / path.name for place, path in written.items()}
            except OSError as error:
                self.failure = f"certificates could not be written: {error}"
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the section."""
        if not self.certificates:
            return
        from specverify.reporting.session import session_lines

        terminalreporter.section("specverify")
        for text, style in session_lines(self.certificates, self.paths):
            terminalreporter.write_line(text, **style)
        if self.failure:
            terminalreporter.write_line(self.failure, red=True)


def _show_counterexample(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    module = sys.modules.get("specverify.conformance")
    if module is None or call.excinfo is None:
        return
    error: Any = call.excinfo.value
    if isinstance(error, module.ConformanceError):
        shown: Any = call.excinfo.getrepr(style="value", chain=False)
        shown.reprcrash.message = error.headline
        report.longrepr = shown


def _check_of(item: pytest.Item) -> Any:
    """The check that an item is about, None for other people's items."""
    found = getattr(item, "specverify_check", None)
    if found is None and (callspec := getattr(item, "callspec", None)) is not None:
        found = callspec.params.get("check_property")
    return found if type(found).__module__ == "specverify.property_checks" else None


def _given(config: pytest.Config) -> dict[str, Any]:
    """What the command line says."""
    keys = [name.replace("-", "_") for name in _ADDOPTIONS]
    values = {key: config.getoption(f"specverify_{key}") for key in keys}
    found = {key: value for key, value in values.items() if value is not None}
    if "expected" in found:
        found["expected"] = str(config.invocation_params.dir / found["expected"])
    limited = {key: value for key, value in found.items() if isinstance(value, int | float)}
    if limited:
        from specverify.certification.configuration import check_options

        check_options(limited, "--specverify-")
    return found


def _configuration(config: pytest.Config) -> "Configuration | None":
    if find_table(config.rootpath) is None:
        return None
    from specverify.certification.configuration import read_configuration

    found = read_configuration(config.rootpath)
    return None if found is None else found[1]


def _take_node_ids(config: pytest.Config) -> Mapping[str, frozenset[str]]:
    """Arguments that are node ids of items without a file, which pytest would look for.

    Returns:
        The properties that they name, by subject; none where all are meant.
    """
    named: dict[str, list[str]] = {}
    kept = []
    for argument in config.args:
        path, _, rest = argument.partition("::")
        if not rest or Path(path).name != _PREFIX:
            kept.append(argument)
            continue
        subject, _, id = rest.partition("::")
        # Behind an @ is the group that xdist adds.
        named.setdefault(subject, []).append(id.partition("@")[0])
    config.args[:] = kept
    return {subject: frozenset() if "" in ids else frozenset(ids) for subject, ids in named.items()}


def _version_of(subject: str) -> str:
    """The installed package that a subject comes from; its own import waits."""
    module, colon, _ = subject.partition(":")
    if colon:
        names = packages_distributions().get(module.partition(".")[0], ())
        return "".join(f" ({name} {version(name)})" for name in names[:1])
    for point in entry_points(group="specverify.subjects", name=subject):
        if point.dist is not None:
            return f" ({point.dist.name} {point.dist.version})"
    return ""
