"""A job file is as large as it looks."""

from __future__ import annotations

import pytest

from pipeline.api.errors import ConfigError
from pipeline.cli.main import main
from pipeline.config.aliases import check_aliases

BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20))


def test_aliases_that_stand_for_few_values_are_fine():
    check_aliases("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: '2 * 3'}\n")


@pytest.mark.parametrize(
    ("text", "reason"), [(BOMB, "more than 100000 values"), ("a: &a [*a]", "inside of what it names")]
)
def test_others_are_refused(text, reason, tmp_path, capsys):
    with pytest.raises(ConfigError, match=reason):
        check_aliases(text)
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    assert main([f"job={tmp_path}/job.yaml"]) == 2
    assert reason in capsys.readouterr().err
