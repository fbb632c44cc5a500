"""GBNF: read, refused with its line, and allowing what llama.cpp's own sampler allows."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_grammar

from edge_tr.constrain.constraint import Constraint
from edge_tr.constrain.gbnf import grammar_rules, to_lark
from edge_tr.errors import ConfigError
from edge_tr.llama.library import lib
from edge_tr.llama.model import Model
from edge_tr.llama.vocabulary import find_token


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ("root ::= x", "no rule is named x"),
        ("root ::= " + "(" * 18_700, "nested more than 64 deep"),
        ("x ::= [a]", "no rule named root"),
        ("", "no rule named root"),
        ('root ::= "a', "expected a character, found its end"),
        ("root ::= [a", "expected a character"),
        ('root ::= "\\d+"', "an escape of GBNF"),
        ("root ::= *", "something to repeat"),
        ('root = "a"', "expected ::="),
        ('root ::= "a" )', "the end of the line"),
        ("root ::= [z-a]", "in the order of their codes"),
        ('root ::= "a\0"', "NUL"),
        ('root ::= "\\uD800"', "a character of Unicode"),
        ("root ::= <think>", "a token of this model"),
        ('root ::= "a"{99999999999999}', "at most 65536"),
        ('root ::= (("a"{1000}){1000})', "at most 65536"),
        ('root ::= "a"{3,2}', "impossible"),
        ('root ::= "a"\nb ::= "b" "c"\n::= x', "line 3"),
        ("x" * (1 << 20), "at most 524288"),
    ],
)
def test_a_grammar_that_is_not_allowed(grammar: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        to_lark(grammar)


@pytest.fixture(scope="module")
def model(smollm2_q4_0: Path) -> Iterator[Model]:
    with Model(smollm2_q4_0) as opened:
        yield opened


class Native:
    """llama.cpp's sampler of a grammar."""

    def __init__(self, model: Model, grammar: str) -> None:
        self._sampler = lib.llama_sampler_init_grammar(model.vocab, grammar.encode(), b"root")
        assert self._sampler
        self._n = model.n_vocab

    def allowed(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        entries = (lib.llama_token_data * self._n)()
        for token, entry in enumerate(entries):
            entry.id = token
        candidates = lib.llama_token_data_array(entries, self._n, -1, False)
        lib.llama_sampler_apply(self._sampler, ctypes.byref(candidates))
        return np.array([entry.logit == 0 for entry in entries])

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self._sampler, token)

    def free(self) -> None:
        lib.llama_sampler_free(self._sampler)


@pytest.mark.model
@pytest.mark.parametrize(
    "grammar",
    [
        llama_grammar.JSON_GBNF,
        llama_grammar.ARITHMETIC_GBNF,
        'root ::= "" | "ab" "c" | "a" "bd" | [a-c] [b-z] "e"',
        'root ::= []"b" [a\\-z-]+ [^a-z]* (("x" | ) "y"){2,3}',
        'root ::= [z-]+ [a-z-]+ "y"',
        'root ::= "🎉\\U0001F389" [^0-9]* "é"',
        "root ::= [a-z]{3,1000}",
        'root ::= "(" root ")" | "x"',
    ],
)
def test_the_same_tokens_are_allowed_as_with_llama_cpp(model: Model, grammar: str) -> None:
    vocabulary = model.constraint_vocabulary
    is_text = np.array(
        [bool(model.piece(t)) or t in vocabulary.eos_tokens for t in range(model.n_vocab)]
    )
    own, native = Constraint(vocabulary, grammar_rules(grammar)), Native(model, grammar)
    rng = random.Random(3)
    try:
        for _ in range(12):
            allowed = own.allowed()
            differs = np.flatnonzero((allowed != native.allowed()) & is_text)
            assert [model.piece(int(t)) for t in differs] == []
            token = int(rng.choice(np.flatnonzero(allowed)))
            if token in vocabulary.eos_tokens:
                break
            own.accept(token)
            native.accept(token)
    finally:
        native.free()


@pytest.mark.model
def test_a_token_by_its_text_and_by_its_number(model: Model) -> None:
    grammar = "root ::= <|im_start|> !<[5]> <[7]>"
    token = int(model.tokenize("<|im_start|>", add_special=False)[0])
    rules = grammar_rules(grammar, lambda text: find_token(model.vocab, text))
    constraint = Constraint(model.constraint_vocabulary, rules)
    assert np.flatnonzero(constraint.allowed()).tolist() == [token]
    constraint.accept(token)
    allowed = constraint.allowed()
    assert not allowed[5]
    assert allowed[6]
    constraint.accept(6)
    assert np.flatnonzero(constraint.allowed()).tolist() == [7]


@pytest.mark.model
def test_an_ambiguous_grammar_is_no_trouble(model: Model) -> None:
    rules = grammar_rules("root ::= (" + "[a-z]? " * 12 + ")+")
    constraint = Constraint(model.constraint_vocabulary, rules)
    for token in model.tokenize("abracadabra", add_special=False):
        assert constraint.allowed()[token]
        constraint.accept(int(token))


@pytest.mark.model
def test_a_recursive_grammar_that_is_too_ambiguous_ends_with_an_error(model: Model) -> None:
    rules = grammar_rules('root ::= root root | [a-z]? | root "+" root')
    constraint = Constraint(model.constraint_vocabulary, rules)

    def follow() -> None:
        for token in model.tokenize("abc" * 300, add_special=False):
            constraint.allowed()
            constraint.accept(int(token))

    with pytest.raises(ConfigError, match="cannot be followed any further"):
        follow()


@pytest.mark.model
def test_after_the_end_there_is_only_an_end(model: Model) -> None:
    constraint = Constraint(model.constraint_vocabulary, grammar_rules('root ::= "a"?'))
    constraint.accept(model.constraint_vocabulary.eos_tokens[0])
    allowed = np.flatnonzero(constraint.allowed()).tolist()
    assert allowed == sorted(model.constraint_vocabulary.eos_tokens)


@pytest.mark.model
def test_a_grammar_that_no_text_follows(model: Model) -> None:
    with pytest.raises(ConfigError, match="the grammar"):
        Constraint(model.constraint_vocabulary, grammar_rules("root ::= root"))
