"""Quantised layers, of which each token's result must not depend on the other tokens of a call.

How weights are stored makes no difference to trees. Activations quantised with a scale, or in
columns, chosen over all tokens of a call do: a tree holds other tokens than each sequence alone.
That is found by altering the other tokens, whatever library made the layer. Activations rounded
token by token keep tokens apart, but a last digit of float32 may tip one over to the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from treetrain.errors import UnsupportedModelError


def find_quantised(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the modules that hold quantised weights of their own.

    Args:
        model: the model.

    Returns:
        Pairs of qualified name and module.
    """
    return [(name, module) for name, module in model.named_modules() if _is_quantised(module)]


def check_quantised(model: nn.Module, tokens: Tensor) -> None:
    """Refuse layers whose result for one token depends on the other tokens of the call.

    In float32 and wider, linear layers that round their activations at all are refused too. Looked
    at are modules that hold quantised weights, and linear layers with a forward of their
    own, forward and, where they hand gradients on, backward.

    Args:
        model: the model, in eval mode.
        tokens: one sequence of two tokens or more, [1, T].

    Raises:
        UnsupportedModelError: if there is one, or one that is called in a way that cannot be
            checked.
    """  # noqa: DOC502 (the hooks raise)
    quantised = find_quantised(model)
    linear = [(name, module) for name, module in model.named_modules() if _is_own_linear(module)]
    suspects = dict(linear) | dict(quantised)
    if not suspects:
        return
    handles = [
        module.register_forward_hook(partial(_check_call, name), with_kwargs=True)
        for name, module in suspects.items()
    ]
    try:
        with torch.no_grad():
            model(input_ids=tokens, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()


def _is_quantised(module: nn.Module) -> bool:
    own = [*module._parameters.values(), *module._buffers.values()]
    return any(tensor is not None and _is_packed(tensor) for tensor in own)


def _is_packed(tensor: Tensor) -> bool:
    """Whether numbers are stored in fewer bits, or in a way that another library knows."""
    if type(tensor).__module__.partition(".")[0] != "torch":
        return True
    if tensor.ndim < 2 or tensor.dtype in (torch.bool, torch.int64):
        return False
    return not tensor.is_floating_point() or tensor.element_size() == 1


def _is_own_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and type(module).forward is not nn.Linear.forward


def _check_call(
    name: str, module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], output: Any
) -> None:
    """Hook: call the module again with other tokens beside the first one."""
    if isinstance(module, nn.Embedding):
        return
    values = {**dict(enumerate(args)), **keywords}
    places = [
        place
        for place, value in values.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1
    ]
    if not places or _rows(values[places[0]]).shape[0] < 2:
        raise UnsupportedModelError(
            f"{_describe(name, module)} is quantised and called in a way that does not show "
            "which of its inputs are tokens, so that it cannot be checked; dequantise it, or train "
            "it on separate sequences"
        )
    place = places[0]
    hidden = values[place].detach()

    def call(tokens: Tensor) -> Tensor:
        given = {**values, place: tokens}
        result = module.forward(
            *(given[index] for index in range(len(args))), **{key: given[key] for key in keywords}
        )
        return result[0] if isinstance(result, tuple) else result

    with torch.enable_grad():
        first = call(inputs := hidden.clone().requires_grad_())
        other = call(_alter(hidden))
        same = _first_rows_equal(first, other)
        rounds = same and _is_quantised(module) and _rounds_activations(module, call, hidden)
        if same and first.requires_grad:
            same = _gradients_stay_apart(first, inputs)
    if not same:
        raise UnsupportedModelError(
            f"{_describe(name, module)} gives a token another result when the tokens beside "
            "it change, and a tree holds other tokens than each sequence alone: it mixes tokens, "
            "or its activations are quantised with a scale, or in columns, chosen over all tokens "
            "of a call; quantise weights only, or activations token by token (bitsandbytes: "
            "llm_int8_threshold=0), or train it on separate sequences"
        )
    if rounds:
        raise UnsupportedModelError(
            f"{_describe(name, module)} rounds its activations, which turns differences in "
            f"the last digit of {hidden.dtype} into differences of a whole step, so that no two "
            "ways to compute a token agree to its precision; quantise weights only, with a compute "
            "dtype as wide as the model's, or load the model in bfloat16"
        )


def _rounds_activations(
    module: nn.Module, call: Callable[[Tensor], Tensor], hidden: Tensor
) -> bool:
    """Whether a linear layer of a wide dtype is not linear to that dtype's precision."""
    if not hasattr(module, "in_features") or torch.finfo(hidden.dtype).bits < 32:
        return False
    # Larger by a little and turned round, so that sums are no multiples.
    other = hidden.flip(-1) * 1.3
    none, one, two, both = (call(x) for x in (0 * hidden, hidden, other, hidden + other))
    # What `prepare` allows between a tree and each sequence alone.
    allowed = 1e-4 * float(both.abs().max())
    return float((one + two - none - both).abs().max()) > allowed


def _describe(name: str, module: nn.Module) -> str:
    weight = getattr(module, "weight", None)
    special = isinstance(weight, Tensor) and type(weight) not in (Tensor, nn.Parameter)
    return f"{name} ({type(module).__name__}{f', {type(weight).__name__}' if special else ''})"


def _gradients_stay_apart(result: Tensor, inputs: Tensor) -> bool:
    given = torch.linspace(-1, 1, result.numel(), device=result.device).view(result.shape)
    given = given.to(result.dtype)
    # Some kernels of bitsandbytes hand no gradients on in eval mode, and others in training.
    backward: Callable[[Tensor], tuple[Tensor | None, ...]] = partial(
        torch.autograd.grad, result, inputs, retain_graph=True, allow_unused=True
    )
    one, other = (backward(grads)[0] for grads in (given, _alter(given)))
    return one is None or other is None or _first_rows_equal(one, other)


def _alter(tokens: Tensor) -> Tensor:
    """The same first token beside others, which are larger by far."""
    rows = _rows(tokens).clone()
    rows[1:] = (rows[1:] + 1) * 64
    return rows.view(tokens.shape)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _first_rows_equal(one: Tensor, other: Tensor) -> bool:
    one, other = (_rows(tensor.detach())[0] for tensor in (one, other))
    # Calls of one shape add up a row in one order: only steps of a quantisation are larger, which
    # are of the same order as those of half precision.
    steps = 8 if torch.finfo(one.dtype).bits >= 32 else 0.25
    allowed = steps * torch.finfo(one.dtype).eps * float(one.abs().max())
    return float((one - other).abs().max()) <= allowed
