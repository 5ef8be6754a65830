"""The checks that `prepare` makes by running a model on a few tokens, and the state they need."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError
from treetrain.models.head import find_leaves
from treetrain.models.special_ids import find_plain_ids
from treetrain.models.wrappers import is_compiled, is_compiled_wrapper
from treetrain.packing.packed_tree import pack_tree
from treetrain.tree.build import build_prefix_tree

if TYPE_CHECKING:
    from treetrain.models.prepared import PreparedModel


@contextmanager
def calm(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode for a while, each module then as it was.

    Args:
        model: the model.

    Yields:
        Nothing.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def uncompiled(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Run compiled modules as they were written, because the probe swaps functions under them.

    Args:
        model: the model.

    Returns:
        A context for the while.
    """
    compiled = any(map(is_compiled, model.modules())) or (
        any(map(is_compiled_wrapper, model.modules()))
    )
    # Asked for only where it is needed, since it loads the compiler.
    return torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()


def large_logits(model: PreTrainedModel, layer: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the output layer's input made large, and the model's logits of it.

    Args:
        model: the model.
        layer: its output layer.
        tokens: one sequence, [1, T].

    Returns:
        Large hidden states, [T, C], and the model's own logits of them, [T, V].
    """
    enlarged: list[Tensor] = []

    def enlarge(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        del module
        enlarged.append(inputs[0] * 64)
        return (enlarged[0], *inputs[1:])

    # First of the layer's hooks, since the head calls the layer with its hooks, on large states.
    hook = layer.register_forward_pre_hook(enlarge, prepend=True)
    try:
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits[0]
    finally:
        hook.remove()
    return enlarged[0][0], logits


def draws_at_random(model: PreTrainedModel, tokens: Tensor) -> bool:
    """Say whether two plain calls on the same tokens differ, dropout modules left out.

    Args:
        model: the model, in training as it stands.
        tokens: one sequence, [1, T].

    Returns:
        Whether they differ.
    """
    results: list[Tensor] = []
    with torch.random.fork_rng(), torch.no_grad():
        for seed in (0, 1):
            torch.manual_seed(seed)
            results.append(model(input_ids=tokens, use_cache=False).logits)
    return not torch.equal(*results)


def check_way_to_logits(prepared: PreparedModel, tokens: Tensor) -> None:
    """Compare a model's logits with what decoder and head give, in the modes they are in.

    Args:
        prepared: the handle.
        tokens: one sequence, [1, T].

    Raises:
        UnsupportedModelError: if they differ, as where a model does in training what it does not
            do in evaluation.
    """
    model = prepared.model
    with torch.random.fork_rng(), torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[0]
        hidden = prepared.decoder(input_ids=tokens, use_cache=False)[0][0]
        ours = prepared.head(prepared.before_head(hidden)).to(logits.dtype)
    if prepared.head.per_sequence:
        ours = ours[-1]
    error = float((ours - logits).abs().max())
    if not error <= _allowed(model, float(logits.abs().max())):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives other logits in training than its decoder and its head "
            f"give (off by {error:.2g}); what it does in training only would be left out: train it "
            "on separate sequences"
        )


def check_parameters(
    model: PreTrainedModel, parts: Iterable[nn.Module | None], tokens: Tensor
) -> None:
    """Refuse a model whose logits hang on parameters that a tree call would give no gradient.

    Args:
        model: the model, in eval mode.
        parts: the parts that a tree call runs.
        tokens: one sequence, [1, T].

    Raises:
        UnsupportedModelError: if a parameter is in none of them.
    """
    known = {id(value) for part in parts if part is not None for value in part.parameters()}
    names = {id(value): name for name, value in model.named_parameters()}
    beside = [value for value in model.parameters() if id(value) not in known]
    wanted = [value for value in beside if value.is_floating_point() and not value.requires_grad]
    if not beside:
        return
    # Frozen ones may be trained later.
    for value in wanted:
        value.requires_grad_()
    try:
        with torch.enable_grad():
            logits = model(input_ids=tokens, use_cache=False).logits
    finally:
        for value in wanted:
            value.requires_grad_(False)
    for leaf in find_leaves(logits):
        if id(leaf) in names and id(leaf) not in known:
            raise UnsupportedModelError(
                f"the logits of {type(model).__name__} hang on {names[id(leaf)]}, which stands "
                "neither in its decoder nor in its output layer, and would get no gradient; put it "
                "into one of them, or train it on separate sequences"
            )


def make_check_sequences(model: PreTrainedModel) -> list[list[int]]:
    """Make sequences whose tree has depth 3, a strict prefix, uneven siblings and two roots.

    Args:
        model: the model, for its vocabulary.

    Returns:
        Six sequences of token ids.
    """
    ids = _draw_ids(model)
    a, b, c, d, e, f, g, h = (ids[(2 * place) % len(ids)] for place in range(8))
    return [
        [a, b, c, d, e, f],
        [a, b, c, g],
        [a, b, c, d, h, a, b],
        [a, b, c, d],
        [a, b, e, e, f],
        [g, h, a],
    ]


def make_long_sequences(model: PreTrainedModel, tokens: int) -> list[list[int]]:
    """Make two sequences that part two thirds along, for what only shows far back.

    Args:
        model: the model, for its vocabulary.
        tokens: tokens of their tree, 4 or more.

    Returns:
        The sequences.
    """
    ids = _draw_ids(model)
    generator = torch.Generator().manual_seed(1)
    places = torch.randint(len(ids), (tokens,), generator=generator).tolist()
    drawn = [ids[place] for place in places]
    branch = tokens // 4
    prefix, rest = drawn[: tokens - 2 * branch], drawn[tokens - 2 * branch :]
    return [[*prefix, ids[0], *rest[1:branch]], [*prefix, ids[-1], *rest[branch + 1 :]]]


def _draw_ids(model: PreTrainedModel) -> list[int]:
    """Up to 16 token ids without a role, in a random order."""
    plain = set(find_plain_ids(model))
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.get_text_config().vocab_size
    order = torch.randperm(vocabulary, generator=generator).tolist()
    return [token for token in order if token in plain][:16] or [0]


def check_on_tree(prepared: PreparedModel, sequences: list[list[int]]) -> None:
    """Compare the model's logits on a small tree with its own on each sequence alone.

    Args:
        prepared: the handle, not active.
        sequences: what `make_check_sequences` gave.

    Raises:
        UnsupportedModelError: if they differ.
    """
    model = prepared.model
    tree = build_prefix_tree(sequences)
    error = largest = 0.0
    with torch.no_grad():
        prepared.activate()
        try:
            logits = prepared.head(prepared.hidden_states(pack_tree(tree, model.device)))
        finally:
            prepared.undo()
        for number, sequence in enumerate(sequences):
            tokens = torch.tensor(sequence, device=model.device)[None]
            alone = model(input_ids=tokens, use_cache=False).logits[0].to(logits.dtype)
            positions = torch.from_numpy(tree.positions(number).copy()).to(logits.device)
            if prepared.head.per_sequence:
                positions = positions[-1:]
            error = max(error, float((logits[positions] - alone).abs().max()))
            largest = max(largest, float(alone.abs().max()))
    allowed = _allowed(model, largest)
    if not error <= allowed:
        raise UnsupportedModelError(
            f"{type(model).__name__} gives other logits on a tree than on each sequence alone (off "
            f"by {error:.2g}, allowed {allowed:.2g}); {_guess_cause(prepared.decoder)}; train it "
            "on separate sequences"
        )


def _allowed(model: PreTrainedModel, largest: float) -> float:
    """What two ways to compute logits may differ by, where none is at fault."""
    # Models compute parts in float32 whatever their dtype, float64 ones too.
    exact = model.dtype in (torch.float64, torch.float32)
    return (1e-4 if exact else 6e-2) * largest


def _guess_cause(decoder: nn.Module) -> str:
    if "position_ids" not in inspect.signature(decoder.forward).parameters:
        return "its forward names no position_ids, so that it counts positions in packed order"
    return (
        "something in it depends on packed order, for example positions it counts itself or a "
        "layer that mixes neighbouring tokens"
    )
