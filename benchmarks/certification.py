"""What a certification costs: tokens per second beside plain sampling, and memory.

python benchmarks/certification.py [--quick]
"""

import subprocess
import sys
import time

import torch
from common import goal, parse_quick

from specverify.certification.run import certify
from specverify.decoding.speculative import SpeculativeDecoder
from specverify.drafting.draft_model import DraftModel
from specverify.drafting.schedule import Fixed
from specverify.models.pairs import load_pair
from specverify.settings import SamplingSettings
from specverify.verification import TOKEN

SETTINGS = SamplingSettings(max_new_tokens=6)
ROWS = 16_384

PEAK = """
import sys
from specverify.certification.run import certify
from specverify.settings import SamplingSettings
sys.path.insert(0, "benchmarks")
from common import process_peak
certify("reference", "toy", settings={"plain": SamplingSettings()}, tokens=int(sys.argv[1]))
print(process_peak())
"""


def sampling_rate(batches: int) -> float:
    """Tokens a second of the reference decoder alone, on the toy pair."""
    pair = load_pair("toy")
    target, draft = pair.open("language_model")
    decoder = SpeculativeDecoder(target, DraftModel(draft), TOKEN.unchecked(), Fixed(4))
    prompts = torch.tensor([pair.prompts[1]]).expand(ROWS, -1)
    generator = torch.Generator().manual_seed(0)
    begin = time.perf_counter()
    tokens = sum(
        decoder.generate(prompts, settings=SETTINGS, generator=generator).tokens.numel()
        for _ in range(batches)
    )
    return tokens / (time.perf_counter() - begin)


def certification_rate(tokens: int) -> float:
    """Tokens a second of the whole certification under the same settings."""
    begin = time.perf_counter()
    certificate = certify("reference", "toy", settings={"plain": SamplingSettings()}, tokens=tokens)
    return sum(case.tokens for case in certificate.cases) / (time.perf_counter() - begin)


def peak(tokens: int) -> int:
    """Peak memory in bytes of a process that certifies with this many tokens."""
    command = [sys.executable, "-c", PEAK, str(tokens)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Measure, then print ratios first."""
    quick = parse_quick("cost of a certification beside plain sampling")
    torch.set_num_threads(1)
    tokens = 1_000_000 if quick else 4_000_000
    sampling_rate(1)
    rate, certified = sampling_rate(tokens // (6 * ROWS)), certification_rate(tokens)
    few, many = peak(tokens // 2), peak(tokens * 5)
    print(goal("peak memory of 10 N tokens / of N tokens", many / few, 1.05, at_least=False))
    print()
    print(f"sampling alone / certifying {rate / certified:10.2f} (time per token)")
    print(f"sampling alone              {rate / 1e6:10.2f} M tokens/s, one thread")
    print(f"certifying                  {certified / 1e6:10.2f} M tokens/s, one thread")
    print(
        f"peak of the process         {few / 2**20:10.1f} MiB at {tokens // 2:,} tokens, "
        f"{many / 2**20:.1f} MiB at {tokens * 5:,}"
    )


if __name__ == "__main__":
    main()
