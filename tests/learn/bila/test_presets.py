"""Parts that go together, and parts that do not."""

import inspect

import pytest

from labelquorum.errors import StateError
from labelquorum.learn.bila import bila
from labelquorum.learn.bila.hierarchical import Recipe
from labelquorum.learn.bila.presets import PRESETS, saved_settings, settings_of
from labelquorum.learn.bila.settings import COUNTED, SETTINGS
from labelquorum.learn.estimators import BiLA


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


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_checked(name):
    setting = SETTINGS[name]
    wrong = ["none such"] if setting.choices else []
    wrong += [] if setting.least is None else [setting.least - 1, float("nan"), setting.below]
    for value in wrong:
        with pytest.raises(StateError, match=f"`{name}` of bila must be .* Got "):
            bila(**{name: value})
    assert wrong or name in ("hidden_sizes", "record_epochs")


@pytest.mark.parametrize("taker", [bila, BiLA])
def test_every_setting_is_in_signature_and_docstring(taker):
    signature, doc = inspect.signature(taker).parameters, inspect.getdoc(taker)
    for name, setting in SETTINGS.items():
        assert signature[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert signature[name].default in (setting.default, None)
        assert f"\n{name}\n    " in doc
    assert "settings" not in signature and "\nsettings\n" not in doc
    with pytest.raises(TypeError, match="unexpected keyword argument 'epoch'"):
        taker(epoch=3)


def test_a_subclass_has_the_settings_of_its_own_constructor():
    class Own(BiLA):
        def __init__(self, epochs=3):
            super().__init__("network", epochs=epochs)

    assert list(inspect.signature(Own).parameters) == ["epochs"]


def test_settings_of_the_paper_are_those_of_gradient_steps():
    for name, value in (
        ("weight_init", "shifted_normal"),
        ("init_smoothing", 1.0),
        ("newcomer_rows", "flat"),
    ):
        with pytest.raises(StateError, match=f"`{name}` of BiLA has no effect with generative="):
            settings_of("default", **{name: value})
        assert settings_of("network", **{name: value})[name] == value


def test_only_the_papers_presets_start_otherwise():
    signature = inspect.signature(bila).parameters
    usual = {"weight_init": "glorot", "init_smoothing": 0.0, "newcomer_rows": "votes"}
    changed = {
        "www2021": {"init_smoothing": 1.0, "newcomer_rows": "flat"},
        "authors": {"weight_init": "shifted_normal", "newcomer_rows": "flat"},
    }
    for name, value in usual.items():
        assert signature[name].default == value
        for preset, settings in PRESETS.items():
            assert settings.get(name, value) == changed.get(preset, {}).get(name, value)
    assert PRESETS["authors"]["optimizer"] == "tf1_rmsprop"
    assert PRESETS["network"]["optimizer"] == "rmsprop"


# ── settings of before ───────────────────────────────────────────────────────────────────

THEN = {
    "www2021": {
        "weight_init": "glorot",
        "init_smoothing": 0.0,
        "newcomer_rows": "votes",
        "optimizer": "bounded_rmsprop",
        "learning_rate": 1e-3,
        "decay": 0.9,
        "epochs": 100,
        "tolerance": 1e-3,
    },
    "authors": {
        "weight_init": "glorot",
        "init_smoothing": 0.0,
        "newcomer_rows": "votes",
        "optimizer": "rmsprop",
        "learning_rate": 1e-4,
        "decay": 0.9,
        "epochs": 20,
        "tolerance": 0.0,
    },
}


def of_then(preset, **changes):
    """The settings a file of before has: everything by name, and None for what the preset says."""
    new = ("weight_init", "init_smoothing", "newcomer_rows")
    settings = BiLA(preset, **changes).get_params()
    return {name: value for name, value in settings.items() if name not in new}


@pytest.mark.parametrize("preset", THEN)
def test_a_saved_model_keeps_what_its_preset_meant_when_it_was_made(preset):
    signature = inspect.signature(bila).parameters
    options = BiLA(**saved_settings(of_then(preset)))._options()
    for name, value in THEN[preset].items():
        assert options.get(name, signature[name].default) == value
    untouched = set(PRESETS[preset]) - set(THEN[preset])
    assert all(options[name] == PRESETS[preset][name] for name in untouched)
    # What was set by hand stays, and what is saved today means what the preset means today.
    assert saved_settings(of_then(preset, epochs=7))["epochs"] == 7
    today = BiLA(preset).get_params()
    assert saved_settings(today) == today


def test_saved_settings_without_such_a_preset_stay_as_they_are():
    for preset in ("default", "recipe", "network"):
        assert saved_settings(of_then(preset)) == of_then(preset)
    assert saved_settings({"seed": 3}) == {"seed": 3}


def test_a_saved_preset_with_a_p_that_is_counted_keeps_what_has_an_effect():
    parts = {"generative": "hierarchical", "encoder": "tied", "optimizer": "curvature"}
    kept = saved_settings(of_then("www2021", **parts, class_prior="uniform"))
    assert kept["tolerance"] == 1e-3 and kept["epochs"] is None
    assert "init_smoothing" not in kept
    assert bila(**BiLA(**kept)._options()).counts is not None


def test_the_preset_recipe_has_the_constants_of_the_recipe():
    signature = inspect.signature(bila).parameters
    for name, value in Recipe()._asdict().items():
        if name != "worker_models":
            assert PRESETS["recipe"].get(name, signature[name].default) == value
    assert COUNTED[PRESETS["recipe"]["generative"]] == Recipe().worker_models


def test_an_unknown_setting_of_a_preset_is_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'epoch'"):
        settings_of("network", epoch=3)
