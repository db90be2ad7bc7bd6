"""Rules that decide rightly and misbehave, in a module that worker processes can import."""

import ctypes
import os
import random
import signal
import sys
import threading
import time

import numpy as np
import torch

KEPT = {}
CALLS = [0]
STOP = threading.Event()


def right(tokens, q, p, generator):
    """Token verification."""
    index = tokens[..., None]
    ratio = p[:, :-1].gather(2, index)[..., 0] / q.gather(2, index)[..., 0]
    coins = torch.rand(ratio.shape, dtype=ratio.dtype, generator=generator)
    accepted = (coins < ratio).long().cumprod(1).sum(1)
    weights = torch.cat([(p[:, :-1] - q).clamp(min=0), p[:, -1:]], 1)
    weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, p)
    weights = weights[torch.arange(len(p)), accepted]
    final = torch.multinomial(weights, 1, generator=generator)
    out = torch.cat([tokens, final], 1).scatter(1, accepted[:, None], final)
    return out.masked_fill(torch.arange(out.shape[1]) > accepted[:, None], -1)


def wrong(tokens, q, p, generator):
    """Accepts everything."""
    return torch.cat([tokens, torch.multinomial(p[:, -1], 1, generator=generator)], 1)


def on_probe_k3(p):
    """Whether a call belongs to the case probe/greedy.rule/K3."""
    return p.shape == (64, 4, 16)


# Misbehaviour that is contained or told.


def mutates(tokens, q, p, generator):
    out = right(tokens, q, p, generator)
    for argument in (tokens, q, p):
        argument.zero_()
    return out


def one_buffer(tokens, q, p, generator):
    """Returns a view of one buffer from every call."""
    out = right(tokens, q, p, generator)
    buffer = KEPT.setdefault("buffer", torch.zeros(1 << 16, dtype=torch.long))
    view = buffer[: out.numel()].view_as(out)
    return view.copy_(out)


def caches_results(tokens, q, p, generator):
    """Keeps the first result for arguments of these sizes."""
    return KEPT.setdefault(tuple(p.shape), right(tokens, q, p, generator))


def depends_on_order(tokens, q, p, generator):
    """Every seventh call emits the draft's tokens, whatever they are."""
    CALLS[0] += 1
    return (right if CALLS[0] % 7 else wrong)(tokens, q, p, generator)


def crashes_sometimes(tokens, q, p, generator):
    if on_probe_k3(p):
        raise RuntimeError("K is 3")
    return right(tokens, q, p, generator)


def prints(tokens, q, p, generator):
    sys.stdout.write("debugging\n")
    return right(tokens, q, p, generator)


def starts_threads(tokens, q, p, generator):
    threading.Thread(target=STOP.wait, daemon=True).start()
    return right(tokens, q, p, generator)


def forks(tokens, q, p, generator):
    """Its child comes out of the call too."""
    child = 1 if p.shape[2] < 16 else os.fork()
    out = right(tokens, q, p, generator)
    if child > 1:
        os.waitpid(child, 0)
    return out


def changes_dtype(tokens, q, p, generator):
    torch.set_default_dtype(torch.float16)
    return right(tokens, q, p, generator)


def seeds(tokens, q, p, generator):
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    return right(tokens, q, p, generator)


# Look-alikes: the same, taken back.


def copies_and_mutates(tokens, q, p, generator):
    out = right(tokens, q.clone(), p.clone(), generator)
    q.clone().zero_()
    return out


def caches_what_is_pure(tokens, q, p, generator):
    key = "arange", p.shape[1]
    KEPT.setdefault(key, torch.arange(p.shape[1]))
    return right(tokens, q, p, generator)


def restores_dtype(tokens, q, p, generator):
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)
    return right(tokens, q, p, generator)


def joins_its_thread(tokens, q, p, generator):
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    thread.join()
    return right(tokens, q, p, generator)


def forks_the_generators(tokens, q, p, generator):
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return right(tokens, q, p, generator)


def logs(tokens, q, p, generator):
    sys.stderr.write("info\n")
    return right(tokens, q, p, generator)


# Misbehaviour that ends the process.


def ends_sometimes(tokens, q, p, generator):
    if on_probe_k3(p):
        os._exit(0)
    return right(tokens, q, p, generator)


def crashes_in_c(tokens, q, p, generator):
    if on_probe_k3(p):
        ctypes.string_at(0)
    return right(tokens, q, p, generator)


def never_returns(tokens, q, p, generator):
    if on_probe_k3(p):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        time.sleep(600)
    return right(tokens, q, p, generator)


def ends_while_sampled(tokens, q, p, generator):
    if tokens.shape[1] == 4 and p.shape[2] == 8:
        os._exit(5)
    return right(tokens, q, p, generator)
