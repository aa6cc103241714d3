"""Byte-pair vocabularies, translation by a model, and BLEU."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import torch

PAD, BEGIN, END = 0, 1, 2
BYTES = 3  # the token of byte 0; the other bytes follow
WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


class Vocabulary:
    """Tokens made of bytes: the most frequent pair becomes a new token, again and again
    (Sennrich, Haddow and Birch 2016)."""

    def __init__(self, merges: list[tuple[int, int]]):
        self.merges = [tuple(pair) for pair in merges]
        self.ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self.bytes = [b""] * BYTES + [bytes([byte]) for byte in range(256)]
        for left, right in self.merges:
            self.bytes.append(self.bytes[left] + self.bytes[right])
        self.known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.bytes)

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """At most `size` tokens; of equally frequent pairs the one of the smaller numbers."""
        counts = Counter(word for text in texts for word in WORD.findall(text))
        words = [([BYTES + byte for byte in word.encode()], n) for word, n in counts.items()]
        pairs: Counter[tuple[int, int]] = Counter()
        where: dict[tuple[int, int], set[int]] = defaultdict(set)
        for place, (tokens, n) in enumerate(words):
            for pair in zip(tokens, tokens[1:]):
                pairs[pair] += n
                where[pair].add(place)
        heap = [(-n, pair) for pair, n in pairs.items()]
        heapq.heapify(heap)
        merges: list[tuple[int, int]] = []
        while heap and len(merges) < size - BYTES - 256:
            negative, best = heapq.heappop(heap)
            if pairs[best] != -negative or negative >= -1:
                continue  # an old entry, or a pair that occurs once
            merges.append(best)
            changed = set()
            for place in sorted(where.pop(best)):
                tokens, n = words[place]
                for pair in zip(tokens, tokens[1:]):
                    pairs[pair] -= n
                    changed.add(pair)
                tokens[:] = merged(tokens, best, BYTES + 255 + len(merges))
                for pair in zip(tokens, tokens[1:]):
                    pairs[pair] += n
                    where[pair].add(place)
                    changed.add(pair)
            for pair in changed:
                heapq.heappush(heap, (-pairs[pair], pair))
        return cls(merges)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, which decode to the same text."""
        return [token for word in WORD.findall(text) for token in self._word(word)]

    def _word(self, word: str) -> list[int]:
        if word not in self.known:
            tokens = [BYTES + byte for byte in word.encode()]
            while len(tokens) > 1:
                pair = min(
                    zip(tokens, tokens[1:]), key=lambda p: self.ranks.get(p, len(self.ranks))
                )
                if pair not in self.ranks:
                    break
                tokens = merged(tokens, pair, BYTES + 256 + self.ranks[pair])
            self.known[word] = tokens
        return self.known[word]

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens up to the first END."""
        until = tokens.index(END) if END in tokens else len(tokens)
        return b"".join(self.bytes[token] for token in tokens[:until]).decode(errors="replace")

    def matrix(self, texts: list[str], length: int) -> torch.Tensor:
        """A row of BEGIN, tokens, END and padding for each text; long ones are cut off."""
        rows = torch.full((len(texts), length), PAD)
        for row, text in zip(rows, texts):
            tokens = [BEGIN, *self.encode(text)[: length - 2], END]
            row[: len(tokens)] = torch.tensor(tokens)
        return rows


def merged(tokens: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """The same with each occurrence of the pair replaced."""
    out: list[int] = []
    for token in tokens:
        if out and (out[-1], token) == pair:
            out[-1] = new
        else:
            out.append(token)
    return out


@torch.no_grad()
def translate(model: torch.nn.Module, source: torch.Tensor, beam: int = 1) -> list[list[int]]:
    """The tokens that a `models.Translator` finds for each row of `source`, with a beam of so many
    sentences; the best is that of the highest mean logarithm of probability."""
    memory, mask = model.encode(source)
    n, length = source.shape
    memory, mask = memory.repeat_interleave(beam, 0), mask.repeat_interleave(beam, 0)
    rows = torch.full((n, beam, 1), BEGIN, device=source.device)
    scores = torch.full((n, beam), -math.inf, device=source.device)
    scores[:, 0] = 0.0  # at first all rows of a beam are the same one
    ended = torch.zeros(n, beam, dtype=torch.bool, device=source.device)
    lengths = torch.ones(n, beam, device=source.device)
    for _ in range(length - 1):
        scored = model.decode(rows.flatten(0, 1), memory, mask, only_last=True)
        found = scored.float().log_softmax(-1).view(n, beam, -1)
        # A sentence that has ended goes on with padding, which costs nothing.
        found = found.masked_fill(ended[:, :, None], -math.inf)
        found[:, :, PAD] = torch.where(ended, 0.0, -math.inf)
        size = found.shape[-1]
        scores, places = (scores[:, :, None] + found).flatten(1).topk(beam)
        from_beam, tokens = places // size, places % size
        rows = rows.gather(1, from_beam[:, :, None].expand(-1, -1, rows.shape[2]))
        rows = torch.cat([rows, tokens[:, :, None]], 2)
        ended, lengths = ended.gather(1, from_beam), lengths.gather(1, from_beam)
        lengths = lengths + ~ended
        ended = ended | (tokens == END)
        if bool(ended.all()):
            break
    best = (scores / lengths).argmax(1)
    return [row[k, 1:].tolist() for row, k in zip(rows.cpu(), best.tolist())]


def bleu(translations: list[str], references: list[str]) -> float:
    """Corpus BLEU from 0 to 100 as sacreBLEU computes it: tokens of 13a, exponential smoothing."""
    right, total, length, expected = [0] * 4, [0] * 4, 0, 0
    for translation, reference in zip(translations, references, strict=True):
        ours, theirs = tokens_13a(translation), tokens_13a(reference)
        length, expected = length + len(ours), expected + len(theirs)
        for order in range(4):
            found, known = ngrams(ours, order + 1), ngrams(theirs, order + 1)
            right[order] += sum((found & known).values())
            total[order] += sum(found.values())
    if not any(right) or not all(total):
        return 0.0
    smooth, logarithms = 1.0, 0.0
    for hits, all_ in zip(right, total):
        if hits == 0:
            smooth *= 2
        logarithms += math.log(hits / all_ if hits else 1 / (smooth * all_)) / 4
    brevity = min(0.0, 1 - expected / length)
    return 100 * math.exp(logarithms + brevity)


def ngrams(tokens: list[str], order: int) -> Counter:
    return Counter(zip(*(tokens[start:] for start in range(order))))


def tokens_13a(line: str) -> list[str]:
    """The tokens of mteval-v13a.pl."""
    line = line.rstrip().replace("<skipped>", "")
    for name, sign in [("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")]:
        line = line.replace(name, sign)
    line = re.sub(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])", r" \1 ", f" {line} ")
    line = re.sub(r"([^0-9])([\.,])", r"\1 \2 ", line)
    line = re.sub(r"([\.,])([^0-9])", r" \1 \2", line)
    return re.sub(r"([0-9])(-)", r"\1 \2 ", line).split()
