"""A training step over partitions of a tree against the same step on the undivided tree.

The model, the shapes and the truth are those of `bench_step`. Times of both take turns in one
process. Bytes are those of tensors that live at the worst moment of a step beside parameters and
their gradients: activations, keys and values, accumulators and temporaries alike. `saved_bytes` are
what autograd keeps at once; `path_bytes` what it keeps of the longest path of partitions and its
gateway, had it been one row of that many tokens. The largest tree runs in a process of its own,
whose resident memory is read.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import real_inputs
import shapes
import torch
from bench_step import (
    HEAD_SIZE,
    KV_HEADS,
    LAYERS,
    Separate,
    drawn,
    make_model,
    run_separate,
    worst_error,
)
from harness import Figures, make_parser, run_cases, time_in_turns
from saved_bytes import measure_saved_bytes
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain import Partitions, Sample, pack, partition_tree, prepare, sft_loss, sft_terms
from treetrain.partitioning.live_bytes import LiveBytes
from treetrain.partitioning.step import partitioned_step

#: Trees of more tokens are timed once.
LARGE_TREE = 20_000
#: Sequences of more flat tokens are not computed in float64, one by one, for the truth.
LARGEST_TRUTH = 80_000


def measure(
    draw: Callable[[int], tuple[list[Sample], int]],
    *,
    capacity: int,
    mode: str,
    seed: int,
    rounds: int,
    threads: int,
) -> Figures:
    torch.set_num_threads(threads)
    samples, vocabulary = draw(seed)
    model = make_model("llama", vocabulary, seed)
    twin = copy.deepcopy(model)
    batch = pack(samples)
    divisor = float(sum(sample.weights[1:].sum() for sample in samples))
    prepared = prepare(model, "slices")
    partitions = partition_tree(batch.tree, capacity)
    terms = sft_terms(batch, divisor)

    def run_whole() -> None:
        model.zero_grad(set_to_none=True)
        sft_loss(model, batch, divisor).backward()

    def run_parts() -> int:
        model.zero_grad(set_to_none=True)
        return partitioned_step(model, batch, partitions, terms, modes=mode).computed_tokens

    # A step of minutes is timed once, and its memory is `bench_memory`'s affair.
    is_large = batch.num_tokens > LARGE_TREE
    contestants = {"whole": run_whole, "parts": run_parts}
    if is_large:
        timings = time_in_turns(contestants, rounds=1, warmup=0)
    else:
        timings = time_in_turns(contestants, rounds=rounds, slots=3, settle=True)
    ratio = timings.speedup("parts", "whole")
    run_whole()
    whole = {name: take(parameter) for name, parameter in model.named_parameters()}
    computed = run_parts()
    recomputed = 0 if mode == "keep" else count_recomputed(partitions)
    figures: Figures = {
        "mode": mode,
        "capacity": capacity,
        "threads": threads,
        "tree_tokens": batch.num_tokens,
        "longest_path": int(batch.tree.sequence_lengths.max()),
        "partitions": partitions.num_partitions,
        "lower_bound": partitions.lower_bound,
        "peak_tokens": partitions.peak,
        "duplicate_tokens": computed - batch.num_tokens - recomputed,
        "recomputed_tokens": recomputed,
        "time_ratio": ratio.median,
        "time_low": ratio.low,
        "time_high": ratio.high,
        "seconds_whole": timings.spread("whole").median,
        "gradient_difference": worst_error(model, whole),
    }
    if is_large:
        return figures
    if sum(map(len, samples)) <= LARGEST_TRUTH:
        figures |= against_truth(model, twin, samples, divisor)
    whole_bytes, parts_bytes = peak_bytes(model, run_whole), peak_bytes(model, run_parts)
    row = measure_saved_bytes(model, lambda: prepared.hidden_states(batch.packed))
    path = row / batch.num_tokens * partitions.peak + gateway_bytes(partitions)
    saved = saved_at_once(model, run_parts)
    return {
        **figures,
        "peak_bytes_whole": whole_bytes,
        "peak_bytes": parts_bytes,
        "peak_ratio": parts_bytes / whole_bytes,
        "saved_bytes": saved,
        "path_bytes": round(path),
        "saved_ratio": saved / path,
    }


def take(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


def against_truth(
    model: PreTrainedModel, twin: PreTrainedModel, samples: Sequence[Sample], divisor: float
) -> Figures:
    """Errors of the gradients that the model has, and of separate ones, against float64."""
    separate = [Separate(torch.tensor(s.tokens), torch.tensor(s.weights)) for s in samples]
    exact = copy.deepcopy(twin).double()
    run_separate(exact, separate, divisor)
    truth = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    run_separate(twin, separate, divisor)
    return {
        "gradient_error": worst_error(model, truth),
        "gradient_error_separate": worst_error(twin, truth),
    }


def count_recomputed(partitions: Partitions) -> int:
    """Tokens of partitions from which others hang."""
    inner = np.unique(partitions.parents[partitions.parents >= 0])
    return int(partitions.sizes[inner].sum())


def peak_bytes(model: nn.Module, step: Callable[[], object]) -> int:
    """Most bytes of tensors that live at once in a step, beside parameters and gradients."""
    own = list(model.parameters())
    gradients = [parameter.grad for parameter in own if parameter.grad is not None]
    counter = _WithoutGradients([*own, *gradients], model)
    with counter:
        step()
    return counter.highest


class _WithoutGradients(LiveBytes):
    """Live bytes less those of the gradients that parameters have at the moment."""

    def __init__(self, known: Sequence[Tensor], model: nn.Module) -> None:
        super().__init__(known)
        self._parameters = list(model.parameters())
        self.highest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        held = sum(p.grad.nbytes for p in self._parameters if p.grad is not None)
        self.highest = max(self.highest, self.live - held)
        return result


def gateway_bytes(partitions: Partitions) -> int:
    """Bytes of keys, values and accumulators of the longest gateway."""
    width = 2 * KV_HEADS * HEAD_SIZE * LAYERS
    return 4 * 2 * width * int(partitions.gateway_sizes.max())


def saved_at_once(model: nn.Module, step: Callable[[], object]) -> int:
    """Most bytes of distinct memory that autograd keeps at once, without the parameters."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    holders: dict[int, int] = {}
    live = highest = 0

    def release(name: int, size: int) -> None:
        nonlocal live
        holders[name] -= 1
        if not holders[name]:
            del holders[name]
            live -= size

    def hold(tensor: Tensor) -> list[Tensor]:
        nonlocal live, highest
        storage = tensor.untyped_storage()
        box = _Box([tensor])
        if (name := storage._cdata) not in own:
            if name not in holders:
                holders[name] = 0
                live += storage.nbytes()
            holders[name] += 1
            highest = max(highest, live)
            weakref.finalize(box, release, name, storage.nbytes())
        return box

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda box: box[0]):
        step()
    return highest


class _Box(list):
    """A list that can be referred to weakly."""


def main() -> None:
    parser = make_parser("A training step over partitions against the undivided tree.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    settings: list[tuple[str, Callable[[int], tuple[list[Sample], int]], int, str]] = [
        ("grpo_8x(512+128)", partial(drawn, shapes.grpo), 512, "keep"),
        ("random_forest_60", partial(drawn, shapes.random_forest), 1024, "keep"),
        ("long_comb_32", partial(drawn, shapes.long_comb), 1024, "keep"),
        ("long_comb_32", partial(drawn, shapes.long_comb), 1024, "recompute"),
        ("per_step_chain_48", partial(drawn, shapes.per_step_chain), 128, "recompute"),
    ]
    folder = real_inputs.find_folder()
    if folder is None:
        print(f"tau-bench left out: {real_inputs.MISSING}", file=sys.stderr)
    else:
        draw = partial(real_inputs.draw_tau_bench_task, folder)
        settings.append(("tau_bench_task", draw, 4096, "keep"))
    cases = {
        f"{name}_{capacity}_{mode}": partial(
            measure,
            draw,
            capacity=capacity,
            mode=mode,
            seed=arguments.seed,
            rounds=arguments.rounds,
            threads=arguments.threads,
        )
        for name, draw, capacity, mode in settings
    }
    run_cases(cases, arguments, parser)


if __name__ == "__main__":
    main()
