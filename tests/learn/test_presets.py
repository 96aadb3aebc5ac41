"""Parts that go together, and parts that do not."""

import inspect

import pytest

from labelquorum.errors import StateError
from labelquorum.learn.bila import bila
from labelquorum.learn.hierarchical import LIMITS, Recipe
from labelquorum.learn.presets import COUNTED, PRESETS, settings_of


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"generative": "confusion_matrix"}, "generative='confusion_matrix', encoder='tied'"),
        ({"optimizer": "adam"}, "optimizer='adam' of bila do not go together"),
        ({"encoder": "mlp"}, "start from preset='network'"),
        ({"generative": "hierarchical", "encoder": "mlp"}, "encoder='mlp'"),
        ({**PRESETS["network"], "optimizer": "curvature"}, "optimizer='curvature' of bila do not"),
        ({"class_prior": "learned"}, r"must be one of \['blended'"),
        ({**PRESETS["network"], "class_prior": "blended"}, "keeps such counts"),
        ({"kl_weight": 0.0}, "must be > 0 with encoder='tied'"),
        ({"dependence": "known"}, "`dependence` of bila must be 'learned', or a number"),
    ],
)
def test_parts_that_make_no_sense_together_are_refused(parts, message):
    with pytest.raises(StateError, match=message):
        bila(**parts)


@pytest.mark.parametrize("generative", COUNTED)
def test_a_p_learned_by_counting_is_three_parts_by_name(generative):
    parts = {"generative": generative, "encoder": "tied", "optimizer": "curvature"}
    method = bila(**parts)
    assert method.counts is not None
    assert bila(**settings_of("network", encoder="tied")).counts is None


@pytest.mark.parametrize("preset", ["default", "recipe"])
def test_a_setting_without_effect_is_refused(preset):
    with pytest.raises(StateError, match="`epochs` of BiLA has no effect with generative="):
        settings_of(preset, epochs=3)
    gradient = {n: v for n, v in PRESETS["network"].items() if n != "kl_weight"}
    assert settings_of(preset, **gradient, epochs=3)["epochs"] == 3


@pytest.mark.parametrize(
    ("preset", "changes", "sentence"),
    [
        ("default", {"kl_weight": 0.5}, "learned by counting. Leave it out, or start from preset="),
        ("network", {"tilt_scale": 2.0}, "learned by gradient steps. Leave it out, or start from"),
        ("default", {"generative": "one_coin", "bias_scale": 1.0}, "generative='one_coin'"),
    ],
)
def test_what_has_an_effect_depends_on_p(preset, changes, sentence):
    with pytest.raises(StateError, match=sentence):
        settings_of(preset, **changes)


@pytest.mark.parametrize("name", LIMITS)
def test_every_setting_of_the_recipe_is_checked(name):
    least, below = LIMITS[name]
    with pytest.raises(StateError, match=f"`{name}` of bila must be .*a"):
        bila(**{name: least - 1})
    if below < float("inf"):
        with pytest.raises(StateError, match=f"`{name}` of bila must be a"):
            bila(**{name: below})


def test_the_preset_recipe_has_the_constants_of_the_recipe():
    signature = inspect.signature(bila).parameters
    for name, value in Recipe()._asdict().items():
        if name != "accounts":
            assert PRESETS["recipe"].get(name, signature[name].default) == value
    assert COUNTED[PRESETS["recipe"]["generative"]] == Recipe().accounts
