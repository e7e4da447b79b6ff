"""Three independent answers to what is usable: the engine's, the agent's and a brute force; all agree."""

import random

from agent.model.states import GroupId, State
from agent.reference.config import EngineConfig, LayerKind, ModelConfig
from agent.reference.geometry import GroupName, describe
from agent.reference.keys import Chain, Identity
from agent.reference.pages import Pages
from agent.reference.plan import Planner
from agent.reference.pools import Pools
from agent.reference.request import Request
from agent.reference.reuse import Reuser
from agent.resume import evaluate
from tests.support.bruteforce import BruteForce
from tests.support.reference import NIGHTLY

LOOKUPS = 100_000 if NIGHTLY else 1_500
MODELS = [
    ModelConfig(),
    ModelConfig(window=17, layers=(LayerKind.CSA, LayerKind.WINDOW)),
    ModelConfig(layers=(LayerKind.HCA, LayerKind.RECURRENT)),
    ModelConfig(layers=(LayerKind.FULL,)),
]


class _Held:
    def __init__(self, held: set[tuple[int, bytes]]) -> None:
        self.held = held

    def has(self, group: GroupId, key: bytes, /) -> bool:
        return (group, key) in self.held


def _register(pages: Pages, group: int, state: State, key: bytes, tokens: int) -> None:
    page = pages.take(group, state, 1)[0]
    pages.fill(page)
    pages.register(page, key, tokens)
    pages.release(page)


def test_three_answers_agree() -> None:
    """Usable, logical and each group's own hit agree on every look-up of random tables."""
    for index, model in enumerate(MODELS):
        dice, config = random.Random(index), EngineConfig()
        sizes = dict.fromkeys((State.COMPRESSED, State.TAIL, State.SWA, State.INDEXER), 400)
        pages = Pages(sizes)
        pools, geometry = Pools(model, config, pages), describe(model, config)
        planner = Planner(model=model, engine=config, alignment=geometry.alignment)
        reuser = Reuser(pages, pools, planner, None)
        for number in range(LOOKUPS // len(MODELS)):
            tokens = [dice.randrange(1000) for _ in range(dice.randint(1, 120))]
            chain = Chain(geometry.hash_unit, Identity())
            request = Request(id=str(number), prompt=tuple(tokens), max_new=1, chain=chain, tokens=list(tokens))
            chain.extend(tokens)
            held: set[tuple[int, bytes]] = set()
            for spec in pools.specs:
                density = dice.choice([0.0, 0.6, 0.95, 1.0, 1.0, 1.0])
                for block in range(len(tokens) // spec.block):
                    if dice.random() < density:
                        key = chain.at((block + 1) * spec.block)
                        _register(pages, spec.id, spec.state, key, (block + 1) * spec.block)
                        held.add((spec.id, key))
            record = reuser.look_up(request, 0).record
            brute = BruteForce(geometry, chain.keys, held, request.limit)
            hit = evaluate(geometry, chain.keys, _Held(held), limit=request.limit)
            assert record.usable == brute.usable() == hit.usable
            assert record.logical == brute.logical() == hit.logical
            assert record.per_group == tuple(brute.own(group) for group in geometry.groups) == hit.per_group
            pages.invalidate_all()


def test_the_geometry_names_every_state() -> None:
    """The model's five states appear in the words of the domain model, blocks and windows included."""
    geometry = describe(ModelConfig(), EngineConfig())
    assert [group.id for group in geometry.groups] == list(range(len(geometry.groups)))
    assert {group.state for group in geometry.groups} == {State.COMPRESSED, State.INDEXER, State.SWA, State.TAIL}
    assert (geometry.hash_unit, geometry.alignment) == (4, 16)
    names = [group.name for group in geometry.groups]
    assert len(set(names)) == len(names)
    window = geometry.groups[[g.name.startswith(GroupName.WINDOW) for g in geometry.groups].index(True)]
    assert window.window_past_tokens == ModelConfig().window - 1


def test_identity_separates_equal_tokens() -> None:
    """The same tokens under another salt or adapter share no key, not even when the adapter is named like the salt."""
    tokens = list(range(40))
    chains = []
    for identity in (Identity(), Identity(salt="a"), Identity(adapter="a"), Identity(salt="a", adapter="a")):
        chain = Chain(4, identity)
        chain.extend(tokens)
        chains.append(chain.keys)
    assert len({key for keys in chains for key in keys}) == 4 * 10
