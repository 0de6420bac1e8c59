"""Converts text to token ids: byte-pair encoding, then words of Chinese characters are split into characters."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.voxcpm.text.registered import register_tokens

AUDIO_START = 101  # it stands between the text and the speech
REFERENCE_START = 103
REFERENCE_END = 104
SPECIAL = {
    AUDIO_START: "<|audio_start|>",
    REFERENCE_START: "<|audio_prompt_start|>",
    REFERENCE_END: "<|audio_prompt_end|>",
}
SPACE = "▁"  # the vocabulary writes a space so


class TextTokenizer:
    """Token ids of text without begin or end marks, as the model was trained with them.

    The model was trained on Chinese characters, not words. A token that is, without its space, a word of two or more
    Chinese characters is replaced by these characters, without the space. Other tokens are unchanged.

    Special tokens in a text are the tokens that the files of the checkpoint register, as in the released code: where
    they register <|audio_start|>, these characters give the token 101, and else the tokens of their spelling.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        try:
            self.bpe = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain exceptions for missing and for broken files
            raise StartupError(f"{path} cannot be read ({error}); download the checkpoint again") from error
        unknown = register_tokens(self.bpe, path.parent, vocab_size)
        self.bpe.no_truncation()
        self.bpe.no_padding()
        vocab = self.bpe.get_vocab()
        top = max(max(vocab.values(), default=0), *SPECIAL)
        if top >= vocab_size:
            raise StartupError(
                f"{path} has token {top} and the model holds {vocab_size} tokens; "
                "take tokenizer.json and config.json from the same release"
            )
        for id, name in SPECIAL.items():
            if vocab.get(name, id) != id:
                raise StartupError(f"{path} gives {name} the id {vocab[name]}, the model expects {id}")
        self._unknown = vocab.get(unknown, 0)
        self._vocab = vocab
        self._registered = frozenset(self.bpe.get_added_tokens_decoder())
        self._words = _words(vocab, self._unknown)

    def __call__(self, text: str) -> list[int]:
        # Unlike `encode`, this does not find out which part of the text each token is, which takes a fifth of the time.
        ids = self.bpe.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not self._registered.isdisjoint(ids):
            encoding = self.bpe.encode(text, add_special_tokens=False)
            # The vocabulary is asked by name, as in the released code: a registered token that took spaces with it is
            # unknown there.
            ids = [self._vocab.get(token, self._unknown) for token in encoding.tokens]
        if self._words.keys().isdisjoint(ids):
            return ids
        return [part for id in ids for part in self._words.get(id, (id,))]


def _words(vocab: dict[str, int], unknown: int) -> dict[int, tuple[int, ...]]:
    """The tokens that are several Chinese characters, and the tokens of these characters."""
    words = {token for token in vocab if len(token) >= 2 and all("\u4e00" <= c <= "\u9fff" for c in token)}
    return {
        id: tuple(vocab.get(c, unknown) for c in bare)
        for token, id in vocab.items()
        if (bare := token.replace(SPACE, "")) in words
    }
