"""The native comparison of tensors' addresses."""

import torch

from jitney import torch_api


def test_notices_what_moved_and_nothing_else():
    base = torch.randn(10, 4)
    weight = torch.nn.Parameter(torch.randn(3))
    given = (base, 5, weight, base[2:4])
    same = torch_api.same_addresses(given, (0, 2, 3))
    assert same(given)
    assert same(
        (base, 6, weight, base[2:4])
    )  # another object at the same place; 5 is not looked at
    assert not same((base, 5, weight, base[3:5]))
    assert not same((base.clone(), 5, weight, base[2:4]))
    weight.data = torch.randn(3)
    assert not same(given)


def test_storage_that_grows_is_noticed():
    value = torch.zeros(4)
    before, same = value.data_ptr(), torch_api.same_addresses((value,), (0,))
    value.resize_(1 << 20)
    assert same((value,)) == (value.data_ptr() == before)


def test_nothing_to_compare_is_the_same():
    assert torch_api.same_addresses((1, 2), ())((3, 4))
