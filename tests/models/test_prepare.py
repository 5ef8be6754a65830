from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.models.baseline import logits_on_tree
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from treetrain.errors import UnsupportedModelError
from treetrain.models.prepare import prepare
from treetrain.models.prepared import find_prepared
from treetrain.packing.packed_tree import pack_tree
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import worked_example
from treetrain.tree.build import build_prefix_tree

PADDED = {
    "input_ids": torch.tensor([[5, 6, 7, 8, 9, 10, 11], [0, 0, 0, 8, 7, 6, 5]]),
    "attention_mask": torch.tensor([[1] * 7, [0, 0, 0, 1, 1, 1, 1]]),
}


def plain_results(model: PreTrainedModel) -> list[torch.Tensor]:
    with torch.no_grad():
        return [
            model(**PADDED).logits,
            model(input_ids=PADDED["input_ids"]).logits,
            model.generate(**PADDED, max_new_tokens=6, do_sample=False),
        ]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gemma3_text"])
def test_plain_calls_padded_batches_and_generate_are_bit_equal(
    family: str, implementation: str
) -> None:
    model = make_tiny_model(family, attn_implementation=implementation)
    before = plain_results(model)
    prepared = prepare(model)
    for one, other in zip(plain_results(model), before, strict=True):
        assert torch.equal(one, other)
    prepared.undo()
    for one, other in zip(plain_results(model), before, strict=True):
        assert torch.equal(one, other)


def test_undo_gives_back_config_and_attributes() -> None:
    model = make_tiny_model("llama")
    attributes, config = set(vars(model)), model.config.to_dict()
    prepared = prepare(model)
    assert prepared.active
    prepared.undo()
    prepared.undo()
    assert not prepared.active
    assert set(vars(model)) == attributes
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == "sdpa"


def test_modes_weights_and_random_state_stay_as_they_were() -> None:
    model = make_tiny_model("llama")
    model.model.layers[1].train()
    modes = [module.training for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    prepare(model)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_undone_model_refuses_trees_and_names_the_way_out() -> None:
    model = make_tiny_model("llama")
    prepared = prepare(model)
    assert find_prepared(model) is prepared
    prepared.undo()
    packed = pack_tree(build_prefix_tree(worked_example()))
    with pytest.raises(ValueError, match=r"call prepare\(model\) again"):
        prepared.hidden_states(packed)
    with pytest.raises(ValueError, match=r"treetrain.prepare\(model\)"):
        find_prepared(model)


def test_undone_for_a_while_is_prepared_again_even_after_an_error() -> None:
    prepared = prepare(make_tiny_model("llama"))

    def fail() -> None:
        with prepared.undone():
            assert prepared.model.config._attn_implementation == "sdpa"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert prepared.active


def test_preparing_twice_keeps_one_handle_that_undoes_everything() -> None:
    model = make_tiny_model("llama")
    prepare(model, "reference")
    again = prepare(model, "slices")
    assert find_prepared(model) is again
    again.undo()
    assert model.config._attn_implementation == "sdpa"


def test_a_copy_of_a_prepared_model_works_on_its_own() -> None:
    model = make_tiny_model("llama")
    prepared = prepare(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.lm_head.weight.mul_(2.0)
    ours = logits_on_tree(find_prepared(twin), worked_example())
    theirs = logits_on_tree(prepared, worked_example())
    assert torch.allclose(ours[0], 2 * theirs[0], atol=1e-5)
    find_prepared(twin).undo()
    assert prepared.active


def test_saving_a_prepared_model_writes_a_plain_one(tmp_path: object) -> None:
    model = make_tiny_model("llama")
    prepare(model)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa"
    assert torch.equal(loaded(**PADDED).logits, model(**PADDED).logits)


def test_a_tree_without_tokens_has_no_hidden_states() -> None:
    prepared = prepare(make_tiny_model("llama"))
    hidden = prepared.hidden_states(pack_tree(build_prefix_tree([[], []])))
    assert hidden.shape == (0, 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_prepared(dtype: torch.dtype) -> None:
    prepared = prepare(make_tiny_model("llama", dtype=dtype))
    packed = pack_tree(build_prefix_tree(worked_example()))
    assert prepared.hidden_states(packed).dtype == dtype


def test_a_module_that_is_no_transformers_model_is_refused() -> None:
    with pytest.raises(TypeError, match="PreTrainedModel, got Linear"):
        prepare(nn.Linear(2, 2))


def test_a_model_without_output_layer_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="AutoModelForCausalLM"):
        prepare(make_tiny_model("llama").model)


def test_a_backend_of_no_such_name_is_refused_when_preparing() -> None:
    model = make_tiny_model("gemma2")
    with pytest.raises(ValueError, match=r"backend must be"):
        prepare(model, "fast")
    assert model.config._attn_implementation == "eager"
    assert prepare(model).backends == ["slices"]


def test_active_dropout_is_refused_and_eval_accepted() -> None:
    packed = pack_tree(build_prefix_tree(worked_example()))
    model = make_tiny_model("gpt2")
    model.transformer.h[2].resid_dropout = nn.Dropout(0.1).eval()
    prepared = prepare(model)
    prepared.hidden_states(packed)
    model.train()
    with pytest.raises(UnsupportedModelError, match=r"would drop 0.1.*model.eval\(\)"):
        prepared.hidden_states(packed)


def test_attention_dropout_in_training_is_refused() -> None:
    model = make_tiny_model("llama", attention_dropout=0.2)
    prepared = prepare(model)
    packed = pack_tree(build_prefix_tree(worked_example()))
    model.model.layers[1].self_attn.train()
    with pytest.raises(UnsupportedModelError, match=r"draws at random"):
        prepared.hidden_states(packed)
    model.train()
    with pytest.raises(UnsupportedModelError, match=r"draws at random.*model.eval\(\)"):
        prepared.hidden_states(packed)


def test_unsupported_implementations_name_the_way_out() -> None:
    model = make_tiny_model("llama", attn_implementation="flex_attention")
    with pytest.raises(UnsupportedModelError, match=r"set_attn_implementation\('sdpa'\)"):
        prepare(model)


def test_an_implementation_that_leaves_out_the_cap_of_scores_is_refused() -> None:
    model = make_tiny_model("gemma2")
    model.config._attn_implementation_internal = "sdpa"
    with pytest.raises(UnsupportedModelError, match="eager"):
        prepare(model)


def test_positions_counted_in_packed_order_are_caught() -> None:
    """A model that ignores depth positions is wrong on trees, silently but for the check."""
    model = make_tiny_model("llama")
    rotary = model.model.rotary_emb
    forward = type(rotary).forward

    class Stubborn(type(rotary)):
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> object:
            return forward(self, x, torch.arange(x.shape[1])[None])

    rotary.__class__ = Stubborn
    with pytest.raises(UnsupportedModelError, match="other logits on a tree"):
        prepare(model)
    assert model.config._attn_implementation == "sdpa"


def test_rotary_embeddings_that_depend_on_length_are_refused_from_it_on() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    rope["original_max_position_embeddings"] = 64
    model = make_tiny_model("llama", rope_parameters=rope, max_position_embeddings=16)
    prepared = prepare(model)
    prepared.hidden_states(pack_tree(build_prefix_tree([list(range(3, 18))])))
    with pytest.raises(UnsupportedModelError, match="16 tokens"):
        prepared.hidden_states(pack_tree(build_prefix_tree([list(range(3, 19))])))


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("gemma2", {"final_logit_softcapping": 30.0}),
        ("granite", {"logits_scaling": 8.0}),
        ("cohere", {"logit_scale": 0.0625}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scale_and_cap_of_logits_are_found_where_logits_are_small(
    family: str, setting: dict[str, float], dtype: torch.dtype
) -> None:
    config = make_tiny_model("llama").config.to_dict()
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    sizes += ("num_attention_heads", "num_key_value_heads", "head_dim")
    values = {name: config[name] for name in sizes} | setting
    values |= {"pad_token_id": 0, "attention_dropout": 0.0}
    implementation = "eager" if family == "gemma2" else "sdpa"
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **values), attn_implementation=implementation
    ).to(dtype)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1e-3)
    head = prepare(model).head
    assert head.softcap == setting.get("final_logit_softcapping")
    assert head.scale == setting.get("logit_scale", 1.0) / setting.get("logits_scaling", 1.0)


def test_a_replaced_head_and_a_changed_config_are_noticed() -> None:
    packed = pack_tree(build_prefix_tree(worked_example()))
    prepared = prepare(make_tiny_model("llama"))
    prepared.model.resize_token_embeddings(70)
    with pytest.raises(ValueError, match="output layer was replaced"):
        prepared.hidden_states(packed)
    prepared = prepare(make_tiny_model("mistral"))
    prepared.model.config.sliding_window = 16
    with pytest.raises(ValueError, match=r"config\.sliding_window was changed"):
        prepared.hidden_states(packed)


def test_an_id_beyond_the_vocabulary_is_named() -> None:
    prepared = prepare(make_tiny_model("llama"))
    with pytest.raises(ValueError, match="below the model's vocabulary of 64, got 64"):
        prepared.hidden_states(pack_tree(build_prefix_tree([[1, 2, 64]])))


def test_dropout_that_is_added_later_is_refused() -> None:
    prepared = prepare(make_tiny_model("llama"))
    prepared.model.model.layers[0].mlp.drop = nn.Dropout(0.1)
    prepared.model.train()
    with pytest.raises(UnsupportedModelError, match=r"would drop 0\.1"):
        prepared.hidden_states(pack_tree(build_prefix_tree(worked_example())))


def test_randomness_outside_dropout_modules_is_refused_in_training() -> None:
    config = AutoConfig.for_model(
        "opt",
        vocab_size=64,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        dropout=0.1,
        attention_dropout=0.0,
    )
    packed = pack_tree(build_prefix_tree(worked_example()))
    prepared = prepare(AutoModelForCausalLM.from_config(config).eval())
    prepared.hidden_states(packed)
    prepared.model.train()
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedModelError, match="draws at random"):
        prepared.hidden_states(packed)
    assert torch.equal(torch.get_rng_state(), state)


def test_convolutions_are_refused_in_every_dtype() -> None:
    model = make_tiny_model("llama", dtype=torch.bfloat16)
    model.model.layers[1].mlp.mixer = nn.Conv1d(32, 32, 4, groups=32)
    with pytest.raises(UnsupportedModelError, match="convolves 4 neighbouring tokens"):
        prepare(model)


def test_a_config_shared_with_a_prepared_model_is_named() -> None:
    model = make_tiny_model("llama")
    twin = type(model)(model.config)
    prepare(model)
    with pytest.raises(UnsupportedModelError, match="shares its config"):
        prepare(twin)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "gpt_oss", "deepseek_v3"])
def test_autocast_computes_what_it_computes_alone(family: str) -> None:
    model = make_tiny_model(family)
    tokens = torch.tensor([worked_example()[0]])
    prepared = prepare(model)
    packed = pack_tree(build_prefix_tree([worked_example()[0]]))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        alone = model(input_ids=tokens, use_cache=False).logits[0].float()
        ours = prepared.head(prepared.hidden_states(packed))
    assert float((ours - alone).abs().max()) <= 0.05 * float(alone.abs().max())


def test_what_was_packed_in_inference_mode_can_be_trained() -> None:
    prepared = prepare(make_tiny_model("llama"))
    with torch.inference_mode():
        packed = pack_tree(build_prefix_tree(worked_example()))
        prepared.hidden_states(packed)
    prepared.hidden_states(packed).sum().backward()


def test_recurrent_models_are_refused() -> None:
    config = AutoConfig.for_model(
        "mamba", vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4
    )
    with pytest.raises(UnsupportedModelError):
        prepare(AutoModelForCausalLM.from_config(config))


def test_what_is_no_module_between_decoder_and_head_is_refused() -> None:
    class Squashed(LlamaForCausalLM):
        def forward(self, input_ids: Any = None, **keywords: Any) -> Any:  # pyright: ignore
            hidden = self.model(input_ids=input_ids, use_cache=False)[0]
            return CausalLMOutput(logits=self.lm_head(hidden.tanh()))

    with pytest.raises(UnsupportedModelError, match="neither a factor nor a module"):
        prepare(Squashed(make_tiny_model("llama").config))


def test_threads_may_prepare_models_at_once() -> None:
    families = ["llama", "mistral", "gpt2", "gemma2"] * 2
    models = [make_tiny_model(family) for family in families]
    alone = [prepare(make_tiny_model(family)).layers.values() for family in families]
    with ThreadPoolExecutor(len(models)) as pool:
        prepared = list(pool.map(prepare, models))
    for one, layers in zip(prepared, alone, strict=True):
        assert list(one.layers.values()) == list(layers)


def test_one_model_prepared_by_threads_at_once_is_prepared_once() -> None:
    model = make_tiny_model("llama")
    with ThreadPoolExecutor(4) as pool:
        handles = list(pool.map(prepare, [model] * 4))
    assert [handle.active for handle in handles].count(True) == 1
    assert find_prepared(model).active


def test_an_attention_implementation_chosen_after_preparing_is_named_and_kept() -> None:
    model = make_tiny_model("llama")
    prepared = prepare(model)
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match=r"implementation was set to 'eager' after.*again"):
        prepared.hidden_states(pack_tree(build_prefix_tree(worked_example())))
    again = prepare(model)
    again.hidden_states(pack_tree(build_prefix_tree(worked_example())))
    again.undo()
    assert model.config._attn_implementation == "eager"
