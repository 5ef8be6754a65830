from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import PreTrainedModel

from treetrain.errors import RandomModelError, UnsupportedModelError
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.policy import policy_loss
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.models.prepared import find_prepared
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family, worked_example
from treetrain.verification.verify import verify

SEQUENCES = tree_family()["uneven"]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

#: Family, settings of the model, settings of LoRA.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "every_linear": ("llama", {}, {}),
    "rank_stabilised": ("llama", {}, {"use_rslora": True, "rank_pattern": {"q_proj": 2}}),
    "dora": ("llama", {}, {"use_dora": True}),
    "biases": ("qwen2", {}, {"bias": "all"}),
    "conv1d": ("gpt2", {}, {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
    "head": ("llama", {}, {"target_modules": ["q_proj", "lm_head"]}),
    "head_dora": ("llama", {}, {"target_modules": ["v_proj", "lm_head"], "use_dora": True}),
    "embeddings": ("llama", {}, {"target_modules": ["q_proj", "embed_tokens"]}),
    "whole_head": ("llama", {}, {"modules_to_save": ["lm_head"]}),
    "whole_embeddings": ("llama", {}, {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "tied_embeddings": (
        "llama",
        {"tie_word_embeddings": True},
        {"target_modules": ["q_proj", "embed_tokens"]},
    ),
    "tied_whole_head": ("llama", {"tie_word_embeddings": True}, {"modules_to_save": ["lm_head"]}),
    "tokens": ("llama", {}, {"trainable_token_indices": [1, 2, 10]}),
    "tied_tokens": (
        "llama",
        {"tie_word_embeddings": True},
        {"trainable_token_indices": [1, 2, 10]},
    ),
    "window": ("mistral", {}, {}),
    "experts": ("qwen3_moe", {}, {"target_parameters": ["mlp.experts.gate_up_proj"]}),
}

#: Adapters of other kinds, all of which change layers in place.
OTHERS: dict[str, Any] = {
    "ia3": peft.IA3Config(
        target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        init_ia3_weights=False,
        task_type="CAUSAL_LM",
    ),
    "loha": peft.LoHaConfig(r=2, target_modules=ALL, init_weights=False, task_type="CAUSAL_LM"),
    "oft": peft.OFTConfig(
        oft_block_size=8, target_modules=["q_proj"], init_weights=False, task_type="CAUSAL_LM"
    ),
    "norms": peft.LNTuningConfig(target_modules=["input_layernorm"], task_type="CAUSAL_LM"),
}


def lora(**settings: Any) -> LoraConfig:
    """LoRA whose adapters are not 0 at the start."""
    values = {"target_modules": ALL, **settings}
    return LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, init_lora_weights=False, **values)


def adapt(model: PreTrainedModel, config: Any) -> PeftModel:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return get_peft_model(model, config)


def make_adapted(**settings: Any) -> PeftModel:
    return adapt(make_tiny_model("llama"), lora(**settings))


def check_exact(model: PeftModel, plain: PeftModel) -> None:
    """Logits and all gradients of the prepared `model` against the untouched `plain`."""
    alone = logits_alone(plain, SEQUENCES)
    tree = logits_on_tree(find_prepared(model), SEQUENCES)
    grads, others = gradients(model, tree), gradients(plain, alone)
    assert any(name_of_adapter(name) and float(grads[name].abs().max()) > 0 for name in grads)
    check_equal(tree, alone, grads, others)


def name_of_adapter(name: str) -> bool:
    parts = ("lora_", "ia3_", "hada_", "oft_", "ln_tuning", "trainable_tokens", "modules_to_save")
    return any(part in name for part in parts)


def separate_gradients(plain: nn.Module, sequences: Sequence[list[int]]) -> list[Tensor | None]:
    plain.zero_grad()
    for sequence in sequences:
        tokens = torch.tensor(sequence)
        logits = plain(input_ids=tokens[None], use_cache=False).logits[0, :-1]
        F.cross_entropy(logits, tokens[1:], reduction="sum").backward()
    return [parameter.grad for parameter in plain.parameters()]


def alone_logprobs(plain: nn.Module, sequence: list[int]) -> Tensor:
    tokens = torch.tensor(sequence)
    with torch.no_grad():
        logits = plain(input_ids=tokens[None], use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


def check_logprobs(model: nn.Module, plain: nn.Module) -> None:
    with torch.no_grad():
        ours = sequence_logprobs(model, pack(SEQUENCES))
    for one, sequence in zip(ours, SEQUENCES, strict=True):
        torch.testing.assert_close(one, alone_logprobs(plain, sequence), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_of_lora_equal_those_of_each_sequence_alone(kind: str) -> None:
    family, overrides, settings = KINDS[kind]
    model = adapt(make_tiny_model(family, **overrides), lora(**settings))
    plain = copy.deepcopy(model)
    prepare(model)
    check_exact(model, plain)


@pytest.mark.parametrize("kind", OTHERS)
def test_adapters_of_other_kinds_that_change_layers_in_place_are_exact(kind: str) -> None:
    model = adapt(make_tiny_model("llama"), copy.deepcopy(OTHERS[kind]))
    plain = copy.deepcopy(model)
    prepare(model)
    check_exact(model, plain)


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "lm_head"], "use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"trainable_token_indices": [1, 2, 10]},
    ],
)
@pytest.mark.parametrize("chunk_tokens", [None, 3])
def test_gradients_of_an_adapted_head_are_summed_over_its_chunks(
    settings: dict[str, Any], chunk_tokens: int | None
) -> None:
    tied = "trainable_token_indices" in settings
    model = adapt(make_tiny_model("llama", tie_word_embeddings=tied), lora(**settings))
    plain = copy.deepcopy(model)
    prepare(model)
    sft_loss(model, pack(SEQUENCES), "sum", chunk_tokens=chunk_tokens).backward()
    expected = separate_gradients(plain, SEQUENCES)
    largest = max(float(grad.abs().max()) for grad in expected if grad is not None)
    for (name, one), other in zip(model.named_parameters(), expected, strict=True):
        assert (one.grad is None) == (other is None), name
        if other is not None:
            assert float((one.grad - other).abs().max()) <= 1e-5 * largest, name


def test_with_adapters_off_log_probabilities_are_those_of_the_base_model() -> None:
    model = make_adapted(modules_to_save=["lm_head"]).train()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(2.0)
    prepare(model)
    with model.disable_adapter():
        check_logprobs(model, make_tiny_model("llama"))
    adapted = sequence_logprobs(model, pack(SEQUENCES))[0]
    base = alone_logprobs(make_tiny_model("llama"), SEQUENCES[0])
    assert float((adapted - base).detach().abs().max()) > 0.1


def test_a_policy_loss_takes_its_reference_from_adapters_off() -> None:
    model = make_adapted()
    prepare(model)
    batch = pack(SEQUENCES)
    with torch.no_grad(), model.disable_adapter():
        reference = sequence_logprobs(model, batch)
    result = policy_loss(
        model,
        batch,
        "sum",
        objective="grpo",
        advantages=[1.0] * len(SEQUENCES),
        old_logprobs=[logprobs.detach() for logprobs in sequence_logprobs(model, batch)],
        clip_low=0.2,
        clip_high=0.2,
        reference_logprobs=reference,
        kl_coefficient=0.1,
    )
    result.loss.backward()
    assert all(
        parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad
    )


def test_the_adapter_that_is_active_is_the_one_computed() -> None:
    model = make_adapted()
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model.add_adapter("other", lora(target_modules=["v_proj", "lm_head"]))
    plain = copy.deepcopy(model)
    prepare(model)
    for name in ("default", "other", "default"):
        model.set_adapter(name)
        plain.set_adapter(name)
        check_exact(model, plain)
    model.base_model.set_adapter(["default", "other"])
    plain.base_model.set_adapter(["default", "other"])
    check_exact(model, plain)


def test_adapters_may_be_merged_and_taken_out_again() -> None:
    model = make_adapted(target_modules=["q_proj", "lm_head"])
    plain = copy.deepcopy(model)
    prepare(model)
    model.merge_adapter()
    check_logprobs(model, plain)
    model.unmerge_adapter()
    check_exact(model, plain)


def test_a_prepared_model_may_be_adapted_afterwards() -> None:
    model = make_tiny_model("llama")
    handle = prepare(model)
    adapted = adapt(model, lora())
    assert find_prepared(adapted) is handle
    plain = adapt(make_tiny_model("llama"), lora())
    check_exact(adapted, plain)
    handle.undo()
    with pytest.raises(ValueError, match=r"treetrain\.prepare\(model\)"):
        sft_loss(adapted, pack(SEQUENCES), "sum")


def test_an_output_layer_that_is_adapted_afterwards_is_noticed() -> None:
    model = make_tiny_model("llama")
    prepare(model)
    adapted = adapt(model, lora(target_modules=["lm_head"]))
    with pytest.raises(ValueError, match=r"output layer was replaced; call prepare\(model\) again"):
        sft_loss(adapted, pack(SEQUENCES), "sum")
    prepare(adapted)
    sft_loss(adapted, pack(SEQUENCES), "sum").backward()


def test_adapters_in_a_model_without_a_wrapper_are_exact() -> None:
    model = make_tiny_model("llama")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        peft.inject_adapter_in_model(lora(), model)
    plain = copy.deepcopy(model)
    prepare(model)
    check_exact(model, plain)


REFUSED: dict[str, Any] = {
    "prompt_tuning": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "p_tuning": peft.PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8
    ),
    "prefix_tuning": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "adaption_prompt": peft.AdaptionPromptConfig(
        task_type="CAUSAL_LM", adapter_len=3, adapter_layers=2
    ),
    "poly": peft.PolyConfig(
        task_type="CAUSAL_LM", n_tasks=2, n_skills=2, n_splits=1, r=2, target_modules=["q_proj"]
    ),
    "activated_lora": lora(alora_invocation_tokens=[1, 2]),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("before", [True, False])
def test_adapters_that_change_the_call_are_refused_by_name(kind: str, before: bool) -> None:
    model = make_tiny_model("llama")
    if not before:
        prepare(model)
    adapted = adapt(model, copy.deepcopy(REFUSED[kind]))
    with pytest.raises(UnsupportedModelError, match=r"'default' \(\w+\) that .*such as LoRA"):
        prepare(adapted) if before else sft_loss(adapted, pack(SEQUENCES), "sum")


def test_a_wrapper_whose_forward_computes_something_else_is_refused() -> None:
    class Doubled(peft.PeftModelForCausalLM):
        def forward(self, *args: Any, **keywords: Any) -> Any:
            output = super().forward(*args, **keywords)
            output.logits = output.logits * 2
            return output

    model = Doubled(make_tiny_model("llama"), lora())
    with pytest.raises(UnsupportedModelError, match="Doubled gives other logits than the Llama"):
        prepare(model)


@pytest.mark.parametrize("part", ["wrapper", "tuner"])
def test_hooks_of_what_is_around_the_model_are_refused(part: str) -> None:
    model = make_adapted()
    prepare(model)
    hooked = model if part == "wrapper" else model.base_model
    hooked.register_forward_hook(lambda module, inputs, output: None)
    with pytest.raises(UnsupportedModelError, match="has a forward hook"):
        sft_loss(model, pack(SEQUENCES), "sum")


def test_dropout_of_an_adapter_is_refused_in_training_only() -> None:
    # New adapters come in training, whatever the model is in.
    model = make_adapted(lora_dropout=0.25).eval()
    prepare(model)
    batch = pack(SEQUENCES)
    sft_loss(model, batch, "sum")
    model.train()
    with pytest.raises(RandomModelError, match=r"lora_dropout\.default would drop 0\.25.*eval\(\)"):
        sft_loss(model, batch, "sum")


def test_dropout_of_an_adapter_that_is_off_drops_nothing() -> None:
    model = make_adapted(lora_dropout=0.25)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model.add_adapter("calm", lora())
    prepare(model.train())
    with model.disable_adapter():
        check_logprobs(model, make_tiny_model("llama"))
    model.set_adapter("calm")
    sft_loss(model, pack(SEQUENCES), "sum").backward()
    model.set_adapter("default")
    with pytest.raises(RandomModelError, match=r"lora_dropout\.default"):
        sft_loss(model, pack(SEQUENCES), "sum")


@pytest.mark.parametrize("rate", ["rank_dropout", "module_dropout"])
def test_rates_of_adapters_without_dropout_modules_are_refused_in_training(rate: str) -> None:
    config = peft.LoHaConfig(r=2, target_modules=ALL, task_type="CAUSAL_LM", **{rate: 0.5})
    model = adapt(make_tiny_model("llama"), config).train()
    prepare(model)
    with pytest.raises(RandomModelError, match=rf"with {rate}=0\.5.*{rate}=0"):
        sft_loss(model, pack(SEQUENCES), "sum")


def test_an_adapter_that_draws_is_refused_while_its_weights_still_hide_it() -> None:
    model = adapt(make_tiny_model("llama"), LoraConfig(target_modules=ALL, task_type="CAUSAL_LM"))
    layer = model.get_base_model().model.layers[1].mlp.up_proj

    class Noisy(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden + torch.randn_like(hidden) if self.training else hidden

    layer.lora_dropout["default"] = Noisy()
    prepare(model.eval())
    sft_loss(model, pack(SEQUENCES), "sum")
    model.train()
    with pytest.raises(RandomModelError, match="draws at random"):
        sft_loss(model, pack(SEQUENCES), "sum")


def test_a_head_that_other_adapters_make_use_foreign_parameters_is_refused() -> None:
    model = make_adapted()
    foreign = torch.ones(64, requires_grad=True)
    layer = model.get_output_embeddings()
    tuned = model.get_base_model().model.layers[0].self_attn.q_proj
    layer.register_forward_hook(
        lambda module, inputs, output: output if tuned.disable_adapters else output + foreign
    )
    with model.disable_adapter():
        prepare(model)
        sft_loss(model, pack(SEQUENCES), "sum")
    with pytest.raises(UnsupportedModelError, match=r"adapter of another layer.*no gradient"):
        sft_loss(model, pack(SEQUENCES), "sum")


@pytest.mark.parametrize("reentrant", [True, False])
def test_adapters_keep_their_gradients_under_checkpointing(reentrant: bool) -> None:
    model = make_adapted().train()
    plain = copy.deepcopy(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    prepare(model)
    check_exact(model, plain)


def test_adapted_layers_may_be_compiled() -> None:
    torch._dynamo.reset()
    model = make_adapted()
    plain = copy.deepcopy(model)
    prepare(model)
    backend = CompileCounterWithBackend("aot_eager")
    for layer in model.get_base_model().model.layers:
        layer.compile(backend=backend)
    check_exact(model, plain)
    assert backend.frame_count > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_verify_takes_the_adapted_model(dtype: torch.dtype) -> None:
    model = adapt(make_tiny_model("llama", dtype=dtype), lora()).train()
    report = verify(model, worked_example())
    assert report.equal
    assert "lora_" in str(report.worst_parameter)


def test_saving_a_prepared_model_writes_its_adapter(tmp_path: Path) -> None:
    model = make_adapted()
    prepare(model)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(make_tiny_model("llama"), tmp_path)
    tokens = torch.tensor([SEQUENCES[1]])
    assert torch.equal(loaded(input_ids=tokens).logits, model(input_ids=tokens).logits)


def test_undoing_gives_the_adapted_model_back_as_it_was() -> None:
    model = make_adapted()
    plain = copy.deepcopy(model)
    handle = prepare(model)
    assert handle.model is model.get_base_model()
    handle.undo()
    for one, other in zip(
        logits_alone(model, SEQUENCES), logits_alone(plain, SEQUENCES), strict=True
    ):
        assert torch.equal(one, other)


def test_the_library_needs_no_peft() -> None:
    code = "import sys; import treetrain; treetrain.prepare; assert 'peft' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
