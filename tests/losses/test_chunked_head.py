from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from treetrain.data.sample import Sample
from treetrain.losses.chunked_head import fused_head, head_logprobs
from treetrain.packing.batch import pack

C, V = 5, 11


class LinearHead:
    """Logits of a linear layer, optionally scaled and capped: the interface of the models' head."""

    def __init__(self, weight, bias=None, *, scale=None, softcap=None):
        self.weight, self.bias, self.scale, self.softcap = weight, bias, scale, softcap

    @property
    def parameters(self):
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def __call__(self, hidden):
        logits = F.linear(hidden, self.weight, self.bias)
        if self.scale is not None:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class TanhHead(LinearHead):
    """Its last operation keeps its own output for the backward pass, and no `linear` is in it."""

    def __call__(self, hidden):
        return torch.tanh(hidden @ self.weight.t())


class TwiceHead(LinearHead):
    """Uses one parameter in a `linear` and outside of it."""

    def __call__(self, hidden):
        return F.linear(hidden, self.weight) + (hidden * self.weight.sum(0)).sum(-1, keepdim=True)


def make_head(kind, dtype=torch.float64):
    torch.manual_seed(1)
    weight = torch.randn(V, C, dtype=dtype, requires_grad=True)
    bias = torch.randn(V, dtype=dtype, requires_grad=True)
    return {
        "linear": lambda: LinearHead(weight),
        "bias": lambda: LinearHead(weight, bias),
        "softcap": lambda: LinearHead(weight, bias, scale=0.5, softcap=2.0),
        "tanh": lambda: TanhHead(weight),
        "twice": lambda: TwiceHead(weight),
    }[kind]()


@pytest.fixture
def batch():
    return pack(
        [Sample([1, 2, 3, 4], [0, 1, 1, 1]), [1, 2, 3, 6, 7], [1, 2, 5, 10], [7, 8], [1, 2, 3, 4]]
    )


def make_hidden(batch, dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(batch.num_tokens, C, dtype=dtype, requires_grad=True)


def plain(hidden, head, batch, temperature=1.0):
    """Log-probabilities and entropies from all logits at once."""
    targets = batch.targets
    logp = (head(hidden) / temperature).log_softmax(-1)
    entropies = -(logp.exp() * logp.masked_fill(logp.isinf(), 0.0)).sum(-1)
    picked = logp[torch.tensor(targets.predictors), torch.tensor(targets.tokens)]
    return picked, entropies[torch.tensor(targets.distinct_predictors)]


def gradients(loss, hidden, head):
    return torch.autograd.grad(loss, [hidden, *head.parameters])


def assert_close(found, expected, limit=1e-10):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= limit


HEADS = pytest.mark.parametrize("kind", ["linear", "bias", "softcap", "tanh", "twice"])


@HEADS
@pytest.mark.parametrize("chunk_tokens", [1, 3, None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_the_whole_head(batch, kind, chunk_tokens, temperature):
    hidden, head = make_hidden(batch), make_head(kind)
    logprobs, entropies = head_logprobs(
        hidden,
        head,
        batch.targets,
        tensors=batch.target_tensors,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        entropies=True,
    )
    expected, expected_entropies = plain(hidden, head, batch, temperature)
    assert_close([logprobs, entropies], [expected, expected_entropies])
    a = torch.randn_like(logprobs)
    b = torch.randn_like(entropies)
    assert_close(
        gradients((a * logprobs).sum() + (b * entropies).sum(), hidden, head),
        gradients((a * expected).sum() + (b * expected_entropies).sum(), hidden, head),
    )
    assert_close(
        gradients(
            (
                a
                * head_logprobs(
                    hidden,
                    head,
                    batch.targets,
                    tensors=batch.target_tensors,
                    temperature=temperature,
                    chunk_tokens=chunk_tokens,
                )[0]
            ).sum(),
            hidden,
            head,
        ),
        gradients((a * plain(hidden, head, batch, temperature)[0]).sum(), hidden, head),
    )


@HEADS
@pytest.mark.parametrize("chunk_tokens", [1, 3, None])
def test_fused_gradients_are_those_of_the_whole_head(batch, kind, chunk_tokens):
    hidden, head = make_hidden(batch), make_head(kind)
    coefficients = torch.randn(len(batch.targets), dtype=torch.float64)
    total, logprobs = fused_head(
        hidden,
        head,
        batch.targets,
        tensors=batch.target_tensors,
        coefficients=coefficients,
        temperature=0.7,
        chunk_tokens=chunk_tokens,
    )
    expected, _ = plain(hidden, head, batch, 0.7)
    assert_close([logprobs, total], [expected, (coefficients * expected).sum()])
    assert not logprobs.requires_grad
    assert_close(
        gradients(total * 3, hidden, head),
        gradients((coefficients * expected).sum() * 3, hidden, head),
    )


@pytest.mark.parametrize("kind", ["bias", "softcap"])
def test_gradcheck(batch, kind):
    hidden, head = make_hidden(batch), make_head(kind)

    def compute(hidden, *parameters):
        head.weight, head.bias = parameters
        return head_logprobs(
            hidden,
            head,
            batch.targets,
            tensors=batch.target_tensors,
            chunk_tokens=3,
            entropies=True,
        )

    assert gradcheck(compute, (hidden, head.weight, head.bias))


def test_fused_gradients_agree_with_finite_differences(batch):
    # torch's gradcheck goes backward twice through one graph, which a fused loss does not allow.
    hidden, head = make_hidden(batch), make_head("softcap")
    coefficients = torch.randn(len(batch.targets), dtype=torch.float64)
    leaves = [hidden, head.weight, head.bias]

    def compute():
        return fused_head(
            hidden,
            head,
            batch.targets,
            tensors=batch.target_tensors,
            coefficients=coefficients,
            chunk_tokens=3,
        )[0]

    found = torch.autograd.grad(compute(), leaves)
    for leaf, gradient in zip(leaves, found, strict=True):
        direction = torch.randn_like(leaf)
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                leaf += step * direction
                ends.append(compute().item())
                leaf -= step * direction
        slope = (ends[0] - ends[1]) / 2e-6
        assert slope == pytest.approx((gradient * direction).sum().item(), rel=1e-6)


def test_logits_of_minus_infinity_leave_the_gradients_finite(batch):
    hidden = make_hidden(batch)
    bias = torch.zeros(V, dtype=torch.float64)
    bias[9] = -torch.inf
    head = LinearHead(make_head("linear").weight, bias)
    logprobs, entropies = head_logprobs(
        hidden, head, batch.targets, tensors=batch.target_tensors, entropies=True
    )
    expected, expected_entropies = plain(
        hidden, LinearHead(head.weight[torch.arange(V) != 9]), pack_without(batch, 9)
    )
    assert_close([logprobs, entropies], [expected, expected_entropies])
    grads = torch.autograd.grad(logprobs.sum() + entropies.sum(), [hidden, head.weight])
    wanted = torch.autograd.grad(expected.sum() + expected_entropies.sum(), [hidden, head.weight])
    assert_close(grads, wanted)


def pack_without(batch, token):
    """The batch in a vocabulary that lacks one token."""
    return pack([Sample(s.tokens - (s.tokens > token), s.weights) for s in batch.samples])


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_frozen_side_gets_no_gradient_and_the_other_its_own(batch, frozen):
    hidden, head = make_hidden(batch), make_head("linear")
    (hidden if frozen == "hidden" else head.weight).requires_grad_(False)
    live = head.weight if frozen == "hidden" else hidden
    ones = torch.ones(len(batch.targets), dtype=torch.float64)
    expected = torch.autograd.grad(plain(hidden, head, batch)[0].sum(), live)
    arguments = (hidden, head, batch.targets)
    logprobs, _ = head_logprobs(*arguments, tensors=batch.target_tensors)
    assert_close(torch.autograd.grad(logprobs.sum(), live), expected)
    total, _ = fused_head(*arguments, tensors=batch.target_tensors, coefficients=ones)
    assert_close(torch.autograd.grad(total, live), expected)


def test_parameters_receive_the_gradient_in_their_own_dtype(batch):
    hidden, head = make_hidden(batch, torch.bfloat16), make_head("bias", torch.bfloat16)
    wide = make_head("bias", torch.float64)
    with torch.no_grad():
        wide.weight.copy_(head.weight)
        wide.bias.copy_(head.bias)
    ones = torch.ones(len(batch.targets))
    total, _ = fused_head(
        hidden, head, batch.targets, tensors=batch.target_tensors, coefficients=ones, chunk_tokens=1
    )
    found = gradients(total, hidden, head)
    plain_bf16 = gradients(plain(hidden, head, batch)[0].sum(), hidden, head)
    exact_hidden = hidden.detach().double().requires_grad_()
    exact = gradients(plain(exact_hidden, wide, batch)[0].sum(), exact_hidden, wide)
    assert [value.dtype for value in found] == [torch.bfloat16] * 3
    for ours, theirs, truth in zip(found, plain_bf16, exact, strict=True):
        # As near to the truth as the whole head in the same dtype is, plus one rounding.
        floor = (theirs.double() - truth).abs().max()
        assert (ours.double() - truth).abs().max() <= floor + 2**-8 * truth.abs().max()


def test_autocast_is_entered_again_in_the_backward_pass(batch):
    hidden, head = make_hidden(batch, torch.float32), make_head("linear", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = gradients(plain(hidden, head, batch)[0].sum(), hidden, head)
        logprobs, _ = head_logprobs(hidden, head, batch.targets, tensors=batch.target_tensors)
        fused, _ = fused_head(
            hidden,
            head,
            batch.targets,
            tensors=batch.target_tensors,
            coefficients=torch.ones(len(batch.targets)),
        )
    found = gradients(logprobs.sum(), hidden, head)
    assert_close(gradients(fused, hidden, head), found, 1e-6)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).abs().max() <= 2**-8 * theirs.abs().max()


def test_fused_loss_says_why_it_runs_backward_once(batch):
    hidden, head = make_hidden(batch), make_head("linear")
    ones = torch.ones(len(batch.targets), dtype=torch.float64)
    total, _ = fused_head(
        hidden, head, batch.targets, tensors=batch.target_tensors, coefficients=ones
    )
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="must run once through a fused loss"):
        total.backward()


def test_no_gradient_is_made_where_none_is_wanted(batch):
    hidden, head = make_hidden(batch), make_head("linear")
    ones = torch.ones(len(batch.targets), dtype=torch.float64)
    with torch.no_grad():
        total, logprobs = fused_head(
            hidden, head, batch.targets, tensors=batch.target_tensors, coefficients=ones
        )
    assert not total.requires_grad
    assert_close([total], [logprobs.sum()])


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that any operation's result has."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


@pytest.mark.parametrize("fused", [False, True])
def test_nothing_larger_than_one_chunk_of_logits_is_ever_made(fused):
    batch = pack([list(range(100))])
    hidden = torch.randn(100, 2, requires_grad=True)
    weight = torch.randn(100, 2, requires_grad=True)
    with LargestTensor() as largest:
        if fused:
            loss, _ = fused_head(
                hidden,
                LinearHead(weight),
                batch.targets,
                tensors=batch.target_tensors,
                coefficients=torch.ones(99),
                chunk_tokens=7,
            )
        else:
            loss = head_logprobs(
                hidden,
                LinearHead(weight),
                batch.targets,
                tensors=batch.target_tensors,
                chunk_tokens=7,
                entropies=True,
            )[0].sum()
        loss.backward()
    assert largest.elements == 7 * 100


def test_wrong_arguments_are_refused(batch):
    hidden, head = make_hidden(batch), make_head("linear")
    arguments = (hidden, head, batch.targets)
    with pytest.raises(ValueError, match="temperature must be a finite number above 0, got 0"):
        head_logprobs(*arguments, tensors=batch.target_tensors, temperature=0.0)
    with pytest.raises(ValueError, match="chunk_tokens must be at least 1, got 0"):
        head_logprobs(*arguments, tensors=batch.target_tensors, chunk_tokens=0)
    with pytest.raises(ValueError, match="one entry per target"):
        fused_head(*arguments, tensors=batch.target_tensors, coefficients=torch.ones(1))
    with pytest.raises(TypeError, match=r"float32 or wider, got torch\.float16"):
        head_logprobs(hidden, HalfHead(head.weight), batch.targets, tensors=batch.target_tensors)


class HalfHead(LinearHead):
    def __call__(self, hidden):
        return super().__call__(hidden).half()
