"""Attention of packed tokens along their paths, and the choice of a backend.

A named backend is taken as named; only `auto` chooses. Backends do not know each other.
"""

from __future__ import annotations

from torch import Tensor

from treetrain.attention import reference, slices
from treetrain.attention.names import check_backend
from treetrain.packing.gateway import LayerGateway
from treetrain.packing.packed_tree import PackedTree

#: Backends by name, the preferred first; the names are those of `names.BACKEND_NAMES`.
BACKENDS = {"slices": slices, "reference": reference}


def choose_backend(backend: str) -> str:
    """Choose the backend of a layer.

    Args:
        backend: a name in `BACKENDS`, or "auto" for the first.

    Returns:
        A name in `BACKENDS`.

    Raises:
        ValueError: if no backend of layers has that name.
    """
    check_backend(backend)
    if backend == "auto":
        return next(iter(BACKENDS))
    if backend not in BACKENDS:
        raise ValueError(
            f"backend must be 'auto' or one of {list(BACKENDS)} for a layer, got {backend!r}, "
            "which prepare(model) takes for a whole model"
        )
    return backend


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: PackedTree,
    *,
    backend: str = "auto",
    scale: float | None = None,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    gateway: LayerGateway | None = None,
) -> Tensor:
    """Attend along the paths of a packed tree.

    Packed token q reads packed token k exactly when `k <= q < subtree_ends[k]`, and, with a window
    or a chunk, when their depth positions allow it. The keys and values of a row's ancestors come
    through its gateway, which its own ones are recorded in; in the backward pass their gradients
    are given back there, and what descendants gave back joins the own ones. Descendants must go
    backward before.

    Args:
        query: queries, [B, H, T, D], packed order; float32, float64, bfloat16 or float16.
        key: keys after any rotary embedding, [B, Hk, T, D]; H must be a multiple of Hk.
        value: values, [B, Hk, T, Dv].
        packed: the packed tree, whose row has T tokens, on the device of `query`.
        backend: "slices", "reference", or "auto" for the first.
        scale: factor of the scores; None for 1 / sqrt(D).
        window: depth positions a query reads back, itself included; None for all.
        chunk: size of the blocks of depth positions that do not read each other; None for one
            block.
        softcap: scores become `softcap * tanh(score / softcap)`; None for none.
        sinks: one more score per query head that takes weight and has no value, [H]; None for none.
        gateway: where ancestors are read and the row's own keys and values are kept; None for a
            row without ancestors that nothing hangs from.

    Returns:
        Attention output, [B, H, T, Dv], dtype of `query`.

    Raises:
        ValueError: if a shape, dtype, device, window, chunk or gateway does not fit.

    Example:
        >>> from treetrain.packing.packed_tree import pack_tree
        >>> from treetrain.tree.build import build_prefix_tree
        >>> packed = pack_tree(build_prefix_tree([[1, 2, 3], [1, 2, 4]]))
        >>> q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
        >>> tree_attention(q, k, v, packed).shape
        torch.Size([1, 2, 4, 8])
    """
    _check_shapes(query, key, value, packed)
    for name, size in (("window", window), ("chunk", chunk)):
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1 depth position or None, got {size}")
    if sinks is not None and sinks.shape != (query.shape[1],):
        raise ValueError(
            f"sinks must have one score per query head, [{query.shape[1]}], got {list(sinks.shape)}"
        )
    _check_gateway(gateway, packed)
    return BACKENDS[choose_backend(backend)].attend(
        query,
        key,
        value,
        packed,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        window=window,
        chunk=chunk,
        softcap=softcap,
        sinks=sinks,
        gateway=gateway,
    )


def _check_gateway(gateway: LayerGateway | None, packed: PackedTree) -> None:
    if gateway is None and packed.ancestors:
        raise ValueError(
            f"gateway must be given for a row with {packed.ancestors} ancestors, got None; their "
            "keys and values are not among those of the row"
        )
    if gateway is not None and gateway.num_ancestors != packed.ancestors:
        raise ValueError(
            f"gateway must lead to the row's {packed.ancestors} ancestors, got "
            f"{gateway.num_ancestors} tokens"
        )


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, packed: PackedTree) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim != 4:
            raise ValueError(f"{name} must be [B, heads, T, D], got shape {list(tensor.shape)}")
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    tokens = packed.num_tokens
    if any(tensor.shape[2] != tokens for tensor in (query, key, value)):
        raise ValueError(f"query, key and value must have the row's {tokens} tokens, got {shapes}")
    if key.shape[:3] != value.shape[:3] or query.shape[0] != key.shape[0]:
        raise ValueError(f"query, key and value must have the same rows and heads, got {shapes}")
    if query.shape[1] % key.shape[1] or query.shape[3] != key.shape[3]:
        raise ValueError(
            "query heads must be a multiple of key heads, with one head size for both, "
            f"got {shapes}"
        )
    if len({query.dtype, key.dtype, value.dtype}) > 1 or not query.dtype.is_floating_point:
        raise ValueError(
            "query, key and value must share one floating dtype, "
            f"got {query.dtype}, {key.dtype}, {value.dtype}"
        )
    if query.device != packed.device:
        raise ValueError(
            f"packed must be on the device of query, {query.device}, got "
            f"{packed.device}; use packed.to(query.device)"
        )
