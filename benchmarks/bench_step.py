"""A training step on a packed tree against the same step on separate sequences.

Forward and backward of a model of about 18 M non-embedding parameters in float32 on two threads.
The opponents run the untouched model one sequence at a time, so that nothing is padded, and
compute logits only where a token is trained, as the tree step does. *Leafized* drops every
sequence that is a prefix of another and attaches its loss to that one. All contestants compute the
same gradient; what each is off by is measured against separate sequences in float64.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import real_inputs
import shapes
import torch
import torch.nn.functional as F
from harness import Figures, make_parser, run_cases, time_in_turns
from numpy.typing import NDArray
from saved_bytes import measure_saved_bytes
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from treetrain import Sample, pack, prepare, sft_loss
from treetrain.tree.build import build_prefix_tree
from treetrain.tree.metrics import ModelShape, flop_bound, measure_tree

VOCABULARY = 512
LAYERS, HEADS, KV_HEADS, HEAD_SIZE, WIDTH, INNER = 6, 8, 4, 64, 512, 1408


@dataclass(frozen=True)
class Separate:
    """One sequence of a separate step: its tokens and the weight of each as a target."""

    tokens: Tensor
    weights: Tensor


def make_model(family: str, vocabulary: int, seed: int) -> PreTrainedModel:
    config = AutoConfig.for_model(
        family,
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=65536,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()


def leafize(samples: Sequence[Sample]) -> list[Separate]:
    """Attach the loss of every sequence that is a prefix of another to that other one."""
    order = sorted(range(len(samples)), key=lambda number: samples[number].tokens.tolist())
    hosts: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    # In sorted order a sequence that is a prefix of any other is a prefix of the one after it.
    for number in reversed(order):
        tokens, weights = samples[number].tokens, samples[number].weights
        if hosts and np.array_equal(hosts[-1][0][: len(tokens)], tokens):
            hosts[-1][1][: len(tokens)] += weights
        else:
            hosts.append((tokens, weights.copy()))
    return [Separate(torch.tensor(tokens), torch.tensor(weights)) for tokens, weights in hosts]


def run_sequence(model: PreTrainedModel, sequence: Separate, divisor: float) -> None:
    head = model.get_output_embeddings()
    assert head is not None
    hidden = model.base_model(input_ids=sequence.tokens[None], use_cache=False)[0][0]
    predictors = torch.nonzero(sequence.weights[1:])[:, 0]
    logits = head(hidden[predictors])
    losses = F.cross_entropy(logits, sequence.tokens[predictors + 1], reduction="none")
    weights = sequence.weights[predictors + 1].to(losses.dtype)
    ((losses * weights).sum() / divisor).backward()


def separate_parts(
    model: PreTrainedModel, sequences: Sequence[Separate], divisor: float
) -> list[Callable[[], None]]:
    """The parts of a separate step: one for each sequence; the first forgets old gradients."""

    def run_first() -> None:
        model.zero_grad(set_to_none=True)
        run_sequence(model, sequences[0], divisor)

    rest = [partial(run_sequence, model, sequence, divisor) for sequence in sequences[1:]]
    return [run_first, *rest]


def run_separate(model: PreTrainedModel, sequences: Sequence[Separate], divisor: float) -> None:
    for part in separate_parts(model, sequences, divisor):
        part()


def worst_error(model: PreTrainedModel, truth: dict[str, Tensor]) -> float:
    """Largest error of a gradient, relative to the largest entry of its parameter's gradient."""
    errors = []
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        error = (parameter.grad.double() - truth[name]).abs().max() / truth[name].abs().max()
        errors.append(float(error))
    return max(errors)


def measure(
    family: str,
    draw: Callable[[int], tuple[list[Sample], int]],
    *,
    seed: int,
    rounds: int,
) -> Figures:
    torch.set_num_threads(2)
    samples, vocabulary = draw(seed)
    model = make_model(family, vocabulary, seed)
    twin = copy.deepcopy(model)
    separate = [Separate(torch.tensor(s.tokens), torch.tensor(s.weights)) for s in samples]
    leafized = leafize(samples)
    divisor = float(sum(s.weights[1:].sum() for s in separate))
    batch = pack(samples)
    prepared = prepare(model, "slices")

    exact = copy.deepcopy(twin).double()
    run_separate(exact, separate, divisor)
    truth = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    del exact

    def run_tree() -> None:
        model.zero_grad(set_to_none=True)
        sft_loss(model, batch, divisor).backward()

    # Also the warm-up of both.
    run_tree()
    error = worst_error(model, truth)
    run_separate(twin, separate, divisor)
    error_separate = worst_error(twin, truth)

    contestants = {"tree": run_tree, "separate": separate_parts(twin, separate, divisor)}
    if len(leafized) < len(separate):
        leafized_twin = copy.deepcopy(twin)
        contestants["leafized"] = separate_parts(leafized_twin, leafized, divisor)
    tree = batch.tree
    metrics = measure_tree(tree)
    # A tree step every few sequences, and never one turn in tens of seconds.
    slots = min(max(6, round(metrics.token_reduction / 2)), len(leafized))
    timings = time_in_turns(contestants, rounds=rounds, warmup=0, slots=slots, settle=True)
    opponent = "leafized" if "leafized" in contestants else "separate"

    parameters = sum(p.numel() for p in model.base_model.parameters())
    parameters -= sum(p.numel() for p in model.get_input_embeddings().parameters())
    bound = flop_bound(tree, ModelShape(parameters, LAYERS, HEADS, HEAD_SIZE))
    plain = torch.randint(0, vocabulary, (1, tree.num_tokens))
    saved_tree = measure_saved_bytes(model, lambda: prepared.hidden_states(batch.packed))
    saved_plain = measure_saved_bytes(
        twin, lambda: twin.base_model(input_ids=plain, use_cache=False)[0]
    )
    speedup = timings.speedup("separate", "tree")
    return {
        "flat_tokens": metrics.flat_tokens,
        "tree_tokens": metrics.tree_tokens,
        "token_reduction": metrics.token_reduction,
        "pair_ratio": metrics.attention_pairs_flat / metrics.attention_pairs_tree,
        "flop_bound": bound,
        "speedup": speedup.median,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "speedup_leafized": timings.speedup(opponent, "tree").median,
        "bound_fraction": speedup.median / bound,
        "seconds_tree": timings.spread("tree").median,
        "seconds_separate": timings.spread("separate").median,
        "saved_bytes_tree": saved_tree,
        "saved_bytes_plain": saved_plain,
        "gradient_error": error,
        "gradient_error_separate": error_separate,
        "rounds": rounds,
        "slots": slots,
    }


def drawn(
    make: Callable[[np.random.Generator, int], list[list[int]]], seed: int
) -> tuple[list[Sample], int]:
    """Random sequences of a shape, of which everything is trained that is one sequence's own."""
    sequences = make(np.random.default_rng(seed), VOCABULARY)
    counts = build_prefix_tree(sequences)
    samples = []
    for number, sequence in enumerate(sequences):
        own = counts.token_path_counts[counts.positions(number)] == 1
        samples.append(Sample(sequence, own))
    return samples, VOCABULARY


def main() -> None:
    parser = make_parser("A training step on trees against separate sequences.")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    draws: dict[str, Callable[[int], tuple[list[Sample], int]]] = {
        "grpo_8x(512+128)": partial(drawn, shapes.grpo),
        "think_strip_comb_16": partial(drawn, shapes.think_strip_comb),
        "per_step_chain_48": partial(drawn, shapes.per_step_chain),
        "random_forest_60": partial(drawn, shapes.random_forest),
    }
    folder = real_inputs.find_folder()
    if folder is None:
        print(f"tau-bench left out: {real_inputs.MISSING}", file=sys.stderr)
    else:
        draws["tau_bench_per_step"] = partial(real_inputs.draw_tau_bench, folder)
    cases = {
        f"{family}_{name}": partial(
            measure, family, draw, seed=arguments.seed, rounds=arguments.rounds
        )
        for family in ("llama", "qwen3")
        for name, draw in draws.items()
    }
    run_cases(cases, arguments, parser)


if __name__ == "__main__":
    main()
