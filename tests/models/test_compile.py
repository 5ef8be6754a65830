from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.packing.packed_tree import pack_tree
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import random_forest, worked_example
from treetrain.tree.build import build_prefix_tree
from treetrain.verification.verify import verify

#: A layer is cut where attention is called: norm, projections with rotary embedding, output
#: projection, and the rest. Each part is compiled for the first tree and once more for any size.
LAYER_GRAPHS = 2 * 4


def forests() -> list[list[list[int]]]:
    """Fourteen trees, no two of one size, from one sequence to hundreds of tokens."""
    rng = np.random.default_rng(7)
    found = [[[5, 6, 7]], worked_example()]
    for step in range(12):
        found.append(
            random_forest(
                rng, roots=1 + step % 3, depth=3 + step % 3, node_tokens=2 + step, children=2
            )
        )
    return found


def compile_layers(model: PreTrainedModel, backend: Callable[..., object]) -> None:
    for layer in model.base_model.layers:
        layer.compile(backend=backend)


def compile_forwards(model: PreTrainedModel, backend: Callable[..., object]) -> None:
    for layer in model.base_model.layers:
        layer.forward = torch.compile(layer.forward, backend=backend)


def compile_decoder(model: PreTrainedModel, backend: Callable[..., object]) -> None:
    model.base_model.compile(backend=backend)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """No graphs of other tests, and an error where torch would give up and run uncompiled."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def test_the_trees_have_as_many_sizes_as_there_are_trees() -> None:
    sizes = {build_prefix_tree(sequences).num_tokens for sequences in forests()}
    assert len(sizes) == len(forests()) >= 12


@functools.cache
def baseline(family: str) -> list[tuple[list[Tensor], dict[str, Tensor]]]:
    """Logits and gradients of each forest's sequences alone, in a model nobody compiles."""
    plain = make_tiny_model(family)
    found = []
    for sequences in forests():
        alone = logits_alone(plain, sequences)
        found.append(([logits.detach() for logits in alone], gradients(plain, alone)))
    return found


def count_graphs(family: str, compile_parts: Callable[..., None], *, before: bool) -> list[int]:
    """Graphs compiled by the end of each forest, all of which are exact forward and backward."""
    model = make_tiny_model(family)
    backend = CompileCounterWithBackend("aot_eager")
    if before:
        compile_parts(model, backend)
    prepared = prepare(model)
    if not before:
        compile_parts(model, backend)
    counts = []
    for sequences, (alone, grads) in zip(forests(), baseline(family), strict=True):
        tree = logits_on_tree(prepared, sequences)
        check_equal(tree, alone, gradients(model, tree), grads)
        counts.append(int(backend.frame_count))
    return counts


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("compile_parts", [compile_layers, compile_forwards])
def test_compiled_layers_are_exact_with_a_bounded_number_of_graphs(
    compile_parts: Callable[..., None], before: bool
) -> None:
    counts = count_graphs("llama", compile_parts, before=before)
    assert 0 < counts[0] <= LAYER_GRAPHS // 2
    # The second tree brings any size; nothing is compiled for all that follow.
    assert counts[1:] == [counts[1]] * len(counts[1:])
    assert counts[1] <= LAYER_GRAPHS


@pytest.mark.slow
def test_layers_with_windows_are_exact_with_a_bounded_number_of_graphs() -> None:
    counts = count_graphs("mistral", compile_layers, before=False)
    assert 0 < counts[1] == counts[-1] <= LAYER_GRAPHS


@pytest.mark.slow
def test_layers_with_sinks_and_experts_compute_what_they_compute_uncompiled() -> None:
    plain, model = make_tiny_model("gpt_oss"), make_tiny_model("gpt_oss")
    uncompiled, prepared = prepare(plain), prepare(model)
    backend = CompileCounterWithBackend("aot_eager")
    compile_layers(model, backend)
    counts = []
    for sequences in forests():
        ours, theirs = (logits_on_tree(one, sequences) for one in (prepared, uncompiled))
        check_equal(ours, theirs, gradients(model, ours), gradients(plain, theirs))
        counts.append(int(backend.frame_count))
    # Experts cut a layer once more.
    assert 0 < counts[1] == counts[-1] <= LAYER_GRAPHS + 2


def test_more_layers_need_no_more_graphs() -> None:
    counts = []
    for layers in (2, 6):
        torch._dynamo.reset()
        model = make_tiny_model("llama", num_hidden_layers=layers)
        backend = CompileCounterWithBackend("aot_eager")
        prepared = prepare(model)
        compile_layers(model, backend)
        for sequences in forests()[:3]:
            gradients(model, logits_on_tree(prepared, sequences))
        counts.append(int(backend.frame_count))
    assert counts[0] == counts[1] <= LAYER_GRAPHS


def test_a_compiled_decoder_is_exact_with_a_bounded_number_of_graphs() -> None:
    counts = count_graphs("llama", compile_decoder, before=False)
    # Its own parts are what stands before the layers, between them and behind them.
    assert counts[1:] == [counts[1]] * len(counts[1:])
    assert 0 < counts[1] <= LAYER_GRAPHS + 4


@pytest.mark.parametrize("reentrant", [True, False])
def test_compiled_layers_keep_their_gradients_under_checkpointing(reentrant: bool) -> None:
    plain, model = make_tiny_model("llama").train(), make_tiny_model("llama").train()
    prepared = prepare(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    compile_layers(model, CompileCounterWithBackend("aot_eager"))
    for sequences in forests()[:4]:
        alone, tree = logits_alone(plain, sequences), logits_on_tree(prepared, sequences)
        check_equal(tree, alone, gradients(model, tree), gradients(plain, alone))


def test_plain_calls_of_compiled_layers_stay_what_they_were() -> None:
    plain, model = make_tiny_model("llama"), make_tiny_model("llama")
    backend = CompileCounterWithBackend("aot_eager")
    compile_layers(model, backend)
    prepared = prepare(model)
    for sequences in forests()[:4]:
        logits_on_tree(prepared, sequences)
        for sequence in sequences[:3]:
            tokens = torch.tensor([sequence])
            ours = model(input_ids=tokens, use_cache=False).logits
            torch.testing.assert_close(ours, plain(input_ids=tokens, use_cache=False).logits)


def test_layers_compiled_as_one_graph_say_that_attention_stays_outside() -> None:
    model = make_tiny_model("llama")
    prepare(model)
    model.base_model.layers[0].compile(backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compile without fullgraph=True"):
        sft_loss(model, pack(worked_example()), "sum")


def whole_wrapper(model: PreTrainedModel) -> nn.Module:
    return torch.compile(model, backend="eager")


def whole_in_place(model: PreTrainedModel) -> nn.Module:
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize("compile_whole", [whole_wrapper, whole_in_place])
def test_a_model_compiled_as_a_whole_is_accepted_and_told_what_runs_uncompiled(
    compile_whole: Callable[[PreTrainedModel], nn.Module],
) -> None:
    batch = pack(worked_example())
    plain, model = make_tiny_model("llama"), make_tiny_model("llama")
    prepare(plain)
    expected = sft_loss(plain, batch, "sum")
    expected.backward()
    compiled = compile_whole(model)
    with pytest.warns(UserWarning, match=r"layer\.compile\(\)"):
        handle = prepare(compiled)
    assert handle.model is model
    loss = sft_loss(compiled, batch, "sum")
    loss.backward()
    assert torch.equal(loss, expected)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    for one, other in zip(
        sequence_logprobs(compiled, batch), sequence_logprobs(plain, batch), strict=True
    ):
        torch.testing.assert_close(one, other)
    assert verify(compiled, worked_example()).equal
    tokens = torch.tensor([worked_example()[0]])
    handle.undo()
    torch.testing.assert_close(
        compiled(input_ids=tokens, use_cache=False).logits,
        plain(input_ids=tokens, use_cache=False).logits,
    )


def test_a_wrapper_around_compiled_layers_needs_no_warning() -> None:
    model = make_tiny_model("llama")
    compile_layers(model, CompileCounterWithBackend("eager"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(torch.compile(model, backend="eager"))


def test_preparing_a_wrapper_prepares_the_model_and_the_other_way_round() -> None:
    model = make_tiny_model("llama")
    handle = prepare(model)
    compiled = whole_wrapper(model)
    batch = pack(worked_example())
    assert torch.equal(sft_loss(compiled, batch, "sum"), sft_loss(model, batch, "sum"))
    handle.undo()
    with pytest.raises(ValueError, match=r"treetrain\.prepare\(model\)"):
        sft_loss(compiled, batch, "sum")


def test_a_hook_of_the_wrapper_is_refused() -> None:
    compiled = whole_wrapper(make_tiny_model("llama"))
    compiled.register_forward_hook(lambda module, inputs, output: None)
    with pytest.raises(UnsupportedModelError, match="OptimizedModule has a forward hook"):
        prepare(compiled)


def test_a_tree_of_one_token_does_not_hold_later_trees_up() -> None:
    plain, model = make_tiny_model("llama"), make_tiny_model("llama")
    prepared = prepare(model)
    backend = CompileCounterWithBackend("aot_eager")
    compile_layers(model, backend)
    with torch.no_grad():
        for sequences in ([[5]], worked_example(), [[5]], [[6, 7]], worked_example()):
            tree = logits_on_tree(prepared, sequences)
            for one, other in zip(tree, logits_alone(plain, sequences), strict=True):
                torch.testing.assert_close(one, other)
    assert backend.frame_count <= LAYER_GRAPHS
    assert prepared.hidden_states(pack_tree(build_prefix_tree([[]]))).shape == (0, 32)
