"""Which words of a command are recorded as they are, and which are hidden."""

import pytest

from tfdist.launcher.command_without_secrets import without_secrets


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--hf_token=abc", "--hf_token=***"),
        ("--hf-token abc --lr 1", "--hf-token *** --lr 1"),
        ("--token -abc", "--token ***"),
        ("--token --lr 1", "--token --lr 1"),
        ("env WANDB_API_KEY=a=b python x.py", "env WANDB_API_KEY=*** python x.py"),
        ("--set=db.password=a", "--set=db.password=***"),
        ("--Password=a -secret b", "--Password=*** -secret ***"),
        ("--aws_secret_access_key=a --credentials=b", "--aws_secret_access_key=*** --credentials=***"),
        ("--data=https://me:word@host/a?b=c", "--data=https://***@host/a?b=c"),
        ("https://ghp_word@host/a", "https://***@host/a"),
        # What is no secret.
        ("--tokenizer=bert --max_tokens=5", "--tokenizer=bert --max_tokens=5"),
        ("--token_dim=5 --key=5 --secret_file=a", "--token_dim=5 --key=5 --secret_file=a"),
        ("--mail=me@host gs://bucket/a@b", "--mail=me@host gs://bucket/a@b"),
        ("python x.py -- a", "python x.py -- a"),
    ],
)
def test_a_value_is_hidden_whose_name_or_form_says_that_it_is_a_secret(words, shown):
    assert without_secrets(words.split()) == shown.split()


def test_a_secret_of_several_lines_is_hidden_whole():
    assert without_secrets(["--private_key=a\nb\n"]) == ["--private_key=***"]
