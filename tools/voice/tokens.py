"""The tokenizer of the bundled voice, in files of the official layout. Each character is a token."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

SPECIAL = {101: "<|audio_start|>", 102: "<|audio_end|>", 103: "<|audio_prompt_start|>", 104: "<|audio_prompt_end|>"}
AUDIO_START, REFERENCE_START, REFERENCE_END = 101, 103, 104
VOCABULARY = 105
SPACE = "▁"
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?;:'\"()-&%$/"
SPELLED = {"[‘’´`]": "'", "[“”]": '"', "[‐‑‒–—]": "-", "…": "..."}


def build() -> Tokenizer:
    """The tokenizer. It changes text to lower case, and drops accents and characters that the voice does not know."""
    names = ["<unk>", "<s>", "</s>", SPACE, *CHARACTERS]
    names += [f"<|reserved_{i}|>" for i in range(len(names), 101)]
    vocab = {name: i for i, name in enumerate(names)} | {name: i for i, name in SPECIAL.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", fuse_unk=True))
    known = "".join("\\" + c if not c.isalnum() else c for c in CHARACTERS)
    tokenizer.normalizer = normalizers.Sequence(
        [
            *(normalizers.Replace(Regex(pattern), plain) for pattern, plain in SPELLED.items()),
            normalizers.NFKD(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\s"), " "),
            normalizers.Replace(Regex(f"[^{known} ]"), ""),
            normalizers.Replace(Regex(" +"), " "),
            normalizers.Strip(),
            normalizers.Replace(" ", SPACE),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", *SPECIAL.values()]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    return tokenizer


def write(folder: Path) -> None:
    """Write the files of the tokenizer."""
    build().save(str(folder / "tokenizer.json"), pretty=False)
    marks: dict[str, object] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(marks) + "\n")
    kind = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "add_eos_token": False, "legacy": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(marks | kind) + "\n")
