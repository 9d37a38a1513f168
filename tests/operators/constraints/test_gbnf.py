"""GBNF: a grammar has the texts that llama.cpp says it has."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable, Iterator

import llama_cpp
import pytest

from operators.constraints.grammars import form_of
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError
from tools.models.make_model import write_model

pytestmark = pytest.mark.slow("holds texts against llama.cpp's own grammars")

JSON = r"""# of llama.cpp's grammars/json.gbnf
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
GRAMMARS: dict[str, list[str]] = {
    # escapes, in literals and classes
    r'root ::= "\x41\u00e9\U0001F600\n\t\r\\\"\[\]"': ['Aé😀\n\t\r\\"[]', "A"],
    r'root ::= "\u00e9ab" | "\xe9"': ["éab", "\ue9ab", "é"],
    r"root ::= [\u00e9ab]+": ["éab", "ébé", "\ue9ab", "c"],
    r"root ::= [\u4e00-\u9fa5] [\U0001F600-\U0001F64F] [\x41-\x43]": ["中😀B", "a😀B", "中😀D"],
    r"root ::= [\]\[^\\-]+": ["[]^-\\", "a"],
    r"root ::= [^\n\x00-\x1f]+": ["ab é", "\n", "a\x1f"],
    "root ::= [a-z-9]+ | [--0]+ | [A-]+ | [&~|/]+": ["a-9", "8", "./0", "-A", "B", "&&~~//|", "/9"],
    "root ::= [a^b]+ [#]": ["a^#", "b#", "^"],
    'root ::= "a/b" [/]': ["a/b/", "a/b"],
    "root ::= [一-龥é]+": ["中文é", "a"],
    # names
    'root ::= Item item\nItem ::= "A"\nitem ::= "b"': ["Ab", "AA", "bA"],
    'root ::= a-b ab aB\na-b ::= "x"\nab ::= "y"\naB ::= "z"': ["xyz", "xyy"],
    'root ::= 1st start ROOT\n1st ::= "x"\nstart ::= "y"\nROOT ::= "z"': ["xyz", "x"],
    'root ::= r1 r2\nr2 ::= "b"\nr1 ::= "a"\n': ["ab", "ba"],
    'root ::= x\nx ::= "a"\nx ::= "b"': ["a", "b"],
    # any character
    'root ::= "a" . "b"': ["a\nb", "a\rb", "a\u2028b", "aéb", "a😀b", "ab", "aabb"],
    # where one part of a text ends
    'root ::= word "x"\nword ::= [a-z]+': ["abx", "xx", "x", "ab"],
    'root ::= ("a" | "ab") "bc"': ["abc", "abbc", "ac"],
    'root ::= a b\na ::= "x"*\nb ::= "x" "y"': ["xy", "xxxy", "y"],
    'root ::= n "." n\nn ::= [0-9.]+': ["1.2", "1...2", "1."],
    # repetitions, groups, empty parts, comments
    'root ::= "ab"? "c"*? "d"{2} ("e" "f"){ 1 , 2 } "g"{2,}': ["ddefgg", "abccddefefggg", "ddeg", "ddefg"],
    'root ::= ("a" | ("b" | "c" "d")+ | ) "."': ["a.", "bcdb.", ".", "c."],
    'root ::= "" "a" ws "z"\nws ::= | " " ws': ["az", "a  z", "z"],
    '\n# start: x\n\n root ::= "#" # "c"\r\n\r\n': ["#", "#c"],
    'root ::= (\n  "a" |\n  # "c"\n  "b"\n) "c"': ["ac", "bc", "cc"],
    'root ::= "a\nb"': ["a\nb"],
    'root ::= e\ne ::= t ("+" t)*\nt ::= [0-9] | "(" e ")"': ["1+(2+3)", "((1))", "1+", "(1"],
    JSON: ['{"a": [1, -2.5e3, "x\\n\\u00e9é", null], "b": {}}', "[1]", '{"a"}', '{"a":\n  true}'],
}
REFUSED = {
    'root ::= "a" b': "Rule 'b' not found, of line 1",
    'other ::= "a"': "Rule 'root' not found",
    'root ::= "a"\nx ::= (\n"b"': "not closed",
    'root ::= "a")': "')' behind nothing",
    "root ::= *": "behind nothing",
    'root ::= "a" | +': "behind nothing",
    'root ::= "\\q"': "is no character",
    'root ::= "\\ud83d"': "is no character",
    'root ::= "\\UFFFFFFFF"': "is no character",
    'root ::= "a"\n\nx ::= "b': "line 3",
    'root ::= <think> "a"': "names a token",
}


@pytest.fixture(scope="module")
def fits(tmp_path_factory) -> Iterator[Callable[[str, str], bool]]:
    """Whether llama.cpp finds a text in a grammar; it is fed by bytes, which are tokens of the model."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path, file_type="f32", shape="tiny")
    model = LlamaModel(ModelSettings(path=str(path)))
    tokens = {piece: token for token, piece in enumerate(model.pieces()) if len(piece) == 1}
    (end, *_) = model.end_ids

    def allowed(sampler: object, token: int) -> bool:
        data = (llama_cpp.llama_token_data * 1)(llama_cpp.llama_token_data(token, 0.0, 0.0))
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(llama_cpp.llama_token_data_array(data, 1, -1, False)))
        return data[0].logit == 0

    def found(grammar: str, text: str) -> bool:
        sampler = llama_cpp.llama_sampler_init_grammar(model._vocab, grammar.encode(), b"root")
        assert sampler, grammar
        for byte in text.encode():
            if not allowed(sampler, tokens[bytes([byte])]):
                return False
            llama_cpp.llama_sampler_accept(sampler, tokens[bytes([byte])])
        return allowed(sampler, end)

    yield found
    model.close()


@pytest.mark.parametrize("grammar", GRAMMARS, ids=range(len(GRAMMARS)))
def test_a_grammar_has_the_texts_that_llama_cpp_finds_in_it(fits, grammar):
    form = form_of(StructuredSettings(grammar=grammar))
    assert form is not None
    found = {text: form.check(text) is None for text in GRAMMARS[grammar]}
    assert found == {text: fits(grammar, text) for text in GRAMMARS[grammar]}
    assert any(found.values())


@pytest.mark.laws
def test_any_class_of_any_signs_is_as_in_llama_cpp(fits):
    signs = ["-", "^", "&", "~", "a", "c", r"\]", "[", r"\\", "/", '"', "."]
    tried = [*(sign[-1] for sign in signs), "b", "0", "\n"]
    for parts in itertools.product(signs, repeat=3):
        inside = "".join(parts)
        low, high = (part[-1] for part in (parts[0], parts[2]))
        if inside == "^" or (parts[1] == "-" and low > high) or parts[0] == "^":
            continue
        form = form_of(StructuredSettings(grammar=f"root ::= [{inside}]"))
        assert form is not None
        for char in tried:
            assert (form.check(char) is None) == fits(f"root ::= [{inside}]", char), (inside, char)


@pytest.mark.parametrize("grammar", REFUSED)
def test_what_is_no_gbnf_is_refused_with_the_line(grammar):
    with pytest.raises(ConfigError, match=f"cannot be read as GBNF: .*{re.escape(REFUSED[grammar])}"):
        form_of(StructuredSettings(grammar=grammar))


@pytest.mark.parametrize("grammar", ['// x ::= y\nstart: "::="', 'start: "a"\n      | "root ::= b"'])
def test_a_grammar_of_lark_is_not_taken_for_one(grammar):
    assert form_of(StructuredSettings(grammar=grammar)) is not None
