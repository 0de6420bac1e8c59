import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from voxcpm_grpc.engine.scheduling.blocks import BlockManager, page_keys
from voxcpm_grpc.models.voxcpm.prompt import Prompt, page_contents


def allocate(blocks: BlockManager, count: int) -> list[int]:
    pages = blocks.allocate(count)
    assert pages is not None
    return pages


class Ownership(RuleBasedStateMachine):
    """No page is lost or allocated twice, and registered content is found until it is evicted."""

    def __init__(self):
        super().__init__()
        self.blocks = BlockManager(8)
        self.held: list[list[int]] = []

    @rule(count=st.integers(0, 9))
    def allocate(self, count):
        free = self.blocks.free
        pages = self.blocks.allocate(count)
        assert (pages is None) == (count > free)
        if pages is not None:
            assert len(set(pages)) == count and 0 not in pages
            assert not {page for other in self.held for page in other} & set(pages)
            self.held.append(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), content=st.integers(0, 3))
    def register(self, data, content):
        pages = data.draw(st.sampled_from(self.held))
        for index, page in enumerate(pages):
            self.blocks.register(page, bytes([content, index]))

    @rule(content=st.integers(0, 3), count=st.integers(1, 4))
    def match(self, content, count):
        pages = self.blocks.match([bytes([content, index]) for index in range(count)])
        assert len(pages) <= count
        self.held.append(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.blocks.release(self.held.pop(index))

    @rule()
    def clear_cache(self):
        self.blocks.clear_cache()
        assert self.blocks.match([bytes([0, 0])]) == []

    @invariant()
    def used_is_what_is_held(self):
        assert self.blocks.used == len({page for pages in self.held for page in pages})


TestOwnership = Ownership.TestCase


def test_a_released_page_is_found_again_by_its_content_and_evicted_oldest_first():
    blocks = BlockManager(3)
    first, second, third = allocate(blocks, 3)
    for page, key in ((first, b"a"), (second, b"b"), (third, b"c")):
        blocks.register(page, key)
    blocks.release([first])
    blocks.release([second])
    blocks.release([third])
    assert blocks.used == 0
    assert blocks.match([b"b"]) == [second]
    assert blocks.allocate(1) == [first]  # "a" was without owner the longest
    assert blocks.match([b"a"]) == []
    assert blocks.match([b"c"]) == [third]


def test_shared_pages_are_counted_once_and_freed_with_the_last_owner():
    blocks = BlockManager(4)
    pages = allocate(blocks, 2)
    blocks.register(pages[0], b"a")
    again = blocks.match([b"a", b"unknown"])
    assert again == pages[:1] and blocks.used == 2
    blocks.release(pages)
    assert blocks.used == 1
    blocks.release(again)
    assert blocks.used == 0


@given(st.lists(st.integers(0, 5), min_size=0, max_size=40), st.integers(0, 39), st.sampled_from([4, 16]))
def test_keys_differ_from_the_first_page_that_differs(tokens, where, page_size):
    tokens = np.array(tokens, np.int64)
    audio = tokens == 0
    patches = np.arange(audio.sum() * 4, dtype=np.float32).reshape(-1, 2, 2)

    def keys_of(tokens: np.ndarray, patches: np.ndarray) -> list[bytes]:
        prompt = Prompt(tokens=tokens, audio=audio, patches=patches, primer=0)
        return page_keys(page_contents(prompt, len(tokens), page_size))

    keys = keys_of(tokens, patches)
    assert len(keys) == len(tokens) // page_size
    if where >= len(tokens):
        return
    other, changed = tokens.copy(), patches.copy()
    if audio[where]:
        changed[audio[:where].sum()] += 1
    else:
        other[where] += 10
    different = keys_of(other, changed)
    same = where // page_size
    assert keys[:same] == different[:same]
    assert not set(keys[same:]) & set(different[same:])
