"""The head and its loss, forward and backward, in chunks against whole logits.

Three ways through one linear head: `fused` makes the gradients in the forward pass (supervised
training), `recomputed` makes each chunk's logits again in the backward pass (losses that are not
linear in the log-probabilities), `recomputed_entropy` gives entropies too. Opponents in the same
process are the plain head (`linear` and `cross_entropy`) and torch's own chunked
`linear_cross_entropy` on its default options.

`peak_bytes` is the most that torch's CPU allocator held at once above what was there before, as
torch.profiler reports every allocation and release; hidden states and weight are there before, and
what is handed back, the gradients of hidden states and weight, is left out for every contestant
(`gradient_bytes`). `limit_bytes` is 2 x chunk x vocabulary x 4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from harness import Figures, make_parser, run_cases, time_in_turns
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from treetrain.losses.chunked_head import fused_head, head_logprobs
from treetrain.losses.head_chunks import CPU_CHUNK_BYTES
from treetrain.packing.batch import pack

SHAPES = {
    # vocabulary, channels, predictors
    "llama": (32_000, 512, 2_048),
    "smollm2": (49_152, 576, 1_024),
    "qwen3": (151_936, 1_024, 512),
}


class LinearHead:
    """A head of one weight."""

    def __init__(self, weight: Tensor) -> None:
        self.parameters = [weight]

    def __call__(self, hidden: Tensor) -> Tensor:
        """Compute logits."""
        return F.linear(hidden, self.parameters[0])


def measure(shape: str, way: str, *, seed: int, rounds: int) -> Figures:
    torch.set_num_threads(2)
    vocabulary, channels, predictors = SHAPES[shape]
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (predictors + 1,), generator=generator)
    batch = pack([tokens])
    hidden = torch.randn(predictors + 1, channels, generator=generator).requires_grad_()
    weight = (
        torch.randn(vocabulary, channels, generator=generator) / channels**0.5
    ).requires_grad_()
    head = LinearHead(weight)
    share = torch.full((predictors,), -1 / predictors)
    tensors = batch.target_tensors

    def run_ours() -> Tensor:
        if way == "fused":
            return fused_head(hidden, head, batch.targets, tensors=tensors, coefficients=share)[0]
        logprobs, entropies = head_logprobs(
            hidden, head, batch.targets, tensors=tensors, entropies=way == "recomputed_entropy"
        )
        loss = logprobs @ share
        return loss if entropies is None else loss - entropies.mean()

    def run_plain() -> Tensor:
        return F.cross_entropy(F.linear(hidden[:-1], weight), tokens[1:])

    def run_torch() -> Tensor:
        options = nn.LinearCrossEntropyOptions()
        return F.linear_cross_entropy(hidden[:-1], weight, tokens[1:], options=options)

    leaves = [hidden, weight]
    contestants = {
        name: partial(_gradients, run, leaves)
        for name, run in (("ours", run_ours), ("plain", run_plain), ("torch", run_torch))
    }
    gradient_bytes = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    peaks = {name: measure_torch_peak(run) - gradient_bytes for name, run in contestants.items()}
    times = time_in_turns(contestants, rounds=rounds)
    chunk = CPU_CHUNK_BYTES // (4 * vocabulary)
    ours = times.spread("ours")
    return {
        "predictors": predictors,
        "vocabulary": vocabulary,
        "channels": channels,
        "chunk": chunk,
        "peak_bytes": peaks["ours"],
        "limit_bytes": 2 * chunk * vocabulary * 4,
        "plain_peak_bytes": peaks["plain"],
        "torch_peak_bytes": peaks["torch"],
        "gradient_bytes": gradient_bytes,
        "seconds": ours.median,
        "seconds_low": ours.low,
        "seconds_high": ours.high,
        "plain_seconds": times.spread("plain").median,
        "torch_seconds": times.spread("torch").median,
        "gradient_error": _gradient_error(contestants) if way != "recomputed_entropy" else None,
    }


def measure_torch_peak(function: Callable[[], object]) -> int:
    """Return the most bytes that torch held on the CPU at once during a call, its result too."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    del result
    held = peak = 0
    results = profiler.profiler
    assert results is not None
    assert results.kineto_results is not None
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            peak = max(peak, held)
    return peak


def _gradients(run: Callable[[], Tensor], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(run(), leaves)


def _gradient_error(contestants: dict[str, Callable[[], tuple[Tensor, ...]]]) -> float:
    """Return the largest difference from the plain head's gradients over their largest entry."""
    pairs = zip(contestants["ours"](), contestants["plain"](), strict=True)
    return max(float((ours - plain).abs().max() / plain.abs().max()) for ours, plain in pairs)


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3, help="timed calls of each contestant (3)")
    arguments = parser.parse_args()
    names = [(way, shape) for shape in SHAPES for way in ("fused", "recomputed")]
    cases = {
        f"{way}_{shape}": partial(measure, shape, way, seed=arguments.seed, rounds=arguments.rounds)
        for way, shape in [*names, ("recomputed_entropy", "smollm2")]
    }
    run_cases(cases, arguments, parser)


if __name__ == "__main__":
    main()
