"""The registry of data sets: its facts agree with one another, and with the data where they are."""

import re
from importlib.resources import files

import pytest

from labelquorum.evaluation.datasets.converters import CONVERTERS
from labelquorum.evaluation.datasets.load import dataset_info, known_datasets

KNOWN = known_datasets()


def test_an_unknown_name_gives_nothing():
    assert dataset_info("nowhere") is None
    assert dataset_info("rte") is KNOWN["rte"]


@pytest.mark.parametrize("info", KNOWN.values(), ids=KNOWN)
def test_every_entry_is_whole(info):
    assert info.title and info.citation and info.licence
    assert min(info.counts) >= 0 and info.counts.n_classes >= 2
    assert info.order in ("source", "arrival", "arrival within items")
    assert (info.repository is None) == (not info.files)
    for address in (info.repository, *info.sources):
        assert address is None or re.fullmatch(r"https://github\.com/[\w./%-]+", address)
    for checksum in (info.labels_sha256, info.truth_sha256):
        assert checksum is None or re.fullmatch(r"[0-9a-f]{64}", checksum)
    assert (info.labels_sha256 is None) == (info.counts.n_labels == 0 or not info.public)


def test_the_registry_and_the_converters_know_one_another():
    assert {info.converter for info in KNOWN.values()} - {None} == set(CONVERTERS)


def test_what_can_be_converted_can_be_checked():
    for info in KNOWN.values():
        if info.converter is not None:
            assert info.files and info.truth_sha256


def test_sets_that_share_items_are_of_one_family():
    families = {}
    for info in KNOWN.values():
        families.setdefault(info.family, set()).add(info.name)
    shared = sorted(sorted(names) for names in families.values() if len(names) > 1)
    assert shared == [
        ["adult", "adult2_all", "adult2_gold"],
        ["cifar10_bila_synthetic_head64", "cifar10_truth", "cifar10n"],
        ["fact_eval", "fej2013"],
        sorted(name for name in KNOWN if name.startswith("llmbar_")),
        ["relevance", "trec2010"],
        ["slr_intervention", "slr_older", "slr_tech"],
        sorted({*(n for n in KNOWN if n.startswith("snow_")), "valence5"} - {"snow_wsd"}),
    ]
    assert all(next(iter(names)) == family for family, names in families.items() if len(names) == 1)


def test_the_paper_s_data_that_nobody_offers_are_said_to_be_so():
    assert {info.name for info in KNOWN.values() if not info.public} == {"age", "heart"}
    assert KNOWN["age"].counts == (165, 1002, 10020, 7, 1002)
    assert KNOWN["heart"].counts == (12, 237, 952, 2, 237)


def test_no_data_are_in_the_package_but_a_dozen_invented_labels():
    package = files("labelquorum.evaluation.datasets")
    found = [path.name for path in package.iterdir() if path.name.endswith((".csv", ".gz", ".txt"))]
    assert found == []
    assert len(package.joinpath("toy", "labels.csv").read_text().splitlines()) == 13
