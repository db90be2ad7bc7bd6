"""The scripts that `reporting.script` fills in."""

RULE = '''"""{property}: a counterexample, on one round of verification.

{text}

Draws draft tokens from q, calls the subject, completes what it emits from p to K + 1 tokens, and
counts. Exits with 1 if the counts are further from the target than chance explains.
"""

import importlib
import math
import sys
from collections import Counter
from pathlib import Path

import torch

MODULE, NAME = {module!r}, {name!r}
ROUNDS = {samples}
INPUTS = {inputs}
EXPECTED = {expected}

sys.path[:0] = [str(Path.cwd()), str(Path(__file__).parent)]
subject = importlib.import_module(MODULE)
for part in NAME.split("."):
    subject = getattr(subject, part)
subject = getattr(subject, "call", subject)

K = INPUTS["num_draft_tokens"]
dtype = getattr(torch, INPUTS["dtype"])
p = [torch.tensor(table, dtype=torch.float64) for table in INPUTS["target"]]
q = [torch.tensor(table, dtype=torch.float64) for table in INPUTS["draft"]]
V = p[0].shape[1]
generator = torch.Generator().manual_seed(0)
torch.manual_seed(0)


def sample(tables, tokens):
    """One more token after each row of `tokens`; row c of a table is that of prefix c in base V."""
    powers = V ** torch.arange(tokens.shape[1] - 1, -1, -1)
    rows = tables[tokens.shape[1]][(tokens * powers).sum(1)]
    return torch.multinomial(rows, 1, generator=generator)


tokens = torch.zeros(ROUNDS, 0, dtype=torch.long)
for _ in range(K):
    tokens = torch.cat([tokens, sample(q, tokens)], 1)
prefixes = [(tokens[:, :t] * V ** torch.arange(t - 1, -1, -1)).sum(1) for t in range(K + 1)]
target = torch.stack([p[t][prefixes[t]] for t in range(K + 1)], 1).to(dtype)
draft = torch.stack([q[t][prefixes[t]] for t in range(K)], 1).to(dtype)

emitted = []
step = {step}
for start in range(0, ROUNDS, step):
    part = slice(start, start + step)
    given = None if INPUTS["one_hot"] else draft[part].clone()
    emitted.append(subject(tokens[part].clone(), given, target[part].clone(){generator}))
emitted = torch.cat(emitted).long()
if emitted.shape[1] < K + 1:
    emitted = torch.nn.functional.pad(emitted, (0, K + 1 - emitted.shape[1]), value=-1)
for t in range(K + 1):
    ended = emitted[:, t] < 0
    if t and bool(ended.any()):
        emitted[ended, t] = sample(p, emitted[ended, :t])[:, 0]

counts = Counter(map(tuple, emitted.tolist()))
worst = 0.0
print("tokens        observed  expected       z")
for key in sorted(EXPECTED.keys() | counts.keys()):
    mean = ROUNDS * EXPECTED.get(key, 0.0)
    z = (counts[key] - mean) / math.sqrt(max(mean * (1 - mean / ROUNDS), 1.0))
    worst = max(worst, abs(z))
    print(f"{{' '.join(map(str, key)):<12}} {{counts[key]:>9,}} {{mean:>9,.0f}} {{z:>7.1f}}")
off = worst > 6
print(f"largest |z| {{worst:.1f}} over {{ROUNDS:,}} rounds:", "WRONG" if off else "as it should be")
sys.exit(off)
'''

DECODER = '''"""{property}: a counterexample, on one run of a decoder.

{text}

Lets the subject decode many times and counts. Exits with 1 if the counts are further from the
target than chance explains. The table models come from specverify.
"""

import importlib
import math
import sys
from collections import Counter
from pathlib import Path

import torch

from specverify import SamplingSettings
from specverify.models.table import TableModel

MODULE, NAME = {module!r}, {name!r}
RUNS = {samples}
INPUTS = {inputs}
EXPECTED = {expected}

sys.path[:0] = [str(Path.cwd()), str(Path(__file__).parent)]
subject = importlib.import_module(MODULE)
for part in NAME.split("."):
    subject = getattr(subject, part)
subject = getattr(subject, "call", subject)


def model(rows):
    """The model whose next token has these distributions, by the tokens before it."""
    table = TableModel(torch.tensor(rows, dtype=torch.float64).log(), INPUTS["order"])
    if {models!r} == "table":
        return table
    from specverify.models.glass_box import GlassBoxModel

    return GlassBoxModel.from_table(table)


target, draft = model(INPUTS["target"]), model(INPUTS["draft"])
settings = SamplingSettings(**INPUTS["settings"])
width = max(map(len, INPUTS["prompts"]))
prompts = torch.tensor([[0] * (width - len(row)) + row for row in INPUTS["prompts"]])
mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in INPUTS["prompts"]])
generator = torch.Generator().manual_seed(0)
torch.manual_seed(0)

counts = Counter()
for _ in range(RUNS):
    arguments = (prompts.clone(), mask.clone(), settings, INPUTS["num_draft_tokens"], generator)
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
