import pytest
import torch


@pytest.fixture(scope="session")
def make_tiny():
    """Small random models of several architectures, by name, with any attention implementation."""
    import transformers as hf

    common = {
        "vocab_size": 17,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 40,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }

    def make(name, attention="sdpa", layers=3):
        shared = common | {"num_hidden_layers": layers, "attn_implementation": attention}
        with torch.random.fork_rng():
            torch.manual_seed(5)
            match name:
                case "llama":
                    model = hf.LlamaForCausalLM(hf.LlamaConfig(**shared))
                case "mistral":
                    model = hf.MistralForCausalLM(hf.MistralConfig(**shared, sliding_window=4))
                case "gemma3":
                    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
                    config = hf.Gemma3TextConfig(
                        **shared, head_dim=8, sliding_window=4, layer_types=kinds
                    )
                    model = hf.Gemma3ForCausalLM(config)
                case "gpt2":
                    config = hf.GPT2Config(
                        vocab_size=17,
                        n_embd=16,
                        n_layer=2,
                        n_head=2,
                        n_positions=40,
                        initializer_range=0.3,
                        bos_token_id=None,
                        eos_token_id=None,
                        attn_implementation=attention,
                    )
                    model = hf.GPT2LMHeadModel(config)
        return model.eval()

    return make


@pytest.fixture(scope="session")
def solo():
    """`solo(model, tokens)`: logits of one row from a plain pass without cache or padding."""

    def logits(model, tokens):
        with torch.no_grad():
            return model(torch.tensor([list(tokens)]), use_cache=False).logits[0]

    return logits


@pytest.fixture(scope="session")
def walk():
    """`walk(session, histories, vocab_size, seed)`: random extends and roll backs of ragged rows.

    Yields after every extend: the histories by row, the logits, and how many each row read.
    """

    def steps(session, histories, vocab_size, seed, rounds=6):
        generator = torch.Generator().manual_seed(seed)
        rows = len(histories)

        def draw(low, high, shape):
            return torch.randint(low, high, shape, generator=generator)

        for step in range(rounds):
            width = int(draw(0, 5, ()))
            counts = draw(0, width + 1, (rows,)) if step % 3 else torch.full((rows,), width)
            read = torch.arange(width) < counts[:, None]
            block = draw(0, vocab_size, (rows, width)).masked_fill(~read, -1)
            logits = session.extend(block, counts if step % 3 else None)
            for row, history in enumerate(histories):
                history.extend(block[row, : int(counts[row])].tolist())
            yield histories, logits, counts
            lengths = (session.lengths - draw(0, 5, (rows,))).clamp(min=0)
            if step % 2:
                lengths = (session.lengths - 2).clamp(min=0)
            session.roll_back(lengths)
            for row, history in enumerate(histories):
                del history[int(lengths[row]) :]

    return steps
