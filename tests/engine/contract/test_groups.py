"""The cache groups of the main model families, read from this version's own managers."""

import pytest

from agent.engines.vllm.groups import geometry_of
from agent.model.states import Requirement, ResumeKind, State
from tests.support import vllm_groups as make

pytestmark = pytest.mark.engine

FULL, WINDOW, CHUNKED, RECURRENT = ResumeKind.FULL, ResumeKind.WINDOW, ResumeKind.CHUNKED, ResumeKind.RECURRENT


@pytest.mark.parametrize(
    ("setup", "kinds", "alignment"),
    [
        (make.gemma3(), [WINDOW, WINDOW, FULL], 16),
        (make.gpt_oss(), [WINDOW, FULL], 16),
        (make.llama4(retention=None), [CHUNKED, CHUNKED, CHUNKED, FULL], 16),
        (make.mamba_hybrid(), [RECURRENT, RECURRENT, RECURRENT, FULL], 64),
        (make.mamba_hybrid(unit=16), [RECURRENT, RECURRENT, RECURRENT, FULL], 16),
    ],
    ids=lambda value: value.name if isinstance(value, make.Setup) else None,
)
def test_rules_and_alignment(setup: make.Setup, kinds: list[ResumeKind], alignment: int) -> None:
    """Every group has its rule and is required; the alignment is the engine's, partial hits are noticed."""
    geometry = geometry_of(setup.manager())
    assert [group.kind for group in geometry.groups] == kinds
    assert {group.requirement for group in geometry.groups} == {Requirement.REQUIRED}
    assert (geometry.alignment, geometry.hash_unit) == (alignment, setup.unit)
    assert geometry.partial_hits == (RECURRENT in kinds and setup.unit < 64)
    assert geometry.retention_interval == setup.retention
    assert geometry.caching
    assert all(group.page_bytes for group in geometry.groups)


def test_deepseek_v4() -> None:
    """Five groups, all five states, the ratio of each: under the field's older name, too."""
    geometry = geometry_of(make.deepseek_v4().manager())
    assert (geometry.hash_unit, geometry.alignment) == (4, 256)
    assert [group.kind for group in geometry.groups] == [WINDOW, WINDOW, FULL, WINDOW, WINDOW]
    assert [group.states for group in geometry.groups] == [
        (State.SWA,),
        (State.SWA,),
        (State.COMPRESSED, State.INDEXER),
        (State.TAIL, State.INDEXER),
        (State.TAIL,),
    ]
    assert [group.tokens_per_entry for group in geometry.groups][2:] == [4, 4, 128]
    assert [group.window_past_tokens for group in geometry.groups] == [127, 127, None, 7, 127]
    assert geometry.groups[0].lookup_class == geometry.groups[1].lookup_class


def test_what_a_version_has_beyond_the_oldest_is_mapped() -> None:
    """Rings and windows that are computed again are transient, in the versions that have them."""
    extra = []
    if make.HAS_RING:
        extra.append(make.Setup(name="ring", groups=(make.ring(16), make.full(16), make.window(16, 40)), unit=16))
    if make.HAS_BOUNDED_REPLAY:
        extra.append(make.deepseek_v4_1())
    for setup in extra:
        group = geometry_of(setup.manager()).groups[0]
        assert (group.kind, group.requirement) == (ResumeKind.NONE, Requirement.TRANSIENT)
