"""What is shared and what is not, and whether it pays: faults that were reported in public."""

from __future__ import annotations

import json

import numpy as np
import pytest

from treetrain.cli.main import main
from treetrain.data.rows import read_samples
from treetrain.data.sample import Sample
from treetrain.packing.batch import pack
from treetrain.report.inspection import inspect_samples
from treetrain.testing.models import make_tiny_model
from treetrain.verification.verify import verify


class Letters:
    """A tokenizer of single letters that also has an id for one pair of them."""

    def __init__(self, pair: str) -> None:
        self.pair = pair

    def __call__(self, text: list[str]) -> None:
        raise AssertionError("rows of ids are not encoded")

    def __len__(self) -> int:
        return 128

    def decode(self, ids: list[int], **options: bool) -> str:
        return "".join(self.pair if token == 127 else chr(token) for token in ids)


@pytest.mark.parametrize("place", [1, 500, 998])
def test_ids_that_differ_within_equal_text_part_there_and_the_report_says_where(
    write_rows, capsys, monkeypatch, place
):
    """Case 20. Source: THUDM/slime#2288."""
    letters = [97 + number % 26 for number in range(1000)]
    pair = chr(letters[place]) + chr(letters[place + 1])
    # As one sampled it, and as its text was encoded again.
    sampled = [*letters[:place], 127, *letters[place + 2 :]]
    path = write_rows({"input_ids": letters}, {"input_ids": sampled})
    tree = pack(read_samples(path)).tree
    assert int(tree.node_lengths[0]) == place
    assert tree.num_tokens == 1000 + 999 - place
    monkeypatch.setattr("treetrain.cli.tokenizers.load_tokenizer", lambda name: Letters(pair))
    assert main(["inspect", str(path), "--tokenizer", "letters", "--json"]) == 0
    [parting] = json.loads(capsys.readouterr().out)["partings"]
    assert (parting["depth"], parting["source"]) == (place, "data.jsonl:2")
    assert (parting["branch"][0], parting["sibling"][:2]) == (127, letters[place : place + 2])
    # The pieces are told apart as ids, since their text is the same.
    branch, sibling = parting["text"]["branch"], parting["text"]["sibling"]
    assert branch.startswith(pair)
    assert sibling.startswith(pair)
    assert main(["inspect", str(path), "--tokenizer", "letters"]) == 0
    said = capsys.readouterr().out
    assert f"1 branch: {999 - place} token" in said
    assert f"at depth {place} of data.jsonl:2" in said
    assert repr(branch) in said


def test_tokens_that_took_different_experts_are_not_merged():
    """Case 21. Source: NVIDIA/Megatron-LM#7386."""
    sequences = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 6]]
    routes = [[7, 7, 7, 7, 7], [7, 7, 8, 7, 7], [7, 7, 7, 7]]
    merged = pack([Sample(own) for own in sequences]).tree
    samples = [Sample(own, keys=keys) for own, keys in zip(sequences, routes, strict=True)]
    batch = pack(samples)
    # The third token of the second sequence took another route, so all after it stand apart.
    assert (merged.num_tokens, batch.num_tokens) == (6, 9)
    positions = [batch.tree.positions(number).tolist() for number in range(3)]
    assert positions[0][:2] == positions[1][:2]
    assert not set(positions[0][2:]) & set(positions[1][2:])
    assert positions[0][:3] == positions[2][:3]
    assert verify(make_tiny_model("qwen3_moe"), samples).equal


def test_sharing_of_a_twentieth_is_said_not_to_pay_with_its_figures(write_rows, capsys):
    """Case 22. Source: treegrpo of verl, whose speed was 0.7 of separate training's."""
    fresh = np.arange(1000, 2000)
    rows = [[*range(20), *fresh[190 * n : 190 * n + 190].tolist()] for n in range(2)]
    path = write_rows(*({"input_ids": row} for row in rows))
    assert main(["inspect", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    found = inspect_samples([Sample(row) for row in rows])
    assert found.total.token_reduction == pytest.approx(420 / 400, abs=1e-10)
    assert not found.pays
    assert said.startswith("does not pay: sharing saves 5 % of the floating-point work (FLOP bound")
    assert "token reduction 1.05" in said
