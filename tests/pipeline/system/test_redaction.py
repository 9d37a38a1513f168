"""What of settings may be written down: where things lie, never who may have them; and which names mark a secret."""

from __future__ import annotations

import inspect

import pytest

from operators import targets
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.config.build import load_object
from pipeline.config.keys import FREE_FORM, known_keys
from pipeline.system.known_secrets import LEFT_OUT, hidden, is_secret_name
from pipeline.system.redaction import (
    clean_url,
    for_keeping,
    is_secret_place,
    shown_url,
    without_redacted,
    without_secrets,
)

OPTIONS = {
    "key": "AKIA1",
    "anon": False,
    "profile": "work",
    "endpoint_url": "https://me:pw@minio:9000",
    "client_kwargs": {"region_name": "eu", "aws_session_token": "t0k3n"},
    "headers": ["Bearer b34r3r"],
    "retries": 3,
}
KEPT = {
    "key": LEFT_OUT,
    "anon": False,
    "profile": "work",
    "endpoint_url": "https://minio:9000",
    "client_kwargs": {"region_name": "eu", "aws_session_token": LEFT_OUT},
    "headers": [LEFT_OUT],
    "retries": 3,
}


def test_of_storage_options_only_what_is_known_to_be_harmless_is_kept():
    settings = {
        "data": {"storage_options": OPTIONS, "path": "s3://b/a"},
        "nodes": {"read": {"op": {"storage_options": OPTIONS}}},
    }
    assert for_keeping(settings) == {
        "data": {"storage_options": KEPT, "path": "s3://b/a"},
        "nodes": {"read": {"op": {"storage_options": KEPT}}},
    }


def test_what_was_left_out_is_not_used():
    assert without_redacted(KEPT) == {
        **{k: v for k, v in KEPT.items() if k != "key"},
        "client_kwargs": {"region_name": "eu"},
        "headers": [LEFT_OUT],
    }


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://h/a.jsonl?X-Amz-Signature=5ec2e7&b=c", "https://h/a.jsonl?(left out)"),
        ("cannot read 'https://u:p@h/a?sig=x' now", "cannot read 'https://h/a?(left out)' now"),
        ("s3://b/a-?.jsonl", "s3://b/a-?.jsonl"),
        ("abfs://box@account/a", "abfs://box@account/a"),
        ("github://org:repo@main/a", "github://org:repo@main/a"),
        ("what? no: me@home", "what? no: me@home"),
    ],
)
def test_of_urls_the_secret_parts_are_left_out(text, kept):
    assert clean_url(text) == kept


def test_messages_are_freed_of_secrets():
    text = "403 for AKIA1 with t0k3n and Bearer b34r3r at eu"
    assert without_secrets(text, OPTIONS) == f"403 for {LEFT_OUT} with {LEFT_OUT} and {LEFT_OUT} at eu"


def test_of_data_urls_messages_have_the_length():
    url = "data:image/png;name=a.png;base64,"
    assert hidden(f"says 400: {url}{'iVBO+/' * 99}== twice {url}AAAA") == (
        f"says 400: {url}(596 characters) twice {url}AAAA"
    )


def test_a_slip_on_the_command_line_does_not_print_them(capsys):
    assert main(["job=generate", "data.storage_options={key: AKIA1"]) == ExitCode.CONFIG
    told = capsys.readouterr().err
    assert "'data.storage_options=...' cannot be read as key=value" in told
    assert "AKIA1" not in told


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@hooks.example.com:8443/T/B?x=1", "https://hooks.example.com:8443/..."),
        ("http://localhost/x", "http://localhost/..."),
        ("http://[::1]:9300/v1", "http://[::1]:9300/..."),
        ("https://u:p@[2001:db8::1%25eth0]/v1?x=1", "https://[2001:db8::1%25eth0]/..."),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url, shown):
    assert shown_url(url) == shown


SECRET = """
key token secret password api_key apiKey hf_token auth-token openai_key X-API-Key db_password password2
api_key_2 client_secret accessToken AWS_SECRET_ACCESS_KEY private_key credentials api_keys sas_token pwd
OPENAI_API_KEY githubToken my_token secret_key passphrase session_token access_tokens cookie API-Token HF_TOKEN
bearerToken signing_key authorization
"""
PLAIN = """
max_tokens token_ids id_key stop_token_ids prompt_token_count keys tokens sort_key eos_token usd_per_token
key_env monkey password_file tokenizer tokenize keyword key_column secret_name special_tokens_in_text compass
author mask_token_id group_key primary_key stop_tokens draft_tokens tokens_per_minute cost_per_token bos_token
keyboard turkey passed column
"""


def test_these_names_mark_a_secret_and_those_do_not():
    assert [name for name in SECRET.split() if not is_secret_name(name)] == []
    assert [name for name in PLAIN.split() if is_secret_name(name)] == []


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
