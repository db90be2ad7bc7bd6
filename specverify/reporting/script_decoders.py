"""The scripts of a decoder that `reporting.script` fills in."""

DECODER = '''"""{property}: a counterexample, on one run of a decoder.

{text}

Lets the subject decode many times and counts. Exits with 1 if the counts are further from the
target than chance explains. {needs}
"""

{imports}

MODULE, NAME = {module!r}, {name!r}
RUNS = {samples}
INPUTS = {inputs}
EXPECTED = {expected}

sys.path[:0] = [str(Path.cwd()), str(Path(__file__).parent)]
subject = importlib.import_module(MODULE)
for part in NAME.split("."):
    subject = getattr(subject, part)
subject = getattr(subject, "call", subject)


{models}

target, draft = model(INPUTS["target"]), model(INPUTS["draft"])
width = max(map(len, INPUTS["prompts"]))
prompts = torch.tensor([[0] * (width - len(row)) + row for row in INPUTS["prompts"]])
mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in INPUTS["prompts"]])
generator = torch.Generator().manual_seed(0)
torch.manual_seed(0)

counts = Counter()
for _ in range(RUNS):
    arguments = (prompts.clone(), mask.clone(), settings(), INPUTS["num_draft_tokens"], generator)
    output = subject(target, draft, *arguments)
    rows = getattr(output, "tokens", output).tolist()
    # -1 stands between the rows of a batch, as in EXPECTED.
    joined = []
    for index, row in enumerate(rows):
        joined += [-1] * (index > 0) + [token for token in row if token >= 0]
    counts[tuple(joined)] += 1

worst = 0.0
print("tokens        observed  expected       z")
for key in sorted(EXPECTED.keys() | counts.keys()):
    mean = RUNS * EXPECTED.get(key, 0.0)
    z = (counts[key] - mean) / math.sqrt(max(mean * (1 - mean / RUNS), 1.0))
    worst = max(worst, abs(z))
    print(f"{{' '.join(map(str, key)):<12}} {{counts[key]:>9,}} {{mean:>9,.0f}} {{z:>7.1f}}")
off = worst > 6
print(f"largest |z| {{worst:.1f}} over {{RUNS:,}} runs:", "WRONG" if off else "as it should be")
sys.exit(off)
'''

_STANDARD = """import importlib
import math
import sys
from collections import Counter
from pathlib import Path

import torch"""

STAND_ALONE = {
    "needs": """Needs torch and the subject: the models are the
tables below. A subject that imports specverify itself gets specverify's classes in their place.""",
    "imports": _STANDARD.replace("import importlib", "import copy\nimport importlib"),
    "models": '''class Table:
    """A model whose next token depends on the last `order` tokens.

    They are the digits of a row of the table in base V + 1, where V stands before the start.
    """

    window = vocabulary = None

    def __init__(self, logits, order):
        self.logits, self.order, self.vocab_size = logits, order, logits.shape[1]

    def start(self, prompt_ids, attention_mask=None):
        """A session that has read all but the last token of every prompt."""
        shown = torch.ones_like(prompt_ids) if attention_mask is None else attention_mask
        pairs = zip(prompt_ids, shown.bool())
        return Session(self, [ids[kept].tolist()[:-1] for ids, kept in pairs])

    def after(self, tokens):
        """Logits of the token that comes next."""
        index = 0
        for token in ([self.vocab_size] * self.order + tokens)[len(tokens) :]:
            index = index * (self.vocab_size + 1) + token
        return self.logits[index]


class Session:
    """The tokens that rows have read."""

    def __init__(self, model, rows):
        self.model, self.rows, self.passes = model, rows, int(any(rows))

    @property
    def lengths(self):
        return torch.tensor([len(row) for row in self.rows], dtype=torch.long)

    def extend(self, tokens, counts=None):
        """Read `tokens[b, :counts[b]]`, and give the logits after each: [B, n, V]."""
        counts = [tokens.shape[1]] * len(tokens) if counts is None else counts.tolist()
        logits = self.model.logits.new_zeros(*tokens.shape, self.model.vocab_size)
        for b, row in enumerate(self.rows):
            for i, token in enumerate(tokens[b, : counts[b]].tolist()):
                if not 0 <= token < self.model.vocab_size:
                    raise ValueError(f"token {token} is outside the vocabulary")
                row.append(token)
                logits[b, i] = self.model.after(row)
        self.passes += any(counts)
        return logits

    def roll_back(self, lengths):
        """Forget all but the first `lengths[b]` tokens of each row."""
        for row, length in zip(self.rows, lengths.tolist()):
            if not 0 <= length <= len(row):
                raise ValueError(f"cannot roll back {len(row)} tokens to {length}")
            del row[length:]


class Settings:
    """What a run must produce, by the names of specverify's settings."""

    def __init__(self, **fields):
        vars(self).update(fields)

    @property
    def greedy(self):
        return self.temperature == 0

    def model_copy(self, *, update=None):
        return Settings(**{**vars(self), **(update or {})})

    def check_vocabulary(self, vocab_size):
        for token in self.stop_token_ids:
            if token >= vocab_size:
                raise ValueError(f"stop token {token} is outside the vocabulary")


if "specverify" in sys.modules:
    # The subject builds on specverify, and may hand models and settings on to it.
    from specverify import SamplingSettings as Settings
    from specverify.models.table import TableModel as Table


def model(rows):
    """The model whose next token has these distributions, by the tokens before it."""
    return Table(torch.tensor(rows, dtype=torch.float64).log(), INPUTS["order"])


def settings():
    """The settings of one call."""
    return Settings(**copy.deepcopy(INPUTS["settings"]))
''',
}
"""For decoders that take the plain protocol of models."""

WITH_SPECVERIFY = {
    "needs": """Needs torch, transformers and specverify beside the
subject, which decodes models of transformers: specverify makes those of small tables.""",
    "imports": f"""{_STANDARD}

from specverify import SamplingSettings
from specverify.models.glass_box import GlassBoxModel
from specverify.models.table import TableModel""",
    "models": '''def model(rows):
    """The model whose next token has these distributions, by the tokens before it."""
    table = TableModel(torch.tensor(rows, dtype=torch.float64).log(), INPUTS["order"])
    return GlassBoxModel.from_table(table)


def settings():
    """The settings of one call."""
    return SamplingSettings(**INPUTS["settings"])
''',
}
"""For decoders that take models of transformers only."""
