"""Every method by name: BiLA, and those it is compared with."""

from collections.abc import Callable

from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.bila import bila as build_bila
from labelquorum.learn.methods.bcc import bcc
from labelquorum.learn.methods.bwa import bwa
from labelquorum.learn.methods.dawid_skene import dawid_skene
from labelquorum.learn.methods.ebcc import ebcc
from labelquorum.learn.methods.glad import glad
from labelquorum.learn.methods.ibcc import ibcc
from labelquorum.learn.methods.la import la_one_pass, la_two_pass
from labelquorum.learn.methods.laa import laa
from labelquorum.learn.methods.mace import mace
from labelquorum.learn.methods.majority_vote import majority_vote
from labelquorum.learn.methods.minimax_entropy import minimax_entropy, mmce
from labelquorum.learn.methods.one_coin import one_coin
from labelquorum.learn.methods.sbic import sbic
from labelquorum.learn.methods.stepwise_em import stepwise_em
from labelquorum.learn.methods.streaming_vb import streaming_vb

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "bila": build_bila,
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
"""The checks, the benchmark and the command line find the methods here."""
