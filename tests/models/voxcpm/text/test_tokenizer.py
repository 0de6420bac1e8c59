import json

import pytest

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.voxcpm.text.tokenizer import TextTokenizer


@pytest.fixture
def path(checkpoint):
    return checkpoint / "tokenizer.json"


def test_ids_equal_the_official_ones(path, goldens):
    tokenize = TextTokenizer(path, 608)
    cases = json.loads((goldens / "tokenizer.json").read_text())
    assert len(cases) >= 10
    assert {case["text"]: tokenize(case["text"]) for case in cases} == {case["text"]: case["ids"] for case in cases}


def test_words_of_chinese_characters_are_split_and_lose_their_space(path):
    tokenize = TextTokenizer(path, 608)
    names = {id: token for token, id in tokenize.bpe.get_vocab().items()}
    assert "你好" in names.values()  # otherwise no token would be split
    assert [names[id] for id in tokenize("hello 你好 hello")] == ["▁hello", "你", "好", "▁hello"]


def test_a_vocabulary_larger_than_the_model_is_refused(path):
    with pytest.raises(StartupError, match="the model holds 300 tokens"):
        TextTokenizer(path, 300)


def test_a_special_token_of_another_id_is_refused(path):
    path.write_text(
        path.read_text().replace("<|audio_start|>", "<|audio_x|>").replace("<|audio_end|>", "<|audio_start|>")
    )
    with pytest.raises(StartupError, match=r"<\|audio_start\|> the id 102, the model expects 101"):
        TextTokenizer(path, 608)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_missing_or_broken_file_is_named(path, content):
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(StartupError, match=r"tokenizer\.json cannot be read"):
        TextTokenizer(path, 608)
