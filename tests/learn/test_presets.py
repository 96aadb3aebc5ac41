"""Parts that go together, and parts that do not."""

import pytest

from labelquorum.errors import StateError
from labelquorum.learn.bila import PRESETS, bila
from labelquorum.learn.hierarchical import LIMITS, Recipe


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"generative": "hierarchical"}, "go together"),
        ({"optimizer": "curvature"}, "go together"),
        ({"generative": "hierarchical", "encoder": "tied"}, "go together"),
        ({"generative": "hierarchical", "optimizer": "curvature"}, "Got 'hierarchical', 'mlp'"),
        ({"encoder": "tied", "optimizer": "curvature"}, "Got 'confusion_matrix', 'tied'"),
        ({**PRESETS["recipe"], "class_prior": "learned"}, r"must be one of \['blended'"),
        ({"class_prior": "blended"}, "only generative='hierarchical' keeps such counts"),
        ({"encoder": "tied", "kl_weight": 0.0}, "must be > 0 with encoder='tied'"),
    ],
)
def test_parts_that_make_no_sense_together_are_refused(parts, message):
    with pytest.raises(StateError, match=message):
        bila(**parts)


def test_the_recipe_is_three_parts_by_name():
    method = bila(generative="hierarchical", encoder="tied", optimizer="curvature")
    assert method.counts is not None
    assert bila(encoder="tied", kl_weight=1.0).counts is None


@pytest.mark.parametrize("name", LIMITS)
def test_every_setting_of_the_recipe_is_checked(name):
    least, below = LIMITS[name]
    with pytest.raises(StateError, match=f"`{name}` of bila must be a"):
        bila(**PRESETS["recipe"], **{name: least - 1})
    if below < float("inf"):
        with pytest.raises(StateError, match=f"`{name}` of bila must be a"):
            bila(**PRESETS["recipe"], **{name: below})


def test_the_defaults_of_bila_are_those_of_the_recipe():
    import inspect

    signature = inspect.signature(bila).parameters
    for name, default in Recipe()._asdict().items():
        if name != "class_prior":
            assert signature[name].default == default
    assert PRESETS["recipe"]["class_prior"] == Recipe().class_prior
