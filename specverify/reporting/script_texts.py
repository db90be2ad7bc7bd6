"""The scripts that `reporting.script` fills in, for a rule and for a transform."""

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

TRANSFORM = '''"""{property}: a counterexample, on one row of logits.

{text}

Builds the transform with its parameters, hands it the row, and prints what it makes of it beside
what its reference does. Needs torch and the subject. Exits with 1 if the two differ: by more than
{tolerance:g} in total variation, or in a token that must be impossible and is not.
"""

import importlib
import sys
from pathlib import Path

import torch

MODULE, NAME = {module!r}, {name!r}
INPUTS = {inputs}
EXPECTED = {expected}
TOLERANCE = {tolerance!r}

sys.path[:0] = [str(Path.cwd()), str(Path(__file__).parent)]
subject = importlib.import_module(MODULE)
for part in NAME.split("."):
    subject = getattr(subject, part)
subject = getattr(subject, "call", subject)

torch.manual_seed(0)
transform = subject(**INPUTS["parameters"])
history = torch.tensor([INPUTS["history"]], dtype=torch.long)
row = [float(logit) for logit in INPUTS["logits"]]
logits = torch.tensor([row], dtype=getattr(torch, INPUTS["dtype"]))
observed = transform(history, logits).double().softmax(-1)[0].tolist()

print("token     observed    expected")
for token, (seen, wanted) in enumerate(zip(observed, EXPECTED)):
    print(f"{{token:<6}} {{seen:>11.6g}} {{wanted:>11.6g}}")
distance = sum(abs(seen - wanted) for seen, wanted in zip(observed, EXPECTED)) / 2
impossible = any(seen > 0 and wanted == 0 for seen, wanted in zip(observed, EXPECTED))
off = len(observed) != len(EXPECTED) or not distance <= TOLERANCE or impossible
print(f"total variation {{distance:.6g}}:", "WRONG" if off else "as it should be")
sys.exit(off)
'''
