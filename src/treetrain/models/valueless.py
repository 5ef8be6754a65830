"""Models without values, which compute shapes alone: what memory is measured on.

A model is laid out from its config, or copied from a loaded one, on torch's meta device: no byte of
weights is held. `valueless_tensors` makes its tensors. Whether a model can be trained on trees is
not asked here; `prepare` and `check_config` do.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from treetrain.attention.api import choose_backend
from treetrain.errors import UnsupportedModelError
from treetrain.models.before_head import BeforeHead
from treetrain.models.head import Head, find_caps
from treetrain.models.hooks import (
    REGISTERED_NAMES,
    Layer,
    make_sentinel,
    register_attention,
)
from treetrain.models.implementation import using_implementation
from treetrain.models.positions import Positions
from treetrain.models.prepared import PreparedModel
from treetrain.models.text_call import find_decoder
from treetrain.models.valueless_tensors import drop_values, empty_like

_WATCHING = "treetrain_watching"


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of one attention module.

    Attributes:
        heads: query heads.
        key_heads: key and value heads.
        key_size: size of a head's queries and keys.
        value_size: size of a head's values.
        window: depth positions a query reads back; None for all.
    """

    heads: int
    key_heads: int
    key_size: int
    value_size: int
    window: int | None


@dataclass(frozen=True, eq=False)
class ValuelessModel:
    """A prepared model without values.

    Attributes:
        prepared: the handle, active.
        attention: sizes of each attention module, in the order they are called.
        device: where its tensors are, or say that they are.
        fakes: the mode that its tensors belong to; None on the meta device.
    """

    prepared: PreparedModel
    attention: dict[nn.Module, AttentionSizes]
    device: torch.device
    fakes: FakeTensorMode | None

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """Run the model, and make tensors for it, inside this context.

        Returns:
            The context.
        """
        return contextlib.nullcontext() if self.fakes is None else self.fakes


def lay_out(
    config: PreTrainedConfig,
    dtype: torch.dtype,
    *,
    host: bool,
    attention: str | None = None,
    backend: str = "auto",
) -> ValuelessModel:
    """Lay out the model of a config.

    Args:
        config: the config of a causal language model; it is left as it is.
        dtype: dtype of the weights.
        host: whether it shall run as on the CPU.
        attention: attention implementation, "sdpa" or "eager"; None: transformers' choice.
        backend: attention backend.

    Returns:
        The model, in eval mode.

    Raises:
        UnsupportedModelError: if it cannot run without values.
    """  # noqa: DOC502 (running it raises)
    config = copy.deepcopy(config)
    if config._attn_implementation in REGISTERED_NAMES.values():
        config._attn_implementation = None  # that of a prepared model
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    fakes = drop_values(model.eval(), host)
    with contextlib.nullcontext() if fakes is None else fakes:
        called, sizes = _watch(model, model)
        decoder = find_decoder(model, called)
        chosen = choose_backend(backend)
        layers = {module: Layer(chosen, one.window, None) for module, one in sizes.items()}
        head = _name_head(model)
        register_attention()
        prepared = PreparedModel(
            model,
            decoder,
            before_head=BeforeHead(head.layer),
            head=head,
            positions=Positions(),
            layers=layers,
        )
        prepared.activate()
    return ValuelessModel(prepared, sizes, model.device, fakes)


def copy_without_values(prepared: PreparedModel, *, host: bool) -> ValuelessModel:
    """Copy a prepared model, with whatever was done to it, without its values.

    Args:
        prepared: the handle of the model, which is left as it is.
        host: whether the copy shall run as on the CPU.

    Returns:
        The copy, in the modes of the model.

    Raises:
        UnsupportedModelError: if it cannot run without values.
    """  # noqa: DOC502 (running it raises)
    known: dict[int, Any] = {}
    for module in prepared.model.modules():
        for value in [*module._parameters.values(), *module._buffers.values()]:
            if value is not None and id(value) not in known:
                known[id(value)] = empty_like(value, "meta")
        for value in vars(module).values():
            if isinstance(value, Tensor) and id(value) not in known:
                known[id(value)] = empty_like(value, "meta")
    twin = copy.deepcopy(prepared, known)
    fakes = drop_values(twin.model, host)
    with contextlib.nullcontext() if fakes is None else fakes:
        _, sizes = _watch(twin.model, twin.decoder)
    return ValuelessModel(twin, sizes, twin.model.device, fakes)


def _watch(
    model: PreTrainedModel, part: nn.Module
) -> tuple[list[nn.Module], dict[nn.Module, AttentionSizes]]:
    """Run a few tokens: the modules that are called, and the sizes of those that attend."""
    sizes: dict[nn.Module, AttentionSizes] = {}
    called: dict[nn.Module, None] = {}

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any
    ) -> tuple[Tensor, None]:
        del others
        sizes[module] = AttentionSizes(
            heads=query.shape[1],
            key_heads=key.shape[1],
            key_size=key.shape[-1],
            value_size=value.shape[-1],
            window=named.get("sliding_window"),
        )
        rows, heads, tokens, _ = query.shape
        return query.new_empty(rows, tokens, heads, value.shape[-1]), None

    def note(module: nn.Module, inputs: Any) -> None:
        del inputs
        called[module] = None

    hooks = [module.register_forward_pre_hook(note) for module in model.modules()]
    if not model._can_set_attn_implementation():
        raise _no_partitions(model)
    tokens = torch.ones(1, 4, dtype=torch.int64, device=model.device)
    try:
        with _registered(attend), using_implementation(model, _WATCHING), torch.no_grad():
            part(
                input_ids=tokens,
                attention_mask=make_sentinel(model.device),
                position_ids=tokens.cumsum(1),
                use_cache=False,
            )
    # Code that asks for a value, or takes a mask of its own making, fails in its own way.
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not run without values ({type(error).__name__}: "
            f"{error!s:.200}), by which its memory would be measured; partition_tree(tree, "
            "capacity) needs no memory"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not sizes:
        raise _no_partitions(model)
    return list(called), sizes


def _no_partitions(model: PreTrainedModel) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(model).__name__} does not attend through transformers' AttentionInterface; it "
        "takes a tree as one dense mask, which is not cut into partitions"
    )


@contextmanager
def _registered(attend: Callable[..., Any]) -> Iterator[None]:
    AttentionInterface.register(_WATCHING, attend)
    AttentionMaskInterface.register(_WATCHING, AttentionMaskInterface()["sdpa"])
    try:
        yield
    finally:
        del AttentionInterface._global_mapping[_WATCHING]
        del AttentionMaskInterface._global_mapping[_WATCHING]


def _name_head(model: PreTrainedModel) -> Head:
    """The head with the cap that the config names; `find_head` would compare values."""
    layer = model.get_output_embeddings()
    if layer is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no output layer; load it as a causal language model, "
            "AutoModelForCausalLM"
        )
    return Head(layer, softcap=next(iter(find_caps(model)), None))
