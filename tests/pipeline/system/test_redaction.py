"""What of settings may be written down: where things lie, never who may have them."""

from __future__ import annotations

import pytest
import yaml

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.config.config_yaml import to_yaml
from pipeline.settings import JobSettings, NodeSettings
from pipeline.system.known_secrets import LEFT_OUT
from pipeline.system.redaction import clean_url, for_keeping, shown_url, without_redacted, without_secrets
from tests.pipeline.config.test_fingerprint import fingerprint

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


def test_neither_config_yaml_nor_the_fingerprint_has_them():
    data = {"path": "https://h/a?sig=5ec2e7", "storage_options": OPTIONS, "format": "csv"}
    settings = JobSettings(nodes={"read": NodeSettings({"_target_": "m.C", "data": data})})
    text = to_yaml(settings)
    assert yaml.safe_load(text)["nodes"]["read"]["op"]["data"]["storage_options"] == KEPT
    found = str(fingerprint(on_node={"storage_options": OPTIONS, "format": "csv"}))
    assert "nodes.square.op.bad.format" in found
    for secret in ("AKIA1", "t0k3n", "b34r3r", "me:pw"):
        assert secret not in text + found
    assert "5ec2e7" not in text


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
