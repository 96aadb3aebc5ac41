"""Chunk in, labels and confusion matrices out."""

from collections.abc import Callable

from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.baselines.bcc import bcc
from labelquorum.learn.baselines.bwa import bwa
from labelquorum.learn.baselines.dawid_skene import dawid_skene
from labelquorum.learn.baselines.ebcc import ebcc
from labelquorum.learn.baselines.glad import glad
from labelquorum.learn.baselines.ibcc import ibcc
from labelquorum.learn.baselines.la_one_pass import la_one_pass
from labelquorum.learn.baselines.la_two_pass import la_two_pass
from labelquorum.learn.baselines.laa import laa
from labelquorum.learn.baselines.mace import mace
from labelquorum.learn.baselines.majority_vote import majority_vote
from labelquorum.learn.baselines.minimax_entropy import minimax_entropy
from labelquorum.learn.baselines.mmce import mmce
from labelquorum.learn.baselines.one_coin import one_coin
from labelquorum.learn.baselines.sbic import sbic
from labelquorum.learn.baselines.stepwise_em import stepwise_em
from labelquorum.learn.baselines.streaming_vb import streaming_vb
from labelquorum.learn.bila import bila

__all__ = ["AGGREGATORS"]

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "bila": bila,
    "majority_vote": majority_vote,
    "dawid_skene": dawid_skene,
    "bcc": bcc,
    "ibcc": ibcc,
    "minimax_entropy": minimax_entropy,
    "mmce": mmce,
    "laa": laa,
    "one_coin": one_coin,
    "glad": glad,
    "mace": mace,
    "bwa": bwa,
    "ebcc": ebcc,
    "la_one_pass": la_one_pass,
    "la_two_pass": la_two_pass,
    "sbic": sbic,
    "streaming_vb": streaming_vb,
    "stepwise_em": stepwise_em,
}
"""Every method by name; the checks, the benchmark and the command line find them here."""
