from dataclasses import replace

from labelquorum.ingest import validate
from labelquorum.ingest.chunks import concatenate, take_rows
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.readers import read_labels


def test_a_validated_table_is_not_validated_again(monkeypatch):
    space = LabelSpace(classes=("cat", "dog"), on_bad="skip")
    table = read_labels({"q1": {"ann": "cat", "bob": "dog"}, "q2": {"ann": "cat"}}, space)
    parts = [take_rows(table, [0]), take_rows(table, [1, 2])]
    with monkeypatch.context() as patch:
        patch.setattr(validate, "_check_ids", None)
        assert read_labels(table, space) is table
        for rules in (replace(space, on_bad="error"), replace(space, repeats="all")):
            assert read_labels(table, rules) is table  # neither says what a bad row is
        assert read_labels(concatenate(parts), space).labels == table.labels
    others = replace(space, classes=("cat",)), replace(space, abstain="cat")
    assert [len(read_labels(table, other).labels) for other in others] == [2, 1]
    changed = table._replace(labels=["cat", "owl", "dog"])
    assert read_labels(changed, space).skipped == {"unknown class": 1}
    assert table._fields == LabelTable._fields and table == LabelTable(*table)
    by_hand = LabelTable(["q1"], ["ann"], ["owl"])
    assert read_labels(by_hand, space).skipped == {"unknown class": 1}
