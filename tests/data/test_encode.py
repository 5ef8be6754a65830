from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from treetrain.data.encode import encode_steps, encode_texts, encode_turns, opening_tokens
from treetrain.data.turns import Turn


class CharacterPairs:
    """Stands in for a tokenizer: a token is two characters, whatever they are."""

    is_fast = True
    start_token: int | None = None

    def __init__(self) -> None:
        self.added_tokens_decoder: dict[int, AddedToken] = {}

    def __call__(self, text: list[str], *, add_special_tokens: bool, **_: Any) -> dict[str, Any]:
        starts = [list(range(0, len(one), 2)) for one in text]
        ids = [[ord(one[s]) for s in own] for one, own in zip(text, starts, strict=True)]
        if add_special_tokens and self.start_token is not None:
            ids = [[self.start_token, *own, 2] for own in ids]
        offsets = [
            [(s, min(s + 2, len(one))) for s in own] for one, own in zip(text, starts, strict=True)
        ]
        return {"input_ids": ids, "offset_mapping": offsets}


def test_special_tokens_spelled_out_in_a_text_become_one_id(tokenizer):
    ids = encode_texts(tokenizer, ["a<|end|>\n", ""])
    assert tokenizer.convert_tokens_to_ids("<|end|>") in ids[0].tolist()
    assert len(ids[1]) == 0
    assert ids[0].dtype == np.int64


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet="ab é\n<|>", max_size=6), min_size=3, max_size=6))
def test_steps_have_the_ids_of_each_text_encoded_whole(tokenizer, pieces):
    texts = ["<|end|>".join(pieces[: n + 1]) for n in range(len(pieces))]
    for got, whole in zip(
        encode_steps(tokenizer, texts), encode_texts(tokenizer, texts), strict=True
    ):
        assert got.tolist() == whole.tolist()


def test_steps_of_a_tokenizer_whose_pieces_depend_on_each_other_are_encoded_whole():
    pairs = CharacterPairs()
    pairs.added_tokens_decoder = {1: AddedToken("|", special=True)}
    texts = ["a|", "a|bc|", "a|bc|def|"]
    for got, whole in zip(encode_steps(pairs, texts), encode_texts(pairs, texts), strict=True):
        assert got.tolist() == whole.tolist()


def test_a_whole_text_is_encoded_as_one(tokenizer):
    text = "<|user|>\nhello there<|end|>\n<|assistant|>\nwater bench 3<|end|>\n"
    start = text.index("water")
    tokens, weights, across = encode_turns(tokenizer, text, [Turn(1, start, len(text) - 1)])
    assert tokens.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(weights) == len(tokens)
    assert across == 0


def test_the_trained_tokens_are_those_of_the_turn(tokenizer):
    turn = "water bench 3<|end|>"
    text = f"<|user|>\nhello there<|end|>\n<|assistant|>\n{turn}\n"
    start = text.index(turn)
    tokens, weights, _ = encode_turns(tokenizer, text, [Turn(1, start, start + len(turn))])
    assert tokenizer.decode(tokens[weights == 1].tolist()) == turn
    assert set(weights.tolist()) == {0.0, 1.0}


def test_a_token_that_takes_white_space_of_a_turn_is_counted_and_not_trained():
    _, weights, across = encode_turns(CharacterPairs(), "ab\n\ncd", [Turn(1, 3, 6)])
    assert weights.tolist() == [0, 0, 1]
    assert across == 1
    _, weights, across = encode_turns(CharacterPairs(), "ab  ", [Turn(1, 0, 3)])
    assert weights.tolist() == [1, 0]
    assert across == 1


@pytest.mark.parametrize(("start", "end"), [(1, 4), (2, 5)])
def test_a_token_that_takes_a_sampled_character_is_refused(start, end):
    with pytest.raises(ValueError, match=r"messages\[7\] must begin and end between two tokens"):
        encode_turns(CharacterPairs(), "abcdef", [Turn(7, start, end)])


def test_a_slow_tokenizer_is_refused_with_the_way_out(tokenizer):
    slow = CharacterPairs()
    slow.is_fast = False
    with pytest.raises(ValueError, match=r"needs a fast tokenizer.*per_step"):
        encode_turns(slow, "ab", [])


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="aé😀\n <|", max_size=12), st.text(alphabet="aé😀\n ", max_size=8))
def test_characters_of_several_bytes_stay_inside_their_turn(tokenizer, answer, question):
    turn = f"{answer}<|end|>"
    text = f"<|user|>\n{question}<|end|>\n<|assistant|>\n{turn}\n"
    start = len(text) - len(turn) - 1
    tokens, weights, across = encode_turns(tokenizer, text, [Turn(1, start, start + len(turn))])
    trained = tokenizer.decode(tokens[weights == 1].tolist())
    assert trained == turn or (
        across and turn.endswith(trained) and not turn[: -len(trained)].strip()
    )


def test_only_what_stands_before_a_text_is_an_opening_token(tokenizer):
    pairs = CharacterPairs()
    assert opening_tokens(pairs).tolist() == []
    pairs.start_token = 1
    assert opening_tokens(pairs).tolist() == [1]
    assert opening_tokens(tokenizer).tolist() == []
