"""What is attached to a model's modules from outside: hooks, forwards put in place, marks.

`prepare` checks a model with all of it; a change afterwards would go unchecked and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules import module as global_hooks

Attached = dict[str, tuple[object, ...]]

#: Name of the hooks that torch runs on every module of the process.
_EVERY = "every module"
#: Beginnings of the names of hooks that change no result: in transformers and peft the one that
#: makes embeddings require a gradient, in transformers those that collect outputs, and those of
#: `routers`.
_HARMLESS = ("make_inputs_require_grad", "output_capturing_hook", "record_routing")


def read_attached(parts: Mapping[str, nn.Module], attention: Iterable[nn.Module]) -> Attached:
    """Read what changes the results of modules besides their parameters and settings.

    Hooks are known by torch's numbers for them, which are never given twice. Left out are hooks of
    the backward pass, and those that change no result: by which gradient checkpointing asks
    embeddings for gradients, and by which outputs are collected.

    Args:
        parts: the parts of a model that a tree call runs, under names for messages.
        attention: the attention modules.

    Returns:
        What is attached, by module; two readings are equal where nothing changed.
    """
    attached: Attached = {
        _EVERY: (
            _numbers(global_hooks._global_forward_pre_hooks),
            _numbers(global_hooks._global_forward_hooks),
        )
    }
    for prefix, part in parts.items():
        for name, module in part.named_modules(prefix=prefix):
            hooks = _numbers(module._forward_pre_hooks), _numbers(module._forward_hooks)
            forward = _read_forward(module)
            if any(hooks) or forward is not None:
                attached[name] = (*hooks, forward)
    for place, module in enumerate(attention):
        attached[f"is_causal of attention layer {place}"] = (getattr(module, "is_causal", None),)
    return attached


def check_attached(before: Attached, now: Attached) -> None:
    """Refuse what was attached or taken off after a model was prepared.

    Args:
        before: what `read_attached` gave when it was prepared.
        now: what it gives now.

    Raises:
        ValueError: the two differ; names the first module.
    """
    if before == now:
        return
    changed = next(name for name in {**now, **before} if before.get(name) != now.get(name))
    raise ValueError(
        f"hooks or forwards were changed after prepare(model) (first: {changed}); call "
        "prepare(model) again, which checks the model with them"
    )


def remove_pre_hook(module: nn.Module, function: Callable[..., Any]) -> None:
    """Take a forward pre-hook off a module by its function, from copies of the module too.

    Args:
        module: the module.
        function: the hook.
    """
    hooks = module._forward_pre_hooks
    for number in [number for number, hook in hooks.items() if hook is function]:
        del hooks[number]
        module._forward_pre_hooks_with_kwargs.pop(number, None)


def _numbers(hooks: Mapping[int, Any]) -> tuple[int, ...]:
    return tuple(
        number
        for number, hook in hooks.items()
        if not getattr(hook, "__name__", "").startswith(_HARMLESS)
    )


def _read_forward(module: nn.Module) -> Any:
    """The forward put in place of the class's own, or None."""
    forward = vars(module).get("forward")
    # A compiled forward computes what the one below it does.
    forward = getattr(forward, "_torchdynamo_orig_callable", forward)
    return None if getattr(forward, "__func__", None) is type(module).forward else forward
