"""Checkpoints from and to transformers' layout: logits of models saved by and loaded into it.

transformers takes seconds to import: all tests that need it are in this module.
"""

import json
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from csrun import nn
from csrun.base.errors import UsageError
from csrun.data import Dataset
from csrun.data.formats import write_tokens
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec
from csrun.params import load
from csrun.params.convert import from_huggingface, to_huggingface
from csrun.records import checkpoints

torch = pytest.importorskip("torch", reason="PyTorch computes transformers' models")
transformers = pytest.importorskip("transformers", reason="the package transformers is the oracle")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

MODELS = Path(__file__).parents[2] / "reference_models"
V, T = 61, 16
GPT = {"vocab_size": V, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}
GPT |= {"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
BERT = {
    "vocab_size": V,
    "max_position_embeddings": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@dataclass(frozen=True)
class Case:
    """A class of transformers, its configuration, and the corresponding reference model."""

    model: str
    name: str
    config: dict[str, Any]

    def make(self) -> Any:
        """Random model without zero biases or norm weights of 1."""
        kind = getattr(transformers, self.name)
        torch.manual_seed(3)
        made = kind(kind.config_class(**self.config)).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return made


CASES = {
    "gpt2": Case("gpt2", "GPT2LMHeadModel", GPT),
    "gptj": Case("gptj", "GPTJForCausalLM", {**GPT, "rotary_dim": 6}),
    "bert": Case("bert", "BertForPreTraining", BERT),
    "classifier": Case("bert", "BertForSequenceClassification", {**BERT, "num_labels": 3}),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def conversion(case: Case, request: pytest.FixtureRequest) -> Any:
    request.getfixturevalue(case.model)
    return import_module("convert").CONVERSION


def params_of(conversion, **model):
    params = load(conversion.schema, conversion.default_params)
    sizes = {"sequence_length": T, **model}
    return msgspec.structs.replace(params, model=msgspec.structs.replace(params.model, **sizes))


def features_of(case):
    """Features; some samples of bert have half the length."""
    random = np.random.default_rng(1)
    ids = random.integers(0, V, (5, T)).astype(np.int32)
    if case.model != "bert":
        return (ids,)
    mask = np.arange(T) < np.array([[T], [T // 2], [T], [5], [T]])
    return ids, random.integers(0, 2, (5, T)).astype(np.int32), mask


def logits_of(case, conversion, params, model_dir):
    """csrun's logits of a checkpoint."""
    model, arrays = import_module("model"), features_of(case)
    names = ("input_ids", "segment_ids", "mask")

    def model_fn(features, labels, mode, params):
        if case.model != "bert":
            found = {"logits": getattr(model, case.model)(features, params.model, mode)}
        elif params.model.classes:
            found = {"logits": model.classified(features, params.model, mode)}
        else:
            found = dict(zip("ab", model.bert(features, params.model, mode), strict=True))
        return CSEstimatorSpec(mode, predictions=found)

    def input_fn(params):
        batches = Dataset.from_arrays(*arrays).batch(5)
        if case.model != "bert":
            return batches
        return batches.map(lambda *given: dict(zip(names, given, strict=True)))

    predicted = CerebrasEstimator(model_fn, model_dir, params=params).predict(input_fn)
    return [np.stack([sample[name] for sample in predicted]) for name in predicted[0]]


def torch_logits(case, made):
    given = [torch.from_numpy(array).long() for array in features_of(case)]
    with torch.no_grad():
        if case.model != "bert":
            return [made(given[0]).logits.numpy()]
        out = made(given[0], token_type_ids=given[1], attention_mask=given[2])
    if case.name == "BertForPreTraining":
        return [out.prediction_logits.numpy(), out.seq_relationship_logits.numpy()]
    return [out.logits.numpy()]


def assert_same(case, ours, theirs):
    valid = features_of(case)[2] if case.model == "bert" else slice(None)
    for one, other in zip(ours, theirs, strict=True):
        rows = valid if one.ndim == 3 else slice(None)
        assert np.std(other[rows]) > 0.1  # there is something to compare
        np.testing.assert_allclose(one[rows], other[rows], rtol=0, atol=1e-4)


@pytest.mark.parametrize("shard", ["20KB", pytest.param("5GB", marks=pytest.mark.slow)])
def test_logits_are_the_same_there_and_back(own_folder, case, conversion, shard):
    made = case.make()
    made.save_pretrained(own_folder / "theirs", max_shard_size=shard)
    assert (own_folder / "theirs" / "model.safetensors").exists() == (shard == "5GB")
    given = params_of(conversion)
    params = from_huggingface(conversion, own_folder / "theirs", given, own_folder / "ours")
    assert params == load(conversion.schema, own_folder / "ours" / "params.yaml")
    expected = torch_logits(case, made)
    assert_same(case, logits_of(case, conversion, params, own_folder / "ours"), expected)
    found = checkpoints.latest(own_folder / "ours")
    to_huggingface(
        conversion, own_folder / "back", params, found, 20_000 if shard != "5GB" else 10**9
    )
    again = getattr(transformers, case.name)
    back, info = again.from_pretrained(own_folder / "back", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert_same(case, torch_logits(case, back.eval()), expected)
    shards = list((own_folder / "back").glob("*.safetensors"))
    if shard == "5GB":
        assert [path.name for path in shards] == ["model.safetensors"]
    else:
        assert len(shards) > 2
        assert all(sum(a.nbytes for a in load_file(p).values()) <= 20_000 for p in shards)


def test_dropout_goes_there_and_back(own_folder, case, conversion, caplog):
    """Attention has another rate than the blocks; a rate that the model lacks is logged."""
    keys, lacking = ("resid_pdrop", "attn_pdrop"), "embd_pdrop"
    if case.model == "bert":
        keys = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        lacking = "classifier_dropout"
    rates = {keys[0]: 0.1, keys[1]: 0.25, lacking: 0.3}
    made = replace(case, config={**case.config, **rates}).make()
    made.save_pretrained(own_folder / "theirs")
    given = params_of(conversion)
    params = from_huggingface(conversion, own_folder / "theirs", given, own_folder / "ours")
    assert (params.model.dropout, params.model.attention_dropout) == (0.1, 0.25)
    said = f"{lacking} 0.3 becomes 0.1: the model has one value for {lacking} and {keys[0]}"
    assert said in caplog.text
    found = checkpoints.latest(own_folder / "ours")
    to_huggingface(conversion, own_folder / "back", params, found, 10**9)
    back = json.loads((own_folder / "back" / "config.json").read_text())
    assert [back[key] for key in keys] == [0.1, 0.25]
    expected = torch_logits(case, made)  # in evaluation nothing is dropped
    assert_same(case, logits_of(case, conversion, params, own_folder / "ours"), expected)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves_are_read_as_floats(own_folder, gpt2, kind):
    case, conversion = CASES["gpt2"], import_module("convert").CONVERSION
    made = case.make().to(getattr(torch, kind))
    made.save_pretrained(own_folder / "theirs")
    params = from_huggingface(
        conversion, own_folder / "theirs", params_of(conversion), own_folder / "ours"
    )
    ours = logits_of(case, conversion, params, own_folder / "ours")
    assert_same(case, ours, torch_logits(case, made.float()))


def test_the_names_of_a_base_class_and_of_older_files_are_known(own_folder, bert):
    """bert-base-uncased of the hub has LayerNorm.gamma; GPT2Model saves without a prefix."""
    conversion = import_module("convert").CONVERSION
    made = CASES["bert"].make()
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): value
        for name, value in made.state_dict().items()
    }
    made.save_pretrained(own_folder / "now")
    made.save_pretrained(own_folder / "then", state_dict=older)
    made.bert.save_pretrained(own_folder / "base")
    weights = []
    for name in ("now", "then"):
        from_huggingface(
            conversion, own_folder / name, params_of(conversion), own_folder / "o" / name
        )
        weights.append((own_folder / "o" / name / "model-ckpt-0.safetensors").read_bytes())
    assert weights[0] == weights[1]
    params = params_of(conversion, classes=4)
    from_huggingface(conversion, own_folder / "base", params, own_folder / "o" / "base")
    table = load_file(own_folder / "o" / "base" / "model-ckpt-0.safetensors")
    expected = made.bert.embeddings.LayerNorm.weight.detach().numpy()
    np.testing.assert_array_equal(table["embeddings/norm/gamma"], expected)


@pytest.mark.parametrize("case", [CASES["gpt2"], CASES["gptj"]], ids=["gpt2", "gptj"])
def test_a_training_continues_from_a_converted_checkpoint(own_folder, case, conversion):
    """Its first loss is that of the saved model on the first batch."""
    case.make().save_pretrained(own_folder / "theirs")
    write_tokens(own_folder / "text.bin", [np.random.default_rng(1).integers(0, V, 2000)], V)
    given = params_of(conversion)
    train = msgspec.structs.replace(given.train_input, file=str(own_folder / "text.bin"))
    given = msgspec.structs.replace(given, train_input=train)
    params = from_huggingface(conversion, own_folder / "theirs", given, own_folder / "ours")
    model, data = import_module("model"), import_module("data")
    tokens, labels = next(iter(data.train_input_fn(params)))
    theirs = case.make()(torch.from_numpy(tokens).long()).logits.flatten(0, 1)
    wanted = torch.from_numpy(labels).long().flatten()
    expected = torch.nn.functional.cross_entropy(theirs, wanted).item()
    estimator = CerebrasEstimator(model.model_fn, own_folder / "ours", params=params)
    results = estimator.train(data.train_input_fn, max_steps=1)
    assert results["loss"] == pytest.approx(expected, rel=1e-5)
    assert estimator.train(data.train_input_fn, max_steps=2)["global_step"] == 2


def classes(folder, count):
    """Texts with different words for each class."""
    files = tuple(str(folder / f"class_{k}.bin") for k in range(count))
    for number, file in enumerate(files):
        write_tokens(Path(file), [np.arange(8000) % 19 + 19 * number], V - 4)
    return files


def test_a_head_is_drawn_and_a_converted_bert_learns_classes(own_folder, bert, caplog):
    conversion = import_module("convert").CONVERSION
    CASES["bert"].make().save_pretrained(own_folder / "theirs")
    given, files = params_of(conversion, classes=3), classes(own_folder, 3)
    special = type(given.special_tokens)(pad=V - 4, cls=V - 3, sep=V - 2, mask=V - 1)
    given = msgspec.structs.replace(
        given,
        special_tokens=special,
        train_input=msgspec.structs.replace(given.train_input, file=files),
        eval_input=msgspec.structs.replace(given.eval_input, file=files),
        optimizer=nn.AdamW(3e-3),
    )
    with caplog.at_level("INFO", "csrun"):
        params = from_huggingface(conversion, own_folder / "theirs", given, own_folder / "ours")
        said = caplog.text
        assert "missing, initialized by the training: classifier/kernel, classifier/bias" in said
        assert "skipped, not in this model: cls.predictions.bias, cls.pred" in said
        model, data = import_module("model"), import_module("data")
        estimator = CerebrasEstimator(model.model_fn, own_folder / "ours", params=params)
        estimator.train(data.train_input_fn, max_steps=30)
    drawn = (
        "model-ckpt-0.safetensors lacks classifier/kernel, classifier/bias: initialized from the"
    )
    assert drawn in caplog.text
    assert estimator.evaluate(data.eval_input_fn)["accuracy"] > 0.9
    converted = load_file(own_folder / "ours" / "model-ckpt-0.safetensors")
    assert converted["classifier/kernel"].std() == pytest.approx(0.02, rel=0.3)


def damaged(folder, change):
    """Save a gpt2 whose tensors were changed."""
    made = CASES["gpt2"].make()
    state = {name: value.clone() for name, value in made.state_dict().items()}
    change(state)
    made.save_pretrained(folder, state_dict=state)
    return folder


def test_all_that_does_not_fit_is_named_at_once(own_folder, gpt2, caplog):
    conversion = import_module("convert").CONVERSION

    def change(state):
        del state["transformer.h.1.ln_2.bias"], state["transformer.wpe.weight"]
        state["transformer.h.0.mlp.c_fc.weight"] = torch.zeros(128, 32)
        state["transformer.h.0.attn.c_attn.bias"] = torch.zeros(96, dtype=torch.int32)

    path = damaged(own_folder / "theirs", change)
    with pytest.raises(UsageError) as caught:
        from_huggingface(conversion, path, params_of(conversion), own_folder / "ours")
    assert str(caught.value) == (
        f"{path}: 4 tensors do not fit the model: transformer.wpe.weight: missing; "
        "transformer.h.0.attn.c_attn.bias: must be floating point, got I32; "
        "transformer.h.0.mlp.c_fc.weight: must be [32, 128], got [128, 32]; "
        "transformer.h.1.ln_2.bias: missing"
    )
    assert not (own_folder / "ours").exists()

    def add(state):
        state["transformer.h.0.adapter.weight"] = torch.zeros(3)

    with caplog.at_level("INFO", "csrun"):
        path = damaged(own_folder / "more", add)
        from_huggingface(conversion, path, params_of(conversion), own_folder / "ours")
    assert "skipped, not in this model: transformer.h.0.adapter.weight" in caplog.text


def test_an_untied_tensor_with_other_values_is_refused(own_folder, gpt2):
    """Equal values are accepted, as many saved models have them."""
    conversion = import_module("convert").CONVERSION
    for name, step in (("same", 0), ("other", 1)):

        def untie(state, step=step):
            state["lm_head.weight"] = state["transformer.wte.weight"] + step

        path = damaged(own_folder / name, untie)
        if not step:
            from_huggingface(conversion, path, params_of(conversion), own_folder / "ours")
            continue
        with pytest.raises(UsageError, match=r"lm_head.weight differs from transformer.wte.weight"):
            from_huggingface(conversion, path, params_of(conversion), own_folder / "more")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"activation_function": "relu"}, 'activation_function must be "gelu_new", got "relu"'),
        ({"model_type": "llama"}, 'model_type must be "gpt2", got "llama"'),
        ({"tie_word_embeddings": False}, "tie_word_embeddings must be true, got false"),
        ({"n_embd": None}, "config.json: n_embd must be a number, got null"),
    ],
)
def test_a_model_that_is_another_is_refused(own_folder, gpt2, changes, said):
    conversion = import_module("convert").CONVERSION
    CASES["gpt2"].make().save_pretrained(own_folder / "theirs")
    file = own_folder / "theirs" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(UsageError, match=said):
        from_huggingface(
            conversion, own_folder / "theirs", params_of(conversion), own_folder / "ours"
        )
