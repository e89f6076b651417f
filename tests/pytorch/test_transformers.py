"""Models of the transformers library without changes."""

import copy
from contextlib import nullcontext
from functools import partial
from math import isfinite

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")
transformers = pytest.importorskip("transformers", reason="it has the models")

from support.recorded import Beside  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402

VOCABULARY = 31


def gpt2(dropout=0.1):
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        embd_pdrop=dropout,
        resid_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return transformers.GPT2LMHeadModel(config)


def bert():
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    return transformers.BertForMaskedLM(config)


SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}


def roberta():
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SMALL))


def electra():
    return transformers.ElectraForMaskedLM(transformers.ElectraConfig(embedding_size=8, **SMALL))


def albert():
    return transformers.AlbertForMaskedLM(transformers.AlbertConfig(embedding_size=8, **SMALL))


def llama():
    config = transformers.LlamaConfig(num_key_value_heads=1, **SMALL)
    return transformers.LlamaForCausalLM(config)


def qwen2():
    config = transformers.Qwen2Config(num_key_value_heads=1, **SMALL)
    return transformers.Qwen2ForCausalLM(config)


def gemma2():
    config = transformers.Gemma2Config(num_key_value_heads=1, head_dim=8, sliding_window=4, **SMALL)
    return transformers.Gemma2ForCausalLM(config)


def neox():
    config = transformers.GPTNeoXConfig(rotary_pct=0.5, **SMALL)
    return transformers.GPTNeoXForCausalLM(config)


def opt():
    sizes = {"hidden_size": 16, "ffn_dim": 32, "word_embed_proj_dim": 16}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}
    config = transformers.OPTConfig(vocab_size=VOCABULARY, pad_token_id=0, **sizes, **layers)
    return transformers.OPTForCausalLM(config)


def bloom():
    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2)
    return transformers.BloomForCausalLM(config)


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(
        vocab_size=VOCABULARY, decoder_start_token_id=0, pad_token_id=0, **sizes
    )
    return transformers.T5ForConditionalGeneration(config)


def distilbert():
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, max_position_embeddings=16, pad_token_id=0, **sizes
    )
    return transformers.DistilBertForMaskedLM(config)


MASKED = (
    gpt2,
    bert,
    roberta,
    electra,
    albert,
    distilbert,
    llama,
    qwen2,
    gemma2,
    neox,
    opt,
    bloom,
    t5,
)


def masked_step(model, batch):
    tokens, labels = batch
    model.zero_grad()
    seen = (tokens != 0).long()
    loss = model(input_ids=tokens, attention_mask=seen, labels=labels).loss
    loss.backward()
    return loss


def step(model, batch):
    model.zero_grad()
    loss = model(input_ids=batch[0], labels=batch[1]).loss
    loss.backward()
    return loss


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the library's own
@pytest.mark.parametrize("make", [gpt2, bert])
def test_a_model_is_pytorchs(tmp_path, make):
    torch.manual_seed(0)
    tokens, labels = (torch.randint(1, VOCABULARY, (4, 12)) for _ in range(2))
    Beside(make().eval(), (tokens, labels), step, tmp_path).check()  # without dropout


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MASKED, ids=lambda make: make.__name__)
def test_a_model_with_an_attention_mask_is_pytorchs(tmp_path, make):
    torch.manual_seed(0)
    tokens = torch.randint(1, VOCABULARY, (4, 12))
    tokens[1, 7:] = tokens[3, 4:] = 0
    labels = torch.where(tokens == 0, -100, tokens)
    Beside(make().eval(), (tokens, labels), masked_step, tmp_path).check()


EXPERTS = {"num_experts_per_tok": 2, "num_key_value_heads": 1}


def mixtral():
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(num_local_experts=4, **EXPERTS, **SMALL)
    )


def qwen2_moe():
    sizes = {"num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 16}
    config = transformers.Qwen2MoeConfig(
        output_router_logits=True, decoder_sparse_step=1, **sizes, **EXPERTS, **SMALL
    )
    return transformers.Qwen2MoeForCausalLM(config)


def qwen3_moe():
    sizes = {"num_experts": 4, "moe_intermediate_size": 8, "head_dim": 8}
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**sizes, **EXPERTS, **SMALL)
    )


def longformer():
    sizes = {**SMALL, "max_position_embeddings": 34, "attention_window": 4}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.LongformerForMaskedLM(transformers.LongformerConfig(**sizes, **dropout))


def masks_of(model, x):
    """Padding masks, and masks of global attention for models that have it."""
    seen = {"attention_mask": (x != 0).long()}
    is_global = isinstance(model, transformers.LongformerForMaskedLM)
    return {**seen, "global_attention_mask": (x == 1).long()} if is_global else seen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make", [mixtral, qwen2_moe, qwen3_moe, longformer], ids=lambda make: make.__name__
)
def test_experts_and_global_attention_match_pytorch(tmp_path, make):
    """The library's default grouping of experts; varying row counts need no new program."""
    torch.manual_seed(0)
    model = make().train()
    tokens = torch.randint(2, VOCABULARY, (80, 12))
    tokens[::3, 9:], tokens[1::4, 3] = 0, 1
    masks = partial(masks_of, model)

    def trained(model, loader, session):
        optimizer = torch.optim.AdamW(model.parameters(), 0.005)
        losses = []
        with session(model, optimizer):
            for (x,) in loader:
                optimizer.zero_grad()
                labels = torch.where(x == 0, -100, x)
                loss = model(input_ids=x, labels=labels, **masks(x)).loss
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return [float(loss) for loss in losses]

    loader = DataLoader(TensorDataset(tokens), 4)
    expected = trained(copy.deepcopy(model), loader, lambda *given: nullcontext())
    cbtorch.initialize(model_dir=tmp_path)
    model, loader = cbtorch.module(model), cbtorch.dataloader(loader)
    found = trained(model, loader, lambda *given: cbtorch.Session(*given, mode="train"))
    assert len(found) == 20
    assert found == pytest.approx(expected, rel=1e-5)


STEPS = 6


def trained(folder, model, tokens):
    """A few steps of AdamW in a Session, or in plain PyTorch without a folder.

    Returns, for each step, the loss and the number of zeros in the embeddings after dropout.
    """
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loader = DataLoader(TensorDataset(tokens), 4)
    session = nullcontext()
    if folder is not None:
        cbtorch.initialize(model_dir=folder)
        model, loader = cbtorch.module(model), cbtorch.dataloader(loader)
        session = cbtorch.Session(model, optimizer, mode="train")
    found = []
    with session:
        for (x,) in loader:
            optimizer.zero_grad()
            out = model(input_ids=x, labels=x, output_hidden_states=True)
            out.loss.backward()
            optimizer.step()
            found.append((out.loss.detach(), (out.hidden_states[0].detach() == 0).sum()))
    return [(float(loss), int(zeros)) for loss, zeros in found]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_is_trained_as_in_pytorch_and_drops_as_many_as_it_should(tmp_path):
    torch.manual_seed(0)
    tokens = torch.randint(1, VOCABULARY, (4 * STEPS, 12))
    for share in (0.0, 0.1):
        model = gpt2(share).train()
        theirs = copy.deepcopy(model)
        found = trained(tmp_path / str(share), model, tokens)
        losses, zeros = zip(*found, strict=True)
        if not share:
            expected = [loss for loss, _ in trained(None, theirs, tokens)]
            assert losses == pytest.approx(expected, rel=1e-4)
        assert all(map(isfinite, losses))
        assert all(torch.isfinite(p).all() for p in model.parameters())
        # of each value, on its own: a binomial distribution's mean and standard deviation
        values = STEPS * 4 * 12 * 16
        allowed = 5 * (values * share * (1 - share)) ** 0.5
        assert abs(sum(zeros) - values * share) <= allowed
        assert len(set(zeros)) > 1 or not share  # each step has masks of its own


@pytest.mark.parametrize("make", [partial(gpt2, dropout=0.0), llama], ids=["gpt2", "llama"])
def test_pretrained_weights_are_loaded_and_saved(tmp_path, make):
    """`from_pretrained` before the block, `save_pretrained` after it; tied weights, too."""
    torch.manual_seed(4)
    first = make()
    first.save_pretrained(tmp_path / "first")
    tokens = torch.randint(0, VOCABULARY, (12, 8))

    def trained(model, place):
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(tokens), 4)
        block = nullcontext()
        if place is not None:
            cbtorch.initialize(model_dir=place)
            model, loader = cbtorch.module(model), cbtorch.dataloader(loader)
            block = cbtorch.Session(model, optimizer, mode="train")
        with block:
            for (batch,) in loader:
                optimizer.zero_grad()
                model(input_ids=batch, labels=batch).loss.backward()
                optimizer.step()
        return model

    kind = type(first)
    ours = trained(kind.from_pretrained(tmp_path / "first"), tmp_path / "model_dir")
    ours.save_pretrained(tmp_path / "out")
    theirs = trained(kind.from_pretrained(tmp_path / "first"), None)
    found, expected = kind.from_pretrained(tmp_path / "out").state_dict(), theirs.state_dict()
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=1e-5, atol=1e-7, msg=name)
        changed = not torch.equal(weights, first.state_dict()[name])
        assert changed or not weights.is_floating_point(), name
