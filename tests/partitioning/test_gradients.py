from __future__ import annotations

import pytest
import torch
from torch import nn

from treetrain.partitioning.gradients import all_or_none


def make():
    torch.manual_seed(0)
    first, second, unused = (nn.Parameter(torch.randn(3)) for _ in range(3))
    frozen = nn.Parameter(torch.randn(3), requires_grad=False)
    return first, second, unused, frozen


def backward(first, second):
    (first * second).sum().backward()


def test_gradients_are_added_in_place_at_the_end():
    first, second, unused, frozen = make()
    earlier = torch.ones(3)
    first.grad, unused.grad = earlier, torch.full((3,), 5.0)
    with all_or_none([first, second, unused, frozen]):
        backward(first, second)
        assert torch.equal(earlier, torch.ones(3))
        backward(first, second)
    assert first.grad is earlier
    assert torch.equal(first.grad, 1 + 2 * second.detach())
    assert torch.equal(second.grad, 2 * first.detach())
    assert torch.equal(unused.grad, torch.full((3,), 5.0))
    assert frozen.grad is None


def _raiser(error):
    def strike(gradient):
        raise error

    return strike


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_leaves_what_was_there(error):
    first, second, unused, frozen = make()
    earlier = torch.ones(3)
    first.grad = earlier
    second.register_hook(_raiser(error))
    with pytest.raises(error), all_or_none([first, second, unused, frozen]):
        backward(first, second)
    assert first.grad is earlier
    assert torch.equal(earlier, torch.ones(3))
    assert second.grad is None


def test_an_interruption_right_after_the_sum_leaves_all_of_it(monkeypatch):
    first, second, unused, frozen = make()
    first.grad = torch.ones(3)
    add = torch._foreach_add_

    def add_and_stop(*args):
        add(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "_foreach_add_", add_and_stop)
    with pytest.raises(KeyboardInterrupt), all_or_none([first, second, unused, frozen]):
        backward(first, second)
    assert torch.equal(first.grad, 1 + second.detach())
    assert torch.equal(second.grad, first.detach())


def test_gradients_that_cannot_be_added_to_fail_before_anything_runs():
    first, second, unused, _ = make()
    first.grad, unused.grad = torch.ones(3), torch.zeros(1).expand(3)
    with pytest.raises(RuntimeError), all_or_none([first, second, unused]):
        raise AssertionError
    assert torch.equal(first.grad, torch.ones(3))
    assert second.grad is None
