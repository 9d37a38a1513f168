"""Which names mark a secret: no key of conf/ and no argument of an operator that ships does so unawares."""

from __future__ import annotations

import inspect

import pytest

from operators import targets
from pipeline.config.build import load_object
from pipeline.config.keys import FREE_FORM, known_keys
from pipeline.system.known_secrets import is_secret_name
from pipeline.system.redaction import is_secret_place

SECRET = [
    "key",
    "token",
    "secret",
    "password",
    "api_key",
    "apiKey",
    "hf_token",
    "auth-token",
    "openai_key",
    "X-API-Key",
    "db_password",
    "password2",
    "api_key_2",
    "client_secret",
    "accessToken",
    "AWS_SECRET_ACCESS_KEY",
    "private_key",
    "credentials",
    "api_keys",
    "sas_token",
    "pwd",
    "OPENAI_API_KEY",
    "githubToken",
    "my_token",
    "secret_key",
    "passphrase",
    "session_token",
    "access_tokens",
    "cookie",
    "API-Token",
    "HF_TOKEN",
    "bearerToken",
    "signing_key",
    "authorization",
]
PLAIN = [
    "max_tokens",
    "token_ids",
    "id_key",
    "stop_token_ids",
    "prompt_token_count",
    "keys",
    "tokens",
    "sort_key",
    "eos_token",
    "usd_per_token",
    "key_env",
    "monkey",
    "password_file",
    "tokenizer",
    "tokenize",
    "keyword",
    "key_column",
    "secret_name",
    "special_tokens_in_text",
    "compass",
    "author",
    "mask_token_id",
    "group_key",
    "primary_key",
    "stop_tokens",
    "draft_tokens",
    "tokens_per_minute",
    "cost_per_token",
    "bos_token",
    "keyboard",
    "turkey",
    "passed",
    "column",
]


@pytest.mark.parametrize("name", SECRET)
def test_these_names_mark_a_secret(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", PLAIN)
def test_these_names_do_not(name):
    assert not is_secret_name(name)


def test_of_our_settings_and_operators_only_headers_and_storage_options_are_secret():
    keys = [key for key in known_keys() if is_secret_place(tuple(key.split(".")))]
    assert keys == ["data.storage_options", "model.headers", "model.query", "output.storage_options"]
    arguments = [(t, name) for t in targets() for name in inspect.signature(load_object(t)).parameters]
    assert len(arguments) > 100
    assert [pair for pair in arguments if is_secret_name(pair[1])] == []


@pytest.mark.parametrize("key", [key for key in FREE_FORM if key.split(".")[1] in ("schema", "types", "rename")])
def test_a_column_of_the_data_may_have_any_name(key):
    for path in (tuple(key.split(".")), ("nodes", "read", "op", *key.split("."))):
        assert not is_secret_place((*path, "token"))
        assert not is_secret_place((*path, "headers"))


def test_a_node_or_a_step_may_have_any_name():
    assert not is_secret_place(("nodes", "token", "op", "template"))
    assert not is_secret_place(("nodes", "api_key", "inputs"))
    assert not is_secret_place(("steps", "password", "prompt"))
    assert is_secret_place(("steps", "call", "op", "api_key"))
