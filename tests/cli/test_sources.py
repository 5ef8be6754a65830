from __future__ import annotations

import socket
import time

import pytest
from tqdm.auto import tqdm
from transformers.utils import logging

from treetrain.cli.configs import check_source
from treetrain.cli.models import load_model
from treetrain.cli.sources import find_path, without_bars
from treetrain.cli.tokenizers import load_tokenizer
from treetrain.testing.models import make_tiny_model

PATHS = ["./gone", "../gone", "/no/such/folder", "~/no/such/folder", "a/b/c", "gone.gguf"]


@pytest.fixture
def no_network(monkeypatch):
    """Lets no name of a host be found, and nothing wait."""

    def fail(*arguments, **options):
        raise socket.gaierror(-2, "no such host")

    waits = []
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


@pytest.mark.parametrize("name", PATHS)
def test_a_name_that_can_only_be_a_path_is_refused_without_asking_the_hub(
    name, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    for file in ("configs", "models", "tokenizers"):
        monkeypatch.setattr(f"treetrain.cli.{file}.reach_hub", pytest.fail)
    for load, kind in (
        (check_source, "model"),
        (load_model, "model"),
        (load_tokenizer, "tokenizer"),
    ):
        with pytest.raises(ValueError, match=rf"^{kind} must be .*, which does not exist$") as told:
            load(name)
        assert repr(name) in str(told.value)


@pytest.mark.parametrize("name", ["gpt2", "owner/model"])
def test_a_name_of_the_hub_is_no_path(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert find_path(name, expected="").as_posix() == name


def test_the_home_folder_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert find_path("~", expected="") == tmp_path


@pytest.mark.parametrize("load", [check_source, load_model, load_tokenizer])
def test_without_a_network_an_unknown_name_fails_without_waiting(load, no_network):
    with pytest.raises(ValueError, match="give the path of a folder, or run again where the hub"):
        load("owner/of-no-such-model")
    assert no_network == []


def test_no_bars_are_drawn_and_both_switches_are_as_before(tmp_path, capsys):
    make_tiny_model("llama").save_pretrained(tmp_path)
    capsys.readouterr()
    before = tqdm.__dict__.get("__init__")
    load_model(tmp_path)
    with without_bars():
        list(tqdm(range(3)))
    assert capsys.readouterr().err == ""
    assert logging.is_progress_bar_enabled()
    assert tqdm.__dict__.get("__init__") is before
    list(tqdm(range(3)))
    assert "3/3" in capsys.readouterr().err
