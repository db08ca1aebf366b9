"""The mapping and the set of a job's state, compared with Python's own."""

from __future__ import annotations

from collections.abc import Set

from hypothesis import given
from hypothesis import strategies as st

from headgate.control.model.persistent import PersistentMap, PersistentSet

KEYS = st.integers(0, 20)
CHANGES = st.lists(st.tuples(st.booleans(), KEYS, st.none() | st.integers()), max_size=60)


@given(st.dictionaries(KEYS, st.none() | st.integers()), CHANGES)
def test_a_mapping_is_the_dict_that_the_same_changes_make(
    start: dict[int, int | None], changes: list[tuple[bool, int, int | None]]
) -> None:
    """A mapping has the content, order and length of a dict, and no earlier mapping ever
    changes."""
    ours, theirs = PersistentMap(start), dict(start)
    history = [(ours, dict(theirs))]
    for adds, key, value in changes:
        if adds:
            ours, theirs[key] = ours.having(key, value), value
        else:
            ours = ours.without((key, key + 1))
            theirs.pop(key, None)
            theirs.pop(key + 1, None)
        history.append((ours, dict(theirs)))
    for known, expected in history:
        assert known == expected
        assert expected == known
        assert list(known.items()) == list(expected.items())
        assert len(known) == len(expected)
        assert all(known.get(key, -1) == expected.get(key, -1) for key in range(22))
        assert all((key in known) == (key in expected) for key in range(22))
        assert PersistentMap(expected) == known
        assert PersistentMap({**expected, 99: 1}) != known


@given(st.frozensets(KEYS), st.lists(st.tuples(st.booleans(), st.lists(KEYS)), max_size=40))
def test_a_set_is_the_frozenset_that_the_same_changes_make(
    start: frozenset[int], changes: list[tuple[bool, list[int]]]
) -> None:
    """A set has the content and length of a frozenset, and no earlier set ever changes."""
    ours, theirs = PersistentSet(start), start
    history: list[tuple[Set[int], Set[int]]] = [(ours, theirs)]
    for adds, members in changes:
        if adds:
            ours, theirs = ours.having(members), theirs.union(members)
        else:
            for member in members:
                ours, theirs = ours.without(member), theirs - {member}
        history.append((ours, theirs))
    for known, expected in history:
        assert known == expected
        assert expected == known
        assert len(known) == len(expected)
        assert {1, 2, 3} - known == {1, 2, 3} - expected
        assert PersistentSet([*expected, 99]) != known
