"""Text to token ids and back, through the `tokenizers` library: train a byte-level BPE, or load any tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from danlu.data.arrays import Array
from danlu.data.fast_tokens import FastEncoder, fast_encoder
from danlu.errors import UserError

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
"""Special tokens of a tokenizer that danlu trains: before a document, after it, and filling."""
FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
PIECE = 1 << 18
"""Characters that are encoded in one go; longer documents are cut at line ends, which bounds memory and spreads the work."""
AT_ONCE = 1 << 22
"""Characters that are given to the library at a time; its own form of a token takes some hundred bytes."""

WORTH_CHECKING = 1 << 18
"""Characters in a batch from which on it pays to load the faster library and to compare it."""


class Tokenizer:
    """A loaded tokenizer. Documents are plain text to it: special tokens written in them get no special meaning."""

    def __init__(self, data: bytes, origin: str, begin: str | None, end: str) -> None:
        self._tokenizer = _from_bytes(data, origin)
        self._data = data
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size: int = 1 + max(vocabulary.values())
        """One more than the largest id."""
        self.fingerprint: str = hashlib.sha256(data).hexdigest()
        """SHA-256 of tokenizer.json."""
        self.begin, self.end = begin, end
        self.begin_id: int | None = None if begin is None else self._id(begin, origin)
        """Put before a document; None: nothing is."""
        self.end_id: int = self._id(end, origin)
        """Put after a document."""
        self.unknown_id: int | None = _unknown(data, vocabulary)
        """Stands for what the tokenizer does not know; None: it knows all text."""
        self.byte_ids: list[int] = _byte_ids(data, vocabulary)
        """Tokens of one byte that is no character by itself."""
        # A tokenizer that puts a mark before each text (SentencePiece does) would put it between two pieces too.
        whole, first, second = (ids.tolist() for ids in self._ids(["x\ny", "x\n", "y"]))
        self.cuttable = whole == first + second
        """Whether the tokens of two texts are those of both together, at a line end between them."""

    @property
    def data(self) -> bytes:
        """The tokenizer.json."""
        return self._data

    def _id(self, token: str, origin: str) -> int:
        number: int | None = self._tokenizer.token_to_id(token)
        if number is None:
            raise UserError(f"{origin}: there is no token {token!r}; data.tokenizer.begin and end must name tokens that it has")
        return number

    @cached_property
    def vocabulary(self) -> dict[int, str]:
        """Every token by its id."""
        return {number: token for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def specials(self) -> dict[str, int]:
        """Special tokens and their ids; in a text that is encoded they are plain text."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    def _ids(self, texts: Sequence[str]) -> list[Array]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    @cached_property
    def _fast(self) -> FastEncoder | None:
        return fast_encoder(self._data, self._ids)

    @property
    def engine(self) -> str:
        """The library that encodes large batches: "gigatoken", where it gives the same ids, or "tokenizers"."""
        return "tokenizers" if self._fast is None else "gigatoken"

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without begin and end. Raises UserError for text with bytes that are no UTF-8 (a prompt may)."""
        _check(text)
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_markup(self, text: str, cuts: Iterable[int] = ()) -> tuple[Array, Array]:
        """Token ids (n,) of a text in which special tokens are meant as such, and the characters of each, (n, 2) int64.

        No token goes across a cut, given as the number of characters before it. Raises UserError as `encode`.
        """
        _check(text)
        ids, offsets = [], []
        for start, stop in pairwise(sorted({0, *cuts, len(text)})):
            encoding = self._markup.encode(text[start:stop], add_special_tokens=False)
            ids += encoding.ids
            offsets += [(start + first, start + last) for first, last in encoding.offsets]
        return np.array(ids, np.uint32), np.array(offsets, np.int64).reshape(-1, 2)

    @cached_property
    def _markup(self) -> Any:
        tokenizer = _from_bytes(self._data, "")
        tokenizer.encode_special_tokens = False
        return tokenizer

    def encode_batch(self, texts: Sequence[str]) -> list[Array]:
        """Token ids of each text (uint32), without begin and end; texts are spread over the processor's cores."""
        counts, pieces = [], []
        for text in texts:
            parts = _pieces(text) if self.cuttable else [text]
            counts.append(len(parts))
            pieces += parts
        many = sum(map(len, pieces)) >= WORTH_CHECKING
        encode = self._fast.encode if many and self._fast is not None else self._ids
        found: list[Array] = []
        group: list[str] = []
        size = 0
        for piece in pieces:
            group.append(piece)
            size += len(piece)
            if size >= AT_ONCE:
                found += encode(group)
                group, size = [], 0
        found += encode(group)
        ends = np.cumsum(counts).tolist()
        return [np.concatenate(found[end - count : end]) for count, end in zip(counts, ends, strict=True)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids; special tokens are spelled out unless skipped."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text


def _check(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"the text is not UTF-8 at character {error.start:,}") from None


def _unknown(data: bytes, vocabulary: dict[str, int]) -> int | None:
    """The id of the unknown token that the model names, by its text or, as Unigram does, by its number."""
    model = json.loads(data)["model"]
    number = model.get("unk_id")
    return number if isinstance(number, int) else vocabulary.get(model.get("unk_token") or "")


_BYTE = re.compile(r"<0x([89A-F][0-9A-F])>")
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIGH = {chr(byte) for byte in _PRINTABLE if byte >= 0x80} | {
    chr(0x100 + at) for at, byte in enumerate(sorted(set(range(0x100)) - _PRINTABLE)) if byte >= 0x80
}
"""Stand for bytes beyond ASCII in a byte-level vocabulary (Radford et al. 2019): printable Latin-1 for itself, the others in
order from U+0100."""


def _byte_ids(data: bytes, vocabulary: dict[str, int]) -> list[int]:
    """Tokens of one byte beyond ASCII: those of byte fallback, or of a byte-level vocabulary. Other kinds have none."""
    fallback = [number for token, number in vocabulary.items() if _BYTE.fullmatch(token)]
    if fallback or b'"ByteLevel"' not in data:
        return fallback
    return [vocabulary[token] for token in sorted(_HIGH) if token in vocabulary]


def _pieces(text: str) -> list[str]:
    """Cut a long text, behind a line end where there is one."""
    pieces = []
    start = 0
    while len(text) - start > PIECE:
        stop = text.rfind("\n", start, start + PIECE) + 1 or start + PIECE
        pieces.append(text[start:stop])
        start = stop
    return [*pieces, text[start:]]


def _from_bytes(data: bytes, origin: str) -> Any:
    # Unless this is set, every process forked later on (a data loader's workers) warns that parallelism was used.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception or ValueError for anything it cannot read
        raise UserError(f"{origin}: not a tokenizer.json: {' '.join(str(error).split())}") from None
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if not tokenizer.get_vocab_size():
        raise UserError(f"{origin}: the tokenizer has no tokens")
    return tokenizer


def train(texts: Iterable[str], vocab_size: int) -> bytes:
    """Train a byte-level BPE and return its tokenizer.json; the same texts in the same order give the same bytes.

    Byte-level BPE with GPT-2's pre-tokenization (Radford et al. 2019, section 2.2): any text is encoded without loss.
    The vocabulary holds the 256 bytes, three special tokens, and merges up to `vocab_size`; fewer on little text.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    text: str = tokenizer.to_str(pretty=True)
    return text.encode("utf-8")


def load(path: Path | str, begin: str | None = None, end: str | None = None) -> Tokenizer:
    """Load a tokenizer.json, or the one in a folder. `begin` and `end` override what the files around it say.

    Those are read as Hugging Face writes them: bos_token and eos_token in tokenizer_config.json (with add_bos_token: false,
    nothing is put before a document), then in special_tokens_map.json, then bos_token_id and eos_token_id in config.json.
    Where all are silent, the special tokens of a tokenizer that danlu trained are known by their names.

    Raises:
        UserError: no such file, not a tokenizer, or no token known to end a document.
    """
    file = tokenizer_file(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    names = _Names(file)
    end = end or names.find("eos_token", END)
    if end is None:
        raise UserError(f"{file}: no token is known to end a document; name one in data.tokenizer.end")
    return Tokenizer(data, str(file), begin or names.find("bos_token", BEGIN), end)


def tokenizer_file(path: Path | str) -> Path:
    """The tokenizer.json at a path that a recipe gives. Raises UserError when there is none."""
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / FILE
    if not file.is_file():
        raise UserError(f"data.tokenizer.path: there is no file {file}")
    return file


def save(folder: Path, data: bytes, begin: str | None, end: str, settings: dict[str, Any] | None = None) -> Path:
    """Write tokenizer.json and the tokenizer_config.json by which danlu and Hugging Face's AutoTokenizer load it."""
    file = folder / FILE
    file.write_bytes(data)
    merged = {"tokenizer_class": "PreTrainedTokenizerFast", **(settings or {"pad_token": PAD})}
    merged |= {"bos_token": begin, "eos_token": end, "add_bos_token": begin is not None}
    (folder / SETTINGS).write_text(json.dumps(merged, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return file


def settings_beside(file: Path) -> dict[str, Any]:
    """The tokenizer_config.json beside a tokenizer.json, with a chat template that lies in a file of its own; empty without."""
    found = _json_beside(file, SETTINGS)
    template = file.with_name(TEMPLATE)
    if template.is_file():
        try:
            found["chat_template"] = template.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"{template}: cannot be read: {error}") from None
    return found


def _json_beside(file: Path, name: str) -> dict[str, Any]:
    path = file.with_name(name)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: not a JSON object")
    return found


class _Names:
    """What the files beside a tokenizer.json say about its special tokens."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.settings = settings_beside(file)
        self.map = _json_beside(file, "special_tokens_map.json")
        self.config = _json_beside(file, "config.json")
        self.ids: dict[int, str] = {}
        added = _json_beside(file, file.name).get("added_tokens")
        for token in added if isinstance(added, list) else []:
            if isinstance(token, dict) and "id" in token and "content" in token:
                self.ids[token["id"]] = token["content"]

    def find(self, key: str, own: str) -> str | None:
        """The token that the files name, the first one that has a word on it is believed; else `own`, if it is there."""
        if key == "bos_token" and self.settings.get("add_bos_token") is False:
            return None
        for source in (self.settings, self.map):
            if key in source:
                value = source[key]
                token = value.get("content") if isinstance(value, dict) else value
                if token is not None or key == "bos_token":
                    return token
        number = self.config.get(f"{key}_id")
        if isinstance(number, list):
            number = number[0] if number else None
        if isinstance(number, int):
            return self.ids.get(number)
        return own if own in self.ids.values() else None
