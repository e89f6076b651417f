"""Models of the transformers library, as they are."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")
transformers = pytest.importorskip("transformers", reason="it has the models")

from support.recorded import Beside  # noqa: E402

VOCABULARY = 31


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
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
